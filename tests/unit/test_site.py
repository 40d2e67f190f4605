"""The documentation as a site: it builds without a warning, holds every page, and asks nobody else for anything."""

import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FETCHED = {
    ("script", "src"),
    ("img", "src"),
    ("link", "href"),
    ("iframe", "src"),
    ("source", "src"),
    ("object", "data"),
}


class _Seen(HTMLParser):
    """Collects what a page fetches, where it leads, and what can be led to."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if (tag, name) in FETCHED:
                self.fetched.append(value or "")
            elif (tag, name) == ("a", "href"):
                self.links.append(value or "")
            elif name == "id":
                self.anchors.add(value or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as ``make docs`` does; any warning ends it."""
    there = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(there)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return there


def pages(site: Path) -> Iterator[tuple[Path, _Seen]]:
    """Return every page of the site but that for wrong addresses, whose links are those of a root."""
    for page in sorted(site.rglob("*.html")):
        if page.name != "404.html":
            yield page, _Seen(page)


def test_every_page_is_in_the_navigation(site: Path) -> None:
    """From the first page's navigation every page of docs/ is one click away."""
    index = (site / "index.html").read_text()
    navigation = set(re.findall(r'href="([^"#]+)" class="md-nav__link', index)) | {"index.html"}
    assert {page.relative_to(site).as_posix() for page, _ in pages(site)} == {
        path.removeprefix("./") for path in navigation
    }
    there = {page.relative_to(ROOT / "docs").with_suffix(".html").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    assert there <= navigation


def test_nothing_is_asked_of_anybody_else(site: Path) -> None:
    """No font, script, style sheet or picture comes from another host; each is a file of the site."""
    for page, seen in pages(site):
        for target in seen.fetched:
            assert not re.match(r"(\w+:)?//", target), f"{page.name}: {target}"
            assert (page.parent / target.partition("?")[0]).resolve().is_file(), f"{page.name}: {target}"
        # The theme would fetch a renderer for these from elsewhere.
        assert 'class="mermaid"' not in page.read_text()
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", sheet.read_text()), sheet.name


FILES = (".json", ".yaml")
"""What a page offers to be taken as it is."""


def test_links_lead_to_pages_and_headings(site: Path) -> None:
    """Also those that were written for another place, such as README's."""
    seen = dict(pages(site))
    for page, found in seen.items():
        for target in found.links:
            path, _, anchor = target.partition("#")
            if re.match(r"\w+:", target):
                continue
            there = (page.parent / path).resolve() if path else page
            there = there / "index.html" if there.is_dir() else there
            if there.suffix in FILES:
                assert there.is_file(), f"{page.name}: {target}"
                continue
            assert there in seen, f"{page.name}: {target}"
            assert not anchor or anchor in seen[there].anchors, f"{page.name}: {target}"
