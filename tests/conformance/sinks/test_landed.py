"""What a hydration has landed in files is read back as a source, by its marks; every kind of table of files."""

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.io.pyarrow import parquet_files_to_data_files
from pyiceberg.table.snapshots import Operation, Summary

from airflow_provider_backpressure.connectors.lake.iceberg.data_files import put_ids
from airflow_provider_backpressure.connectors.lake.source import landed_table
from airflow_provider_backpressure.core.endpoints import NOWHERE
from airflow_provider_backpressure.core.ports import Source
from airflow_provider_backpressure.core.snapshot.bounds import FileBounds
from airflow_provider_backpressure.core.snapshot.spark_messages import Window
from airflow_provider_backpressure.core.snapshot.topic_offsets import LogWindow
from airflow_provider_backpressure.exceptions import SourceRefused
from airflow_provider_backpressure.sources import LandedSource
from airflow_provider_backpressure.spark.readers_and_writers import reader
from tests.conformance.sinks.cases import Case, DeltaCase, opened
from tests.conformance.sinks.support import begin, bounds, expected

pytestmark = [pytest.mark.integration, pytest.mark.statement("T9")]

LAKES = pytest.mark.parametrize("case", ["parquet", "delta", "iceberg"], indirect=True)
TOPIC = LogWindow(topic="t", topic_id="i", start={0: 9}, end={0: 9}).window(None)


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
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(landed_table, "MOST_FILES", 2)
            assert [len(part) for part in read_back(source)] == [20, 20, 10], "the ledger holds the names of a range"
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
@pytest.mark.parametrize("after", [None, "5"])
def test_versions_of_a_row_are_known(case: Case, after: str | None):
    """Increments that were appended are versions of a row; the first plan of them brings each row once."""
    begin(case, ranges=0, window=Window(column="id", after=None, upto="5"))
    if after is not None:
        begin(case, ranges=0, window=Window(column="id", after=after, upto="9"))
    with landed(case) as source:
        assert source.snapshot().versions == (() if after is None else ("id",))


@LAKES
def test_records_of_a_topic_are_versions(case: Case):
    """From its first plan on."""
    begin(case, ranges=0, window=TOPIC)
    with landed(case) as source:
        assert source.snapshot().versions == ("partition", "offset")


@pytest.mark.parametrize("case", ["delta", "iceberg"], indirect=True)
def test_versions_stay_known_after_a_plan_that_upserts(case: Case):
    """A merge does not take away the versions that were appended before it; the plan after it knows them too."""
    begin(case, ranges=1, window=TOPIC).write(0)
    for word in ("new", "newer"):
        begin(case, mode="upsert", ranges=1).write(0, word=word)
        with landed(case) as source:
            assert source.snapshot().versions == ("partition", "offset")


@LAKES
def test_versions_of_a_source_are_versions_of_what_it_fills(case: Case):
    """A lake that is appended to from one with several versions holds them too."""
    begin(case, ranges=1, versions=("id",)).write(0)
    with landed(case) as source:
        assert source.snapshot().versions == ("id",)


@LAKES
def test_versions_go_with_their_rows(case: Case):
    """Once a closed plan is cleared, what is planned again holds each row once."""
    closed = begin(case, ranges=1, window=TOPIC)
    closed.write(0)
    begin(case, ranges=1, clear=closed.plan.plan_id).write(0)
    with landed(case) as source:
        assert source.snapshot().versions == ()


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


def read_version(case: Case, after: str | None = None) -> str:
    """Return the version of what the table holds; ``after``: the one that was read before."""
    with landed(case) as source:
        return source.snapshot(after=after).version


def compact(case: Any) -> None:
    """Put all rows into one file, and say that none has changed, as each format's maintenance does."""
    if isinstance(case, DeltaCase):
        assert DeltaTable(case.folder).optimize.compact()["numFilesRemoved"] > 1
        return
    found = case.writable()
    old = [task.file for task in found.scan().plan_files()]
    path = f"{found.location()}/data/compacted.parquet"
    with found.io.new_output(path).create() as stream:
        rows = found.scan().to_arrow()
        pq.write_table(rows.cast(put_ids(rows.schema, found)), stream)
    with found.transaction() as transaction:
        (new,) = parquet_files_to_data_files(found.io, transaction.table_metadata, iter([path]))
        snapshot: Any = transaction.update_snapshot().overwrite()
        summarize = snapshot._summary
        snapshot._summary = lambda about: Summary(Operation.REPLACE, **summarize(about).additional_properties)
        with snapshot:
            for file in old:
                snapshot.delete_data_file(file)
            snapshot.append_data_file(new)
    assert case.table().current_snapshot().summary.operation is Operation.REPLACE


LOGS = pytest.mark.parametrize("case", ["delta", "hadoop", "iceberg"], indirect=True)


@LAKES
def test_the_same_rows_are_the_same_version(case: Case):
    """Each look finds it again, also after a plan that holds the table and brings no row."""
    fill(case, 2)
    version = read_version(case)
    assert read_version(case, after=version) == read_version(case) == version
    begin(case, window=Window(column="id", after="19", upto="29"), ranges=0)
    assert read_version(case, after=version) == version


