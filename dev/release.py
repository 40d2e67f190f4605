"""Checks that version, changelog and tag name the same release.

``python -m dev.release v0.1.0`` is run by CI for a tag, and before one is set: see docs/releasing.md.
"""

import re
import sys
from pathlib import Path

from packaging.version import InvalidVersion, Version

from airflow_provider_backpressure import __version__

ROOT = Path(__file__).resolve().parents[1]
HEADING = re.compile(r"^## \[(.+?)\](?: - (.+))?$", re.MULTILINE)


def problems(version: str, changelog: str, tag: str | None = None) -> list[str]:
    """Return what does not fit together; a version under development needs no heading of its own."""
    try:
        parsed = Version(version)
    except InvalidVersion:
        return [f"The version {version} is none that pip knows."]
    headings = dict(HEADING.findall(changelog))
    found = [] if "Unreleased" in headings else ["CHANGELOG.md has no heading [Unreleased]."]
    if tag is not None and tag != f"v{version}":
        found.append(f"The tag is {tag}, the version {version}: set __version__ or another tag.")
    if tag is not None and parsed.is_devrelease:
        found.append(f"The version {version} is one under development: set __version__ to the release's.")
    if not parsed.is_devrelease and not re.fullmatch(r"\d{4}-\d\d-\d\d", headings.get(version, "")):
        found.append(f"CHANGELOG.md has no heading `## [{version}] - year-month-day`.")
    return found


def main(words: list[str]) -> int:
    """Print what does not fit and return 1, or 0."""
    found = problems(__version__, (ROOT / "CHANGELOG.md").read_text(), words[0] if words else None)
    print("\n".join(found) or f"Version {__version__}, changelog and tag fit together.")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
