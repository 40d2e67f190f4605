"""What a hydration has landed in files is read back as a source, by its marks; every kind of table of files."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_backpressure.core.endpoints import NOWHERE
from airflow_provider_backpressure.core.ports import Source
from airflow_provider_backpressure.core.snapshot.bounds import FileBounds
from airflow_provider_backpressure.exceptions import SourceRefused
from airflow_provider_backpressure.sources import LandedSource
from airflow_provider_backpressure.spark.registry import reader
from tests.conformance.sinks.cases import Case, opened
from tests.conformance.sinks.support import begin, expected

pytestmark = [pytest.mark.integration, pytest.mark.statement("T9")]

LAKES = pytest.mark.parametrize("case", ["parquet", "delta", "iceberg"], indirect=True)


@contextmanager
def landed(case: Any) -> Iterator[Source]:
    with closing(LandedSource(lake=case.declared).open(NOWHERE)) as source:
        yield source


def fill(case: Case, ranges: int, *, word: str = "row") -> None:
    """Land so many ranges of ten rows each, as a plan of so many."""
    begun = begin(case, ranges=ranges)
    for seq in range(ranges):
        begun.write(seq, word=word)


def read_back(source: Source, *, rows: int = 1000) -> list[list[tuple[Any, ...]]]:
    """Return the rows of each range, sorted."""
    snapshot = source.snapshot()
    read, found = source.read_spec(snapshot), []
    for planned in source.ranges(snapshot, rows=rows, bytes=10**9):
        piece = source.slice(read, planned.bounds, "0.0")
        batches = reader(read.kind).read(NOWHERE, read, piece, "test")
        values = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
        assert len(values) == planned.rows
        found.append(sorted(values))
    return found


@LAKES
def test_files_are_the_ranges_and_small_ones_go_together(case: Case):
    """T9: all rows come back, with the types of the plan; ranges are bounded by whole files."""
    fill(case, 5)
    with landed(case) as source:
        snapshot = source.snapshot()
        assert (snapshot.total, snapshot.total_exact, snapshot.columns) == (50, True, case.columns)
        assert [len(part) for part in read_back(source, rows=20)] == [20, 20, 10]
        (whole,) = read_back(source)
        assert whole == expected(case, 0, 1, 2, 3, 4)
        assert source.upstream().at == {source.identity.removeprefix("landed:"): 50}
        (only,) = source.ranges(snapshot, rows=1000, bytes=10**9)
        assert isinstance(only.bounds, FileBounds)
        assert only.bounds.checksum.startswith("values-xxh3:")


@LAKES
def test_rows_that_are_not_those_that_were_landed_are_refused(case: Case):
    """The number is right and a value is not: nothing of the slice is to be committed."""
    fill(case, 2)
    with landed(case) as source:
        snapshot = source.snapshot()
        read, (planned,) = source.read_spec(snapshot), source.ranges(snapshot, rows=1000, bytes=10**9)
        piece = source.slice(read, planned.bounds, "0.0")
        case.spoil()
        with pytest.raises(SourceRefused, match=r"have the checksum .*, and .* was landed"):
            list(reader(read.kind).read(NOWHERE, read, piece, "test"))


@LAKES
def test_a_plan_that_is_not_complete_is_refused(case: Case):
    """And so is a table that no plan of ours holds."""
    with landed(case) as source, pytest.raises(SourceRefused, match="was not landed by a hydration"):
        source.snapshot()
    begin(case, ranges=3).write(0)
    with landed(case) as source, pytest.raises(SourceRefused, match=r"not hold the whole of plan .*: 1 ranges of 3"):
        source.snapshot()


@LAKES
def test_an_empty_table_is_landed_too(case: Case):
    """A plan without ranges: there is nothing to read."""
    begin(case, ranges=0)
    with landed(case) as source:
        assert (source.snapshot().total, read_back(source)) == (0, [])


@pytest.mark.parametrize("case", ["delta", "iceberg"], indirect=True)
def test_what_a_merge_has_written_is_counted(case: Case):
    """After an upsert rows lie in files without a mark: their number is known, and every one comes back."""
    begun = begin(case, mode="upsert", ranges=2)
    for seq in range(2):
        begun.write(seq)
    again = begin(case, mode="upsert", ranges=2)
    for seq in range(2):
        again.write(seq, word="new")
    with landed(case) as source:
        rows = [row for part in read_back(source) for row in part]
    assert sorted(rows) == expected(case, 0, 1, word="new")
    with opened(case) as sink:
        row = sink.held()
    assert row is not None
    assert row.plan == replace(again.plan, epoch=0)
