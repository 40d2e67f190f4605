"""``python -m dev.docs`` writes what of the documentation the code knows: diagrams, and the reference's facts."""

from pathlib import Path

from dev.docs.diagrams import diagrams
from dev.docs.facts import tables
from dev.docs.reference import DOCS


def made() -> dict[Path, str]:
    """Return every file that is made from the code, with what it has to hold. The rest of a page stays as it is."""
    files = {DOCS / "images" / f"{name}.svg": diagram.svg() for name, diagram in diagrams().items()}
    for table in tables():
        page = DOCS / table.page
        files[page] = table.written(files.get(page) or page.read_text())
    return files


def main() -> None:
    """Write them."""
    for path, text in made().items():
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(f"Wrote {path.relative_to(DOCS.parent)}.")


if __name__ == "__main__":
    main()
