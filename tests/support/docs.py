"""The documentation as tests read it: pages, their blocks of code, the lines that a person would type."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELLS = ("sh", "bash")
SYNOPSES = DOCS / "reference/commands.md"
"""Its blocks of text are no lines to be typed: they have brackets around what may be left out."""


def named(page: Path) -> str:
    """Return a page's path for a test's name."""
    return page.relative_to(ROOT).as_posix()


def prose(page: Path) -> str:
    """Return a page without its code blocks."""
    return FENCE.sub("", page.read_text())


def blocks(page: Path, *languages: str) -> Iterator[str]:
    """Yield a page's blocks in some languages."""
    return (block for language, block in FENCE.findall(page.read_text()) if language in languages)


def typed(page: Path) -> Iterator[str]:
    """Yield each line that a page lets a person type, also one that stands before its output."""
    for block in blocks(page, *SHELLS):
        lines = block.replace("\\\n", " ").splitlines()
        yield from (line for line in lines if line.strip())
    if page != SYNOPSES:
        for block in blocks(page, "text"):
            lines = (line.removeprefix("$ ") for line in block.replace("\\\n", " ").splitlines())
            yield from (line for line in lines if line.startswith(("airflow ", "curl ")))


def inline(page: Path) -> Iterator[str]:
    """Yield each piece of code that stands in a page's sentences and tables."""
    yield from re.findall(r"`([^`\n]+)`", prose(page))
