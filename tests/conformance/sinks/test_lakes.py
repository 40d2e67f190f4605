"""What is particular to tables of files: commits that overtake each other, files, and the repair of one range."""

import os
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.types import StringType

from airflow_provider_backpressure.connectors.lake import base_table
from airflow_provider_backpressure.connectors.lake.delta.features import check_features
from airflow_provider_backpressure.connectors.lake.iceberg import data_files as iceberg_files
from airflow_provider_backpressure.connectors.lake.parquet import atomic_writes_and_lock as folders
from airflow_provider_backpressure.connectors.lake.parquet.atomic_writes_and_lock import LocalFolder
from airflow_provider_backpressure.connectors.lake.sink.target import check_columns
from airflow_provider_backpressure.connectors.lake.spark.commit_notes import pack
from airflow_provider_backpressure.connectors.lake.storage import Place
from airflow_provider_backpressure.connectors.lake.tasks import parquet_writer as lake_files
from airflow_provider_backpressure.connectors.lake.tasks import write as lake
from airflow_provider_backpressure.connectors.lake.tasks.parquet_writer import open_writer
from airflow_provider_backpressure.core.config import Mode
from airflow_provider_backpressure.core.endpoints import NOWHERE, Endpoint
from airflow_provider_backpressure.core.failpoints import Step
from airflow_provider_backpressure.core.planning.preconditions import way_out
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, Window
from airflow_provider_backpressure.core.snapshot.topic_offsets import LogWindow
from airflow_provider_backpressure.exceptions import (
    PlanSuperseded,
    RangeFailed,
    SinkRefused,
    SinkUnavailable,
    SourceRefused,
    Transient,
)
from airflow_provider_backpressure.sinks import DeltaSink, IcebergSink
from airflow_provider_backpressure.spark.column_types import arrow_schema
from tests.conformance.sinks import test_ordered
from tests.conformance.sinks.cases import COLUMNS, Case, DeltaCase, IcebergCase, ParquetCase, opened
from tests.conformance.sinks.support import Begun, batches, begin, bounds, expected, ids
from tests.conformance.sinks.test_landed import landed, read_back
from tests.conformance.sinks.test_ordered import log

pytestmark = pytest.mark.integration

LAKES, LOGS = ("delta", "hadoop", "iceberg", "parquet"), ("delta", "hadoop", "iceberg")


def only(*kinds: str) -> pytest.MarkDecorator:
    """Run a test over these kinds instead of all."""
    return pytest.mark.parametrize("case", kinds, indirect=True)


def between(monkeypatch: pytest.MonkeyPatch, then: Callable[[], Any]) -> None:
    """Let something happen once between the look at the table and the commit that was decided on it."""
    make, todo = base_table.open_table, [then]

    monkeypatch.setattr(lake, "open_table", lambda *args: overtaken(make(*args), todo))


def overtaken(found: Any, todo: list[Callable[[], Any]]) -> Any:
    """Return a table in which something happens each time behind the look, until there is nothing left to do."""
    look = found._tries

    def tries() -> Any:
        for loaded in look():
            if todo:
                todo.pop()()
            yield loaded

    found._tries = tries
    return found


