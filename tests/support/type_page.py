"""The reference page of types, as the test of every type has found them."""

import os
from collections.abc import Mapping
from pathlib import Path

from airflow_provider_backpressure.spark.types import carrier

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "reference" / "types.md"
WRITE = "BACKPRESSURE_WRITE_DOCS"
"""Set in the environment, it makes the test write the page."""
INTRODUCTION = """# Types

How values of PostgreSQL's types arrive in PostgreSQL. The table is made by the test that copies them: each type with
NULL and with its extreme and special values (NaN, infinity, years before Christ, empty arrays, 4-byte characters …).

- **Copied**: without a transform. A target that is created has the same type; one that is there must have it.
- **In a transform**: the column's type in Spark's DataFrame. `string` is the text that PostgreSQL prints, which the
  target's type reads back. Where Spark's type cannot hold a value (infinite dates, NaN in a numeric), the range fails
  with the column's name; name the column in `PostgresSource(as_text=…)`.
"""
REFUSED = """
## Refused

A plan refuses columns of these types, and of arrays, domains and composites that hold them, by name. As text, named in
`as_text`, each of them can be read.

| Type | Because |
|---|---|
"""


def page(found: Mapping[str, bool], refused: Mapping[str, str]) -> str:
    """Return the page. ``found``: whether all values of a type were equal; ``refused``: the reason by type."""
    lines = [
        f"| `{type_}` | {'equal' if equal else 'DIFFERS'} | `{carrier(type_)[1].simpleString()}` |"
        for type_, equal in found.items()
    ]
    reasons = [f"| `{type_}` | {reason} |" for type_, reason in sorted(refused.items())]
    head = "\n| Type | Copied | In a transform |\n|---|---|---|\n"
    return "\n".join([INTRODUCTION + head + "\n".join(lines), REFUSED.rstrip() + "\n" + "\n".join(reasons), ""])


def keep(text: str) -> str:
    """Return what the page says, after writing ``text`` there where that is asked for."""
    if os.environ.get(WRITE):
        PAGE.write_text(text)
    return PAGE.read_text()
