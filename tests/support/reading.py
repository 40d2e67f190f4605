"""Reading a source's ranges by their own statements, as the tasks do."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.ports import Source
from airflow_provider_backpressure.core.snapshot.plan import Snapshot
from airflow_provider_backpressure.core.snapshot.ranges import PlannedRange
from tests.support.postgres import connected, run

MANY_BYTES = 2**40
Open = Callable[..., Source]
"""Opens a source over ``public.t`` unless told otherwise."""


def keys_by_range(
    endpoint: Endpoint, source: Source, snapshot: Snapshot, ranges: list[PlannedRange]
) -> list[list[tuple[Any, ...]]]:
    """Read every range through its own slice's statement and return the rows of each."""
    read = source.read_spec(snapshot)
    with connected(endpoint) as connection:
        return [
            connection.execute(source.slice(read, piece.bounds, f"{piece.seq}.0").query.encode()).fetchall()
            for piece in ranges
        ]


def assert_covered(
    endpoint: Endpoint, source: Source, *, rows: int, query: str, bytes: int = MANY_BYTES
) -> tuple[list[int], Snapshot]:
    """Cut the source, read every range, and compare with ``query``: each row in exactly one range, none too big."""
    snapshot = source.snapshot()
    ranges = list(source.ranges(snapshot, rows=rows, bytes=bytes))
    assert [piece.seq for piece in ranges] == list(range(len(ranges)))
    pieces = keys_by_range(endpoint, source, snapshot, ranges)
    assert sorted(map(repr, (row for piece in pieces for row in piece))) == sorted(map(repr, run(endpoint, query)))
    sizes = [len(piece) for piece in pieces]
    assert max(sizes, default=0) <= 1.3 * rows
    if sizes:
        _assert_cut(endpoint, source, snapshot, ranges[sizes.index(max(sizes))])
    return sizes, snapshot


def _assert_cut(endpoint: Endpoint, source: Source, snapshot: Snapshot, whole: PlannedRange) -> None:
    """Cut one of the ranges in three: its rows are in just these pieces, none of which holds much more than a third."""
    bounds = source.cut(source.read_spec(snapshot), whole.bounds, parts=3)
    cut = [replace(whole, seq=seq, bounds=piece) for seq, piece in enumerate(bounds)]
    (before,), pieces = (keys_by_range(endpoint, source, snapshot, ranges) for ranges in ([whole], cut))
    assert sorted(map(repr, (row for piece in pieces for row in piece))) == sorted(map(repr, before))