@only(*LOGS)
@pytest.mark.statement("X1")
def test_a_zombie_that_was_overtaken_at_its_commit_is_refused(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """X1: it had seen that it still holds the table, and then a newer plan came."""
    old = begin(case)
    old.write(0)
    between(monkeypatch, lambda: begin(case))
    with pytest.raises(PlanSuperseded):
        old.write(1)
    assert case.rows() == expected(case, 0)


@only(*LOGS)
@pytest.mark.statement("X1")
def test_a_double_that_was_overtaken_at_its_commit_is_refused(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """X1: it had seen that there is no marker yet, and then another execution committed."""
    begun = begin(case)
    between(monkeypatch, lambda: begun.write(0, word="faster"))
    result = begun.write(0, word="slower")
    assert case.rows() == expected(case, 0, word="faster")
    assert result.checksum == begun.markers()["0.0"].checksum


@only(*LOGS)
@pytest.mark.statement("X1")
def test_an_upsert_that_was_overtaken_is_done_anew(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """X1: two ranges with rows of the same keys: the later one is merged into what the earlier one left."""
    begun = begin(case, mode="upsert")
    begun.write(0, word="old")
    between(monkeypatch, lambda: case.write(begun.spec(1), batches(case, [1, 2], word="first")))
    case.write(begun.spec(2), batches(case, [2, 4], word="second"))
    rows = {**dict(expected(case, 0, word="old")), 1: "first 1", 2: "second 2", 4: "second 4"}
    assert case.rows() == sorted(rows.items())
    assert set(begun.markers()) == {"0.0", "1.0", "2.0"}


@only(*LOGS)
@pytest.mark.statement("X1")
def test_a_range_of_a_log_that_was_overtaken_is_refused(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """X1: it had seen that the log stands where it begins, and then another moved it; nothing of it is left behind."""
    begun = log(case, {0: 0}, {0: 9})
    between(monkeypatch, lambda: begun.write({0: (0, 2)}, [(0, 1, 1, "faster")], seq=1))
    with pytest.raises(RangeFailed, match="is not at offset 0"):
        begun.write({0: (0, 2)}, [(0, 1, 1, "slower")])
    assert case.rows() == [(1, "faster")]
    assert set(begun.begun.markers()) == {"1.0"}


@only(*LOGS)
@pytest.mark.statement("X3")
def test_a_repair_that_was_overtaken_is_refused(case: Case) -> None:
    """X3: it had seen that its plan holds the table, and then a newer plan came: the rows stay."""
    begun = begin(case)
    begun.write(0)
    with opened(case) as sink:
        target: Any = sink
        overtaken(target._table, [lambda: begin(case)])
        with pytest.raises(PlanSuperseded):
            sink.discard(begun.plan, "0.0", bounds(0))
    assert case.rows() == expected(case, 0)


@only(*LOGS)
@pytest.mark.statement("X1")
def test_a_range_whose_note_is_gone_is_not_written_again(case: Case) -> None:
    """X1: the table itself says that it is in; who deletes our folder gets an error, not doubled rows."""
    begun = begin(case)
    begun.write(0)
    (note,) = root(case).rglob("_backpressure/marks/*/*.json")
    note.unlink()
    with pytest.raises(SinkUnavailable, match="is committed, but"):
        begun.write(0, attempt=2)
    assert case.rows() == expected(case, 0)


def lose_staged(case: Case, monkeypatch: pytest.MonkeyPatch, *, number: int | None = None) -> None:
    """Delete what the next attempt has staged, or one file of it, when it is about to commit."""
    real, lost = lake.reach, list[Path]()

    def losing(step: Step, *args: Any) -> None:
        if step is Step.BEFORE_SINK_COMMIT and not lost:
            seen = data_files(case)
            staged = sorted(path for path in everything(case) if path not in seen)
            lost.extend(staged if number is None else [staged[number]])
            for path in lost:
                path.unlink()
            assert lost
        real(step, *args)

    monkeypatch.setattr(lake, "reach", losing)


@only("parquet")
@pytest.mark.statement("X1")
def test_a_plan_whose_task_was_killed_while_it_cleared_the_folder_clears_it(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X1: files of the closed plan would stay beside its own, and a target that is not empty is refused for ever."""
    first = begin(case)
    first.write(0)
    first.write(1)
    real, dropped = LocalFolder.drop, []

    def dying(folder: LocalFolder, name: str) -> None:
        if dropped:
            raise KeyboardInterrupt
        dropped.append(name)
        real(folder, name)

    plan_id = "f" * 32
    with monkeypatch.context() as patched:
        patched.setattr(LocalFolder, "drop", dying)
        with pytest.raises(KeyboardInterrupt):
            begin(case, clear=first.plan.plan_id, plan_id=plan_id)
    assert len(case.rows()) == 10
    again = begin(case, clear=first.plan.plan_id, plan_id=plan_id)
    assert case.rows() == []
    again.write(2)
    begin(case, clear=first.plan.plan_id, plan_id=plan_id)
    assert case.rows() == expected(case, 2)


LOST = "deleted before it was committed"


@only(*LAKES)
@pytest.mark.statement("X1")
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_staged_files_that_were_removed_are_written_again(
    case: Case, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """X1: an attempt whose files are gone commits nothing, no marker either; the next one brings all rows."""
    if mode == "upsert" and not case.upserts:
        pytest.skip("Parquet files take append only.")
    begun = begin(case, mode=mode)
    lose_staged(case, monkeypatch)
    with pytest.raises(Transient, match=LOST):
        begun.write(0)
    assert (begun.markers(), case.rows()) == ({}, [])
    assert begun.write(0, attempt=2).rows == 10
    assert case.rows() == expected(case, 0)


@only(*LOGS)
@pytest.mark.statement("X1")
@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_one_staged_file_of_several_that_was_removed_fails_the_range(
    case: Case, monkeypatch: pytest.MonkeyPatch, mode: str, number: int
) -> None:
    """X1: also where the commit has read the rows of the others by then."""
    monkeypatch.setattr(lake_files, "GROUP_BYTES", 1)
    begun = begin(case, mode=mode)
    monkeypatch.setattr("airflow_provider_backpressure.connectors.lake.delta.table.DeltaLakeTable.file_bytes", 100)
    monkeypatch.setattr("airflow_provider_backpressure.connectors.lake.iceberg.table.IcebergTable.file_bytes", 100)
    lose_staged(case, monkeypatch, number=number)
    with pytest.raises(RangeFailed, match=LOST):
        begun.write(0)
    assert (begun.markers(), case.rows(), data_files(case)) == ({}, [], [])
    begun.write(0, attempt=2)
    assert case.rows() == expected(case, 0)


@only(*LOGS)
@pytest.mark.statement("X1")
def test_staged_records_of_a_log_that_were_removed_are_written_again(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X1: neither do the partitions move on."""
    begun = log(case, {0: 0}, {0: 9})
    records: list[test_ordered.Record] = [(0, 0, 1, "old"), (0, 1, 1, "new"), (0, 2, 2, None)]
    lose_staged(case, monkeypatch)
    with pytest.raises(RangeFailed, match=LOST):
        begun.write({0: (0, 3)}, records)
    assert (begun.begun.markers(), case.rows()) == ({}, [])
    begun.write({0: (0, 3)}, records, attempt=2)
    assert case.rows() == [(1, "new")]


@only(*LOGS)
@pytest.mark.statement("X1")
def test_a_staged_file_with_fewer_rows_fails_the_range(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """X1: what is merged is counted as it was written."""
    begun = begin(case, mode="upsert")
    real = lake.reach

    def shorten(step: Step, *args: Any) -> None:
        if step is Step.BEFORE_SINK_COMMIT:
            (staged,) = everything(case)
            pq.write_table(pq.read_table(staged).slice(0, 7), staged)
        real(step, *args)

    monkeypatch.setattr(lake, "reach", shorten)
    with pytest.raises(RangeFailed, match=r"hold 7 rows .* and 10 were written"):
        begun.write(0)
    assert (begun.markers(), case.rows()) == ({}, [])


@only("delta")
@pytest.mark.statement("X1")
def test_a_vacuum_of_staged_files_loses_no_rows(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """X1: without a retention it deletes what no version of the log names."""
    from deltalake import DeltaTable

    assert isinstance(case, DeltaCase)
    begun, folder = begin(case, mode="upsert"), case.folder

    def vacuum() -> None:
        options: dict[str, Any] = {"enforce_retention_duration": False, "dry_run": False, "full": True}
        assert len(DeltaTable(folder).vacuum(retention_hours=0, **options)) == 1

    between(monkeypatch, vacuum)
    with pytest.raises(RangeFailed, match=LOST):
        begun.write(0)
    begun.write(0, attempt=2)
    assert case.rows() == expected(case, 0)


@only("delta")
def test_files_whose_note_is_gone_are_not_tidied_up(case: Case) -> None:
    """The log still names them, so readers see them; ``uninstall`` keeps every row."""
    begun = begin(case)
    begun.write(0)
    begun.write(1)
    min(root(case).rglob("_backpressure/marks/*/*.json")).unlink()
    with opened(case) as sink:
        sink.erase()
    assert case.rows() == expected(case, 0, 1)


@only("parquet")
@pytest.mark.statement("X1")
@pytest.mark.parametrize(
    "step",
    ["connectors.lake.parquet.atomic_writes_and_lock.sync", "connectors.lake.parquet.atomic_writes_and_lock.os.link"],
)
@pytest.mark.parametrize("renewed", [False, True])
def test_an_attempt_frozen_in_its_commit_holds_nobody_up(
    case: Case, monkeypatch: pytest.MonkeyPatch, step: str, renewed: bool
) -> None:
    """X1: it stands still as its file is synced or about to get its name; thawed it is refused, and leaves none."""
    old = begin(case)
    held, go = threading.Event(), threading.Event()
    place = f"airflow_provider_backpressure.{step}"
    real = folders.sync if step.endswith("sync") else os.link
    frozen: list[int] = []

    def freezing(*paths: Path) -> None:
        if "attempts" in str(paths[0]) and not frozen:
            frozen.append(1)
            held.set()
            assert go.wait(60)
        real(*paths)

    monkeypatch.setattr(place, freezing)
    monkeypatch.setattr(folders, "LOCK_SECONDS", 0.2)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(old.write, 0, word="frozen")
        try:
            assert held.wait(60)
            newer = renew(case, old) if renewed else begin(case)
            newer.write(1)
        finally:
            go.set()
        with pytest.raises(PlanSuperseded):
            writing.result(60)
    newer.write(0)
    assert case.rows() == expected(case, 0, 1)
    assert set(newer.markers()) == {"0.0", "1.0"}


def renew(case: Case, begun: Begun) -> Begun:
    """The same plan under a newer epoch, as a new life of the lane takes it up."""
    with opened(case) as sink:
        epoch = sink.renew(begun.plan.plan_id)
    assert epoch is not None
    return replace(begun, plan=replace(begun.plan, epoch=epoch))


@only("parquet")
def test_whoever_holds_the_fence_for_long_is_named(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only those who begin a plan or repair a range hold it; one that is stuck in there is to be ended by hand."""
    assert isinstance(case, ParquetCase)
    monkeypatch.setattr(folders, "LOCK_SECONDS", 0.2)
    words = rf"is locked for 0.2 s by process {os.getpid()} on .*: end that"
    with LocalFolder(Place(str(case.folder), NOWHERE)).hold_fence(), pytest.raises(SinkUnavailable, match=words):
        begin(case)
    assert begin(case).write(0).rows == 10


@only(*LOGS)
def test_a_large_range_has_several_files_of_a_size(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file ends near its size, and all of them are one commit and one range."""
    monkeypatch.setattr(lake_files, "GROUP_BYTES", 1)
    begun = begin(case)
    monkeypatch.setattr("airflow_provider_backpressure.connectors.lake.delta.table.DeltaLakeTable.file_bytes", 100)
    monkeypatch.setattr("airflow_provider_backpressure.connectors.lake.iceberg.table.IcebergTable.file_bytes", 100)
    result = begun.write(0)
    assert len(data_files(case)) == 3
    assert case.rows() == expected(case, 0)
    assert begun.read_back(0).checksum == result.checksum


@only(*LAKES)
def test_a_range_is_one_file(case: Case) -> None:
    """However many batches it comes in; its footer says whose it is, and nothing else lies about."""
    begun = begin(case)
    begun.write(0)
    (file,) = data_files(case)
    assert pq.read_metadata(file).num_row_groups == 1
    assert f'"plan_id": "{begun.plan.plan_id}"'.encode() in pq.read_metadata(file).metadata[b"backpressure"]


@only(*LAKES)
def test_what_dead_attempts_left_is_tidied_up(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of an attempt that died lie where no reader looks, until the plan is complete."""
    begun = begin(case)
    monkeypatch.setattr(lake_files, "GROUP_BYTES", 1)
    monkeypatch.setattr(lake_files.Files, "drop", lambda self: None)
    with pytest.raises(Exception, match="broke off"):
        begun.write(0, whole=False)
    begun.write(0, attempt=2)
    before = len(everything(case))
    with opened(case) as sink:
        sink.complete(begun.plan)
        sink.publish(begun.plan)
    assert len(everything(case)) == before - (0 if isinstance(case, IcebergCase) else 1)
    assert case.rows() == expected(case, 0)


@only(*LOGS)
@pytest.mark.statement("X3")
def test_a_compacted_table_is_compared_as_a_whole(case: Case) -> None:
    """X3: rows no longer lie in their ranges' files; markers outlive that, and doubles are still refused."""
    begun = begin(case)
    for seq in range(3):
        begun.write(seq)
    compact(case)
    assert len(data_files(case)) == 1
    with pytest.raises(SinkRefused, match="no longer lie"):
        begun.read_back(0)
    assert begun.read_back(None).rows == 30
    with opened(case) as sink, pytest.raises(SinkRefused, match="no longer lie"):
        sink.discard(begun.plan, "1.0", bounds(1))
    begun.write(1, attempt=2, word="double")
    assert case.rows() == expected(case, 0, 1, 2)
    with opened(case) as sink:
        assert sink.find_surplus(begun.plan) == "", "the files are not ours, and their rows are"
    case.add_foreign()
    assert begun.read_back(None).rows == 33


@only(*LOGS)
@pytest.mark.statement("X3")
def test_offsets_that_came_later_are_counted_in_a_compacted_table(case: Case) -> None:
    """X3: an increment of a topic is found by partition and offset, and by nothing where they are no columns."""
    case.columns = test_ordered.COLUMNS
    window = LogWindow(topic="t", topic_id="i", start={0: 0}, end={0: 9}).window(None)
    first = begin(case, window=window)
    case.write(first.spec(0), test_ordered.batches([(0, 0, 1, "old"), (0, 8, 2, "old")], marked=False))
    window = LogWindow(topic="t", topic_id="i", start={0: 9, 1: 0}, end={0: 12, 1: 2}).window("before")
    later = begin(case, window=window)
    records: list[test_ordered.Record] = [(0, 9, 3, "new"), (0, 11, 4, "new"), (1, 0, 5, "new")]
    result = case.write(later.spec(1), test_ordered.batches(records, marked=False))
    compact(case)
    found = later.read_back(None, window)
    assert (found.rows, found.checksum) == (3, result.checksum)
    empty = LogWindow(topic="t", topic_id="i", start={0: 9}, end={0: 9}).window("before")
    assert later.read_back(None, empty).rows == 0
    bare = replace(later, plan=replace(later.plan, write=replace(later.plan.write, columns=test_ordered.COLUMNS[3:])))
    with pytest.raises(SinkRefused, match="has no column offset, partition"):
        bare.read_back(None, window)


@only("delta")
def test_marks_outlive_checkpoints_and_clean_logs(case: Case) -> None:
    """The log is cut down to a checkpoint, files that nobody needs are deleted: every marker is still there."""
    from deltalake import DeltaTable

    assert isinstance(case, DeltaCase)
    begun = begin(case)
    begun.write(0)
    begun.write(1)
    vacuumed = DeltaTable(case.folder).vacuum(
        retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True
    )
    assert vacuumed == []
    found = DeltaTable(case.folder)
    found.create_checkpoint()
    for entry in (case.folder / "_delta_log").glob("*.json"):
        if int(entry.stem) < found.version():
            entry.unlink()
    assert set(begun.markers()) == {"0.0", "1.0"}
    begun.write(1, attempt=2, word="double")
    assert case.rows() == expected(case, 0, 1)


@only("delta")
@pytest.mark.statement("X1", "X3")
@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize("feature", ["DeletionVectors", "ColumnMapping"])
def test_a_feature_that_came_after_planning_is_refused(case: Case, mode: str, feature: str) -> None:
    """X1, X3: each commit asks the table as it is then, and so does what reads its files by themselves."""
    from deltalake import DeltaTable, TableFeatures

    assert isinstance(case, DeltaCase)
    begun = begin(case, mode=mode, ranges=1)
    begun.write(0)
    found = DeltaTable(case.folder)
    found.alter.add_feature(getattr(TableFeatures, feature), allow_protocol_versions_increase=True)
    with pytest.raises(SinkRefused, match="features that are not supported"):
        begun.write(1)
    with pytest.raises(SinkRefused, match="features that are not supported"):
        begun.read_back(None)
    with pytest.raises(SourceRefused, match="features that are not supported"), landed(case) as source:
        source.snapshot()


@only("delta")
@pytest.mark.statement("X5")
def test_a_table_that_takes_only_new_rows_is_refused_where_rows_change(case: Case) -> None:
    """X5: when it is planned, and by the merge where that came later: the library says that another was quicker."""
    from deltalake import DeltaTable

    assert isinstance(case, DeltaCase)
    begin(case, mode="upsert", ranges=1).write(0)
    begun = begin(case, mode="upsert", ranges=1)
    DeltaTable(case.folder).alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(SinkRefused, match=r"takes only new rows \(delta.appendOnly\)"):
        begun.write(0, word="changed")
    with pytest.raises(SinkRefused, match=r"takes only new rows \(delta.appendOnly\)"):
        begin(case, mode="upsert", ranges=1)


@only("delta")
@pytest.mark.statement("X5")
@pytest.mark.parametrize(
    "bound", ["delta.invariants", "delta.generationExpression", "delta.identity.start", "__CHAR_VARCHAR_TYPE_STRING"]
)
def test_a_column_whose_values_are_bound_is_refused(case: DeltaCase, tmp_path: Path, bound: str) -> None:
    """X5: Delta keeps such a rule with the column, of a structure's parts too, and only Spark would hold to it."""
    from deltalake import DeltaTable, Field, Schema
    from deltalake.schema import StructType

    part = Field("w", "long", metadata={bound: "1"})
    schema = Schema([Field("id", "long"), Field("s", StructType([part]))])
    found = DeltaTable.create(str(tmp_path / "bound"), schema=schema)
    with pytest.raises(SinkRefused, match=rf"features that are not supported: {re.escape(bound)} of w\."):
        check_features(found, "t")


@only("delta")
@pytest.mark.statement("X3")
@pytest.mark.parametrize("ours", [True, False])
def test_filters_find_every_row_that_was_merged(tmp_path: Path, case: DeltaCase, ours: bool) -> None:
    """X3: the library's merge writes wrong bounds of decimals and infinities, and readers go by bounds."""
    from deltalake import DeltaTable

    path, n = str(tmp_path / "merged"), Decimal("0.00000012")
    columns = (
        Column(name="id", type="bigint", nullable=False),
        Column(name="n", type="numeric(20,10)"),
        Column(name="f", type="double precision"),
    )
    rows = pyarrow.table({"id": [1, 2], "n": [n, n], "f": [float("inf"), 1.5]}, schema=arrow_schema(columns))
    if not ours:
        DeltaTable.create(path, arrow_schema(columns))
    with closing(DeltaSink(path=path).open(NOWHERE)) as sink:
        write = sink.fit(columns, mode="upsert", key=("id",))
        sink.prepare(write)
        sink.begin(replace(begin(case).plan, write=write, mode=Mode.UPSERT))
    table = DeltaTable(path)
    merging = table.merge(rows, "t.id = s.id", source_alias="s", target_alias="t")
    merging.when_matched_update_all().when_not_matched_insert_all().execute()
    for condition in (("n", ">=", Decimal(0)), ("f", "<", 100.0)):
        assert table.to_pyarrow_table(filters=[condition]).num_rows == (2 if condition[0] == "n" else 1)


@only("iceberg", "hadoop")
@pytest.mark.statement("X1", "X6")
def test_a_column_that_others_add_is_not_emptied_by_a_merge(case: IcebergCase) -> None:
    """X1, X6: between two ranges; rows that are merged have no value of it."""
    begun = begin(case, mode="upsert")
    begun.write(0)
    with case.writable().update_schema() as change:
        change.add_column("extra", StringType())
    with pytest.raises(SinkRefused, match="has the column extra, which the arriving rows do not have"):
        begun.write(1)


@pytest.mark.statement("X3")
def test_files_that_a_merge_writes_have_no_bounds_of_floats() -> None:
    """X3: bounds leave NaN out, and filters would pass its rows over."""
    schema, place = pyarrow.schema([("id", pyarrow.int64()), ("f", pyarrow.float64())]), pyarrow.BufferOutputStream()
    with open_writer(place, schema) as writer:
        writer.write_table(pyarrow.table({"id": [1], "f": [float("nan")]}, schema=schema))
    group = pq.ParquetFile(place.getvalue()).metadata.row_group(0)
    assert [group.column(at).statistics is not None for at in (0, 1)] == [True, False]


@only("parquet")
@pytest.mark.statement("X3")
@pytest.mark.parametrize("name", ["part-m-00000.parquet", "part-00000-c000.parquet"])
def test_files_of_others_are_not_taken_for_those_of_an_earlier_plan(case: ParquetCase, name: str) -> None:
    """X3: Sqoop and Spark begin names with ``part-`` too. Under an increment files of earlier plans are no surplus."""
    first = begin(case)
    first.write(0)
    second = begin(case, window=Window(column="id", after="10", upto="20"))
    second.write(1)
    with opened(case) as sink:
        assert sink.find_surplus(second.plan) == ""
        pq.write_table(pyarrow.table({"id": [99], "name": ["foreign"]}), case.folder / name)
        assert name in sink.find_surplus(second.plan)


@only("parquet")
@pytest.mark.statement("X1")
@pytest.mark.parametrize("name", ["000000_0", "X.PARQUET", "dt=2024-01-01/x.parquet"])
def test_files_that_only_readers_find_are_somebody_else_s(case: ParquetCase, name: str) -> None:
    """X1: of Hive, with another ending or in a partition's folder. Hidden ones are no data."""
    begun = begin(case)
    begun.write(0)
    with opened(case) as sink:
        (case.folder / "_SUCCESS").write_text("x")
        assert sink.find_surplus(begun.plan) == ""
        foreign = case.folder / name
        foreign.parent.mkdir(exist_ok=True)
        (own,) = case.folder.glob("part-*.parquet")
        foreign.write_bytes(own.read_bytes())
        assert name in sink.find_surplus(begun.plan)
        own.unlink()
        assert sink.holds_rows()


@only("iceberg")
def test_marks_outlive_expired_snapshots(case: Case) -> None:
    """Snapshots that brought slices expire: every marker is still there."""
    assert isinstance(case, IcebergCase)
    begun = begin(case)
    begun.write(0)
    begun.write(1)
    found = case.table()
    current = found.current_snapshot()
    assert current is not None
    old = [each.snapshot_id for each in found.snapshots() if each.snapshot_id != current.snapshot_id]
    found.maintenance.expire_snapshots().by_ids(old).commit()
    assert len(case.table().snapshots()) == 1
    assert set(begun.markers()) == {"0.0", "1.0"}
    begun.write(1, attempt=2, word="double")
    assert case.rows() == expected(case, 0, 1)
    assert "commit.retry.num-retries" not in case.table().properties


@only(*LAKES)
def test_marks_of_the_plan_before_are_still_found(case: Case) -> None:
    """An increment's plan does not make those of the plan before unreadable."""
    first = begin(case)
    first.write(0)
    second = begin(case)
    second.write(1)
    assert set(first.markers()) == {"0.0"}
    again = begin(case, plan_id=second.plan.plan_id)
    assert set(again.markers()) == {"1.0"}
    assert again.plan.epoch > second.plan.epoch


def data_files(case: Any) -> list[Path]:
    """The files that readers see."""
    if isinstance(case, ParquetCase):
        return sorted(case.folder.glob("*.parquet"))
    if isinstance(case, DeltaCase):
        from deltalake import DeltaTable

        return sorted(map(Path, DeltaTable(case.folder).file_uris()))
    tasks = case.table().scan().plan_files()
    return sorted(Path(task.file.file_path.removeprefix("file://")) for task in tasks)


def everything(case: Any) -> list[Path]:
    """Every Parquet file, seen or not, whole or not."""
    return [path for path in root(case).rglob("*.parquet*") if "_delta_log" not in path.parts]


def root(case: Any) -> Path:
    """The folder in which a case has everything."""
    return Path(case.catalog["warehouse"].removeprefix("file://")) if isinstance(case, IcebergCase) else case.folder


def compact(case: Any) -> None:
    """Write all rows again into one file, as a maintenance job does."""
    if isinstance(case, DeltaCase):
        from deltalake import DeltaTable

        DeltaTable(case.folder).optimize.compact()
    else:
        found = case.writable()
        found.overwrite(found.scan().to_arrow())


def test_places_and_kinds_are_checked(tmp_path: Path) -> None:
    """An unknown kind is named, and a place that is no folder is refused in one sentence."""
    from airflow_provider_backpressure.connectors.lake.storage import check_path
    from airflow_provider_backpressure.exceptions import InvalidDeclaration

    with pytest.raises(InvalidDeclaration, match="knows no orc"):
        base_table.open_table("orc", "{}", NOWHERE)
    for wrong in ("relative/path", "s3://bucket", "hdfs://there/it/is", ""):
        with pytest.raises(InvalidDeclaration, match="absolute path or s3://bucket/prefix"):
            check_path(wrong, "path")
    for elsewhere in ("/lake/../etc", "/lake/..", "s3://bucket/../t", "/la\x00ke"):
        with pytest.raises(InvalidDeclaration, match=r"without '\.\.'"):
            check_path(elsewhere, "path")
    for misread in ("/lake/a%20b", "/lake/a\\b", "s3://bucket/a#b", "s3://bucket/a?b"):
        with pytest.raises(InvalidDeclaration, match=r"DeltaSink\.path must not contain .* another folder"):
            DeltaSink(path=misread).open(NOWHERE)
    for misread in ("file:///lake/a#b", "/lake/a?b"):
        with pytest.raises(InvalidDeclaration, match=r"warehouse of IcebergSink\.catalog must not contain"):
            IcebergSink(table="raw.t", catalog={"type": "sql", "warehouse": misread}).open(NOWHERE)
    assert DeltaSink(path="/lake/100% #1?").open(NOWHERE).identity.endswith("/lake/100% #1?")
    assert check_path("file:///data/t/", "path") == "/data/t"
    assert check_path("/data/..t", "path") == "/data/..t"
    assert Place(str(tmp_path), NOWHERE).names("nowhere") == []


def test_a_catalog_in_postgresql_has_its_login_from_a_connection(database: Endpoint, tmp_path: Path) -> None:
    """The declaration names the warehouse; what is secret is the connection's."""
    catalog = {"name": "lake", "warehouse": f"file://{tmp_path}"}
    case = IcebergCase(
        declared=IcebergSink(table="raw.t", catalog=catalog, conn_id="catalog"), catalog=catalog, endpoint=database
    )
    begun = begin(case)
    begun.write(0)
    begun.write(0, attempt=2)
    assert begun.read_back(0).checksum == begun.markers()["0.0"].checksum
    assert database.password not in begun.plan.to_json()
    with opened(case) as sink:
        assert sink.identity == f"iceberg://{database.address}/lake/raw.t"
        assert sink.holds_rows()


@only(*LAKES)
def test_advice_names_what_the_format_can_do(case: Case) -> None:
    """Of a target that holds rows, and of one that cannot be replaced: files without a merge take append alone."""
    with opened(case) as sink:
        merges = not isinstance(case, ParquetCase)
        assert sink.modes == ((Mode.APPEND, Mode.UPSERT) if merges else (Mode.APPEND,))
        assert ("mode='upsert'" in way_out(sink)) is merges
        assert "replace" not in way_out(sink)
        with pytest.raises(SinkRefused) as raised:
            sink.fit(case.columns, mode="replace", key=())
        assert ("upsert" in str(raised.value)) is merges


def test_all_columns_that_do_not_fit_are_named_at_once() -> None:
    """Those that are missing, those that do not arrive, other types, and what may be NULL."""
    there = pyarrow.schema(
        [
            ("a", pyarrow.int64()),
            ("b", pyarrow.string()),
            pyarrow.field("c", pyarrow.int64(), nullable=False),
            ("d", "i8"),
        ]
    )
    arriving = pyarrow.schema([("a", pyarrow.string()), ("b", pyarrow.int64()), ("c", pyarrow.int64()), ("e", "i8")])
    with pytest.raises(SinkRefused) as raised:
        check_columns("lake.t", there, arriving)
    assert str(raised.value) == (
        "Rows cannot go into lake.t: it has no column e; d of the table does not arrive; column a arrives as string "
        "and is int64 in the table; column b arrives as int64 and is string in the table; column c takes no NULL in "
        "the table, and may be NULL in the source."
    )


def widen(case: Case) -> None:
    """Let the target have the second column too, as a planner does before it begins a plan of both."""
    with opened(case) as sink:
        sink.widen(COLUMNS[1:])


@only(*LOGS)
@pytest.mark.statement("R2")
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_table_is_given_a_column_in_which_earlier_rows_are_null(case: Case, mode: str) -> None:
    """R2: also by a planner that was killed behind it and tries again; what was landed before is read with it."""
    case.columns = COLUMNS[:1]
    begin(case, mode=mode).write(0)
    widen(case)
    widen(case)
    case.columns = COLUMNS
    new = begin(case, mode=mode, ranges=1)
    case.write(new.spec(0), batches(case, ids(1)))
    assert case.rows() == [*((key, None) for key in ids(0)), *expected(case, 1)]
    assert new.read_back(0 if mode == "append" else None).rows == (10 if mode == "append" else 20)
    with landed(case) as source:
        assert sorted(row for part in read_back(source) for row in part) == case.rows()
    if mode == "upsert":
        case.write(new.spec(1), batches(case, ids(0)))
        assert case.rows() == expected(case, 0, 1)
    with pytest.raises(SinkRefused, match="has a column name already, with values in rows"):
        widen(case)


@only(*LOGS)
@pytest.mark.statement("R2", "X1")
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_zombie_of_the_schema_before_is_refused(case: Case, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """R2, X1: it had seen that it holds the table; then came the column, a plan with it, and that plan's rows."""
    case.columns = COLUMNS[:1]
    old = begin(case, mode=mode)

    def evolve() -> None:
        widen(case)
        case.columns = COLUMNS
        begin(case, mode=mode).write(0)

    slow = batches(case, ids(0))
    between(monkeypatch, evolve)
    with pytest.raises(PlanSuperseded):
        case.write(old.spec(0), slow)
    assert case.rows() == expected(case, 0)


@only(*LOGS)
@pytest.mark.statement("R2", "X1")
def test_a_range_that_is_overtaken_by_a_column_alone_has_null_in_it(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R2, X1: its plan still holds the table, as after a planner that was killed between column and plan."""
    case.columns = COLUMNS[:1]
    old = begin(case)
    between(monkeypatch, lambda: widen(case))
    old.write(0)
    assert case.rows() == [(key, None) for key in ids(0)]
    case.columns = COLUMNS
    begin(case).write(1)
    assert case.rows() == [*((key, None) for key in ids(0)), *expected(case, 1)]


def exchange_column(case: Case) -> None:
    """Drop the second column, and add another one of its name."""
    assert isinstance(case, IcebergCase)
    with case.writable().update_schema() as update:
        update.delete_column("name")
    widen(case)


@only("iceberg", "hadoop")
@pytest.mark.statement("R2")
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_column_that_is_dropped_and_added_has_none_of_its_old_values(case: Case, mode: str) -> None:
    """R2: readers find columns by the ids in each file; files that a merge writes again have them too."""
    begin(case, mode=mode).write(0)
    exchange_column(case)
    assert case.rows() == [(key, None) for key in ids(0)]
    new = begin(case, mode=mode, ranges=1)
    case.write(new.spec(0), batches(case, ids(1)))
    if mode == "upsert":
        case.write(new.spec(1), batches(case, ids(0)[:1]))
        assert case.rows() == [*expected(case, 0)[:1], *((key, None) for key in ids(0)[1:]), *expected(case, 1)]
        exchange_column(case)
        assert case.rows() == [(key, None) for key in [*ids(0), *ids(1)]]
    else:
        assert case.rows() == [*((key, None) for key in ids(0)), *expected(case, 1)]
        assert new.read_back(0).rows == 10
        with landed(case) as source:
            assert sorted(row for part in read_back(source) for row in part) == case.rows()


@only("iceberg", "hadoop")
@pytest.mark.statement("R2", "X1")
def test_a_column_that_is_exchanged_while_a_range_is_written_has_its_values(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R2, X1: the files of the attempt have another column's id, so the range is written again."""
    begun = begin(case)
    between(monkeypatch, lambda: exchange_column(case))
    with pytest.raises(RangeFailed, match="The column name was dropped or renamed in the Iceberg table while"):
        begun.write(0)
    assert case.rows() == []
    begun.write(0)
    assert case.rows() == expected(case, 0)


@only("iceberg", "hadoop")
@pytest.mark.statement("R2")
def test_a_column_whose_name_has_values_in_files_without_ids_is_refused(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R2: those of earlier versions of this package; a column of them that was dropped is back with its values."""
    monkeypatch.setattr(iceberg_files, "put_ids", lambda schema, table: schema)
    begin(case)
    with case.writable().transaction() as transaction:
        mapping = transaction.table_metadata.schema().name_mapping.model_dump_json()
        transaction.set_properties({"schema.name-mapping.default": mapping})
    begin(case).write(0)
    assert case.rows() == expected(case, 0)
    with case.writable().update_schema() as update:
        update.delete_column("name")
    for _ in range(2):
        with pytest.raises(SinkRefused, match="has a column name already, with values in rows"):
            widen(case)


@only("iceberg", "hadoop")
@pytest.mark.statement("R2")
def test_landed_rows_of_a_column_that_was_renamed_are_not_taken_for_null(case: Case) -> None:
    """A part of R2: files of before have it under its name of before."""
    assert isinstance(case, IcebergCase)
    begin(case).write(0)
    with case.writable().update_schema() as update:
        update.rename_column("name", "title")
    case.columns = (COLUMNS[0], replace(COLUMNS[1], name="title"))
    begin(case, ranges=0)
    with landed(case) as source:
        assert [row for part in read_back(source) for row in part] == expected(case, 0)


@only("delta")
@pytest.mark.statement("R2")
def test_a_column_that_delta_cannot_hold_beside_the_others_is_not_added(case: Case) -> None:
    """A part of R2: by its name, and all or none."""
    begin(case).write(0)
    with pytest.raises(SinkRefused, match="cannot distinguish the columns"), opened(case) as sink:
        sink.widen([Column(name="more", type="text"), Column(name="NAME", type="text")])
    assert case.rows() == expected(case, 0)
    begin(case)


@only("parquet")
@pytest.mark.statement("R2")
def test_a_folder_of_parquet_is_given_no_column(case: Case) -> None:
    """A part of R2: its files are all alike; a folder without files has no columns yet."""
    more = [Column(name="more", type="text")]
    with opened(case) as sink:
        sink.widen(more)
    begin(case).write(0)
    with pytest.raises(SinkRefused, match="cannot be given the column more: its files"), opened(case) as sink:
        sink.widen(more)


@only("delta", "iceberg")
@pytest.mark.statement("X1")
def test_a_table_that_spark_writes_is_no_plans_of_ours(case: Any) -> None:
    """X1: a plan of SparkTableSink is in a property of the table; its rows stay."""
    begin(case, ranges=1).write(0)
    with opened(case) as sink:
        sink.erase()
    held = {"backpressure.plan": pack({"plan_id": "p"})}
    if isinstance(case, DeltaCase):
        DeltaTable(case.folder).alter.set_table_properties(held, raise_if_not_exists=False)
    else:
        with case.writable().transaction() as transaction:
            transaction.set_properties(held)
    with pytest.raises(SinkRefused, match="is held by a plan of SparkTableSink"):
        begin(case, ranges=1)
    assert len(case.rows()) == 10