@LOGS
def test_a_merge_that_leaves_the_number_of_rows_is_another_version(case: Case):
    """By the table's own history, also where a compaction follows."""
    fill(case, 2)
    version = read_version(case)
    again = begin(case, mode="upsert", ranges=1)
    again.write(0, word="new")
    changed = read_version(case, after=version)
    assert changed != version
    with landed(case) as source:
        assert source.snapshot().total == 20
    case_rows = case.rows()
    begin(case, mode="upsert", ranges=1).write(0, word="newer")
    compact(case)
    assert case.rows() != case_rows
    assert read_version(case, after=changed) != changed


@LOGS
def test_ranges_are_those_of_the_version(case: Case):
    """What is committed between both looks is in neither: it is found as a change afterwards."""
    fill(case, 2)
    with landed(case) as source:
        snapshot = source.snapshot()
        begin(case, mode="upsert", ranges=1).write(0, word="new")
        (planned,) = source.ranges(snapshot, rows=1000, bytes=10**9)
        assert isinstance(planned.bounds, FileBounds)
        assert planned.bounds.checksum, "files of slices, and not what the merge has written"
        assert source.snapshot(after=snapshot.version).version != snapshot.version


@LOGS
def test_a_compaction_is_the_same_version(case: Case):
    """It brings other files and other positions, and says that no row has changed."""
    fill(case, 3)
    version = read_version(case)
    compact(case)
    assert case.rows() == expected(case, 0, 1, 2)
    assert read_version(case, after=version) == version
    begin(case, mode="upsert", ranges=1).write(0, word="new")
    assert read_version(case, after=version) != version


@LOGS
def test_what_history_no_longer_says_is_another_version(case: Any):
    """A compacted table whose older entries or snapshots are gone: nothing says that its rows are those of before."""
    fill(case, 3)
    version = read_version(case)
    compact(case)
    if isinstance(case, DeltaCase):
        found = DeltaTable(case.folder)
        found.create_checkpoint()
        for entry in (case.folder / "_delta_log").glob("*.json"):
            entry.unlink()
    else:
        current = case.writable().current_snapshot().snapshot_id
        old = [each.snapshot_id for each in case.writable().snapshots() if each.snapshot_id != current]
        case.writable().maintenance.expire_snapshots().by_ids(old).commit()
    assert case.rows() == expected(case, 0, 1, 2)
    assert read_version(case, after=version) != version


@LOGS
def test_rows_of_others_are_another_version(case: Case):
    """Whoever wrote them, and whatever their number."""
    fill(case, 2)
    version = read_version(case)
    case.add_foreign()
    assert read_version(case, after=version) != version


@pytest.mark.parametrize("case", ["iceberg"], indirect=True)
def test_a_snapshot_that_counts_nothing_is_another_version(case: Any):
    """What a summary may hold beside its operation is optional, so only ours is trusted to have brought no file."""
    fill(case, 2)
    version, found = read_version(case), case.writable()
    rows = found.scan().to_arrow().slice(0, 3)
    path = f"{found.location()}/data/foreign.parquet"
    with found.io.new_output(path).create() as stream:
        pq.write_table(rows.cast(put_ids(rows.schema, found)), stream)
    with found.transaction() as transaction:
        snapshot: Any = transaction.update_snapshot().fast_append()
        snapshot._summary = lambda about: Summary(Operation.APPEND)
        with snapshot:
            snapshot.append_data_file(*parquet_files_to_data_files(found.io, transaction.table_metadata, iter([path])))
    assert len(case.rows()) == 23
    assert read_version(case, after=version) != version


@pytest.mark.parametrize("case", ["parquet"], indirect=True)
@pytest.mark.parametrize("name", ["day=1/other.parquet", "other.pq"])
def test_rows_of_others_that_readers_see_are_not_left_out(case: Any, name: str):
    """Readers look into folders and at every ending, so a copy of what is landed would lack these rows."""
    fill(case, 2)
    read_version(case)
    file = Path(case.declared.path) / name
    file.parent.mkdir(exist_ok=True)
    pq.write_table(pyarrow.table({"id": [7]}), file)
    with pytest.raises(SourceRefused, match=re.escape(f"such as {name}: they are not read")):
        read_version(case)


@pytest.mark.parametrize("case", ["parquet"], indirect=True)
def test_a_file_that_was_written_again_is_another_version(case: Any):
    """A repaired range has a file of the same name, and a folder keeps no history: its age tells them apart."""
    begun = begin(case, ranges=2)
    for seq in range(2):
        begun.write(seq)
    version = read_version(case)
    with opened(case) as sink:
        sink.discard(begun.plan, "0.0", bounds(0))
    begun.write(0, word="new")
    assert read_version(case, after=version) != version


@pytest.mark.parametrize("case", ["delta"], indirect=True)
def test_a_restore_is_another_version_unless_the_files_are_the_same(case: Any):
    """Rows of others that a RESTORE takes away, and those that it leaves."""
    fill(case, 2)
    version, before = read_version(case), DeltaTable(case.folder).version()
    case.add_foreign()
    grown = read_version(case)
    DeltaTable(case.folder).restore(before)
    assert read_version(case, after=version) == version
    assert read_version(case, after=grown) != grown
