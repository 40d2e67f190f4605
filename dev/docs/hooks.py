"""Hooks of mkdocs: pages that lie outside docs/ become part of the site, and links to them lead there."""

import ast
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
OUTSIDE = {"README.md": "overview.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
"""Pages by their path in the repository, and what they are called on the site."""
BADGES = re.compile(r"<!-- badges:begin.*?badges:end -->\n", re.DOTALL)
"""Pictures of another server, of which the site asks for none."""
LINK = re.compile(r"(\]\()([^)\s]+)(\))")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages from outside docs/ and the example DAGs."""
    for path, there in _outside().items():
        text = (ROOT / path).read_text()
        files.append(File.generated(config, there, content=text if path.endswith(".md") else _example(path, text)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links lead to where their targets are on the site."""
    markdown = BADGES.sub("", markdown)
    here = _in_repository(page.file.src_uri)
    return LINK.sub(lambda link: link[1] + _moved(link[2], here, page.file.src_uri) + link[3], markdown)


def _outside() -> dict[str, str]:
    examples = sorted((ROOT / "dags").glob("*.py"))
    return OUTSIDE | {f"dags/{each.name}": f"examples/{each.stem}.md" for each in examples}


def _example(path: str, code: str) -> str:
    said = ast.get_docstring(ast.parse(code)) or ""
    return f"# {Path(path).stem}\n\n{said}\n\n`{path}`; a test runs it.\n\n```python\n{code}```\n"


def _in_repository(uri: str) -> str:
    return next((path for path, there in _outside().items() if there == uri), f"docs/{uri}")


def _moved(target: str, here: str, uri: str) -> str:
    """Return a link from a page at ``here`` in the repository, as it has to be at ``uri`` on the site."""
    path, mark, anchor = target.partition("#")
    if not path or re.match(r"[a-z]+:", target):
        return target
    there = posixpath.normpath(posixpath.join(posixpath.dirname(here), path))
    on_site = _outside().get(there) or there.removeprefix("docs/")
    return posixpath.relpath(on_site, posixpath.dirname(uri) or ".") + mark + anchor
