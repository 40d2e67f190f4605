"""The page of measured figures: every suite writes its own section of it."""

import re
from pathlib import Path

from benchmarks.suites import ROWS, SUITES

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "benchmarks.md"
INTRODUCTION = """# Benchmarks

Figures measured by the suites under `benchmarks/`, each written here by the suite itself with `--write-docs`. All sides
of a comparison run in turn in one go. Trust ratios more than absolute figures: those depend on the machine.

`make bench` runs them all, one after the other, and says beforehand what each takes: `python -m benchmarks --list`
does only that. `BENCH_ROWS=200000 make bench` tries them all within minutes; figures of such a size mean little.
`BENCH_ONLY=pg_to_pg,killed` runs some, and `WRITE_DOCS=1` writes this page with its plots.

| suite | what it measures | minutes at {rows:,} rows |
|---|---|---|
{suites}

The minutes are those of two cores. Only what was measured in full size has a section here.
"""


def introduction() -> str:
    """Return the text above the sections."""
    lines = [f"| `{suite.name}` | {suite.about} | {suite.minutes:g} |" for suite in SUITES]
    return INTRODUCTION.format(rows=ROWS, suites="\n".join(lines))


def write(heading: str, text: str) -> None:
    """Put a section in the place of the one of the same heading, or at the end."""
    text_before = PAGE.read_text() if PAGE.exists() else ""
    begin = re.search(r"^## ", text_before, re.MULTILINE)
    # The text above all sections is not measured, but says how they are made: it goes with the suite.
    before = f"{introduction()}\n{text_before[begin.start() :] if begin else ''}"
    section = f"## {heading}\n\n{text.strip()}\n"
    old = re.compile(rf"^## {re.escape(heading)}\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
    there = old.search(before)
    after = (
        f"{before[: there.start()]}{section}\n{before[there.end() :]}" if there else f"{before.rstrip()}\n\n{section}"
    )
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(f"{after.rstrip()}\n")
