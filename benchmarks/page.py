"""The page of measured figures: every suite writes its own section of it."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "benchmarks.md"
INTRODUCTION = """# Benchmarks

Figures measured by the suites under `benchmarks/`, each written here by the suite itself with `--write-docs`. All sides
of a comparison run in turn in one go. Trust ratios more than absolute figures: those depend on the machine.

`make bench` runs them all: `python -m benchmarks.pg_to_pg`, `kafka_to_pg`, `mysql_to_pg`, `pg_to_parquet`,
`orchestration`, `million`, `memory`, `at_once`, `steady` and `push`. Only what was measured in full size has a
section here.
"""


def write(heading: str, text: str) -> None:
    """Put a section in the place of the one of the same heading, or at the end."""
    before = PAGE.read_text() if PAGE.exists() else INTRODUCTION
    section = f"## {heading}\n\n{text.strip()}\n"
    old = re.compile(rf"^## {re.escape(heading)}\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
    there = old.search(before)
    after = (
        f"{before[: there.start()]}{section}\n{before[there.end() :]}" if there else f"{before.rstrip()}\n\n{section}"
    )
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(f"{after.rstrip()}\n")
