"""Rows in memory are the keys of a table: how a slice's statement names them, and their checksum."""

import json
from bisect import bisect_left
from collections.abc import Sequence

from airflow_provider_backpressure.core.snapshot.bounds import Bounds, KeyBounds
from airflow_provider_backpressure.core.snapshot.messages import Column, Window

COLUMNS = (Column(name="id", type="bigint", nullable=False),)


def query_of(bounds: Bounds | None, window: Window | None) -> str:
    """Return what selects keys here: the least and the first too large one, and the window."""
    bounds = bounds or KeyBounds(columns=("id",), start=None, end=None)
    assert isinstance(bounds, KeyBounds), "what this module cuts"
    ends = [None if values is None else int(values[0]) for values in (bounds.start, bounds.end)]
    return json.dumps([*ends, None if window is None else [window.after, window.upto]])


def select_keys(keys: Sequence[int], query: str) -> list[int]:
    """Return those of the ascending keys that a query selects, in order."""
    start, end, window = json.loads(query)
    first = 0 if start is None else bisect_left(keys, start)
    last = len(keys) if end is None else bisect_left(keys, end)
    return [key for key in keys[first:last] if window is None or in_window(key, *window)]


def in_window(key: int, after: str | None, upto: str) -> bool:
    """Whether a key lies above the lower end of a window, and not above its upper one."""
    return (after is None or key > int(after)) and key <= int(upto)


def checksum_of(keys: Sequence[int]) -> str:
    """Return a checksum that the order of the keys does not change."""
    return f"memory:{sum(key * 2654435761 + 1 for key in keys) % 2**64:016x}"
