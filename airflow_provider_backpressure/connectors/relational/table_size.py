"""How many rows a table has, and how wide they are: what is counted, and what is estimated."""

from dataclasses import dataclass

COUNTABLE_ROWS = 20_000_000
"""Up to so many rows of the whole table are counted (some seconds); beyond, the server's estimate is used."""
UNEVEN = 8
"""How many times the mean a row is wide, from which on ranges are weighed by bytes rather than counted by rows."""
ASSUMED_ROW_BYTES = 100.0


@dataclass(frozen=True, kw_only=True)
class Size:
    """Rows that are asked for, and bytes of one."""

    rows: int | None
    exact: bool
    row_bytes: float
    widest_bytes: float
    """Of the largest row, where rows differ much in size, otherwise 0."""


UNKNOWN = Size(rows=None, exact=False, row_bytes=ASSUMED_ROW_BYTES, widest_bytes=0.0)
"""Where nobody asks."""
