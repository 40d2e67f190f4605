"""The suite over tables that Spark's own connectors write, and what is so of them alone."""

import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from unittest.mock import Mock

import pyarrow
import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException

from airflow_provider_backpressure.connectors.lake.spark.commit_notes import note_of_clearing, note_of_fence
from airflow_provider_backpressure.connectors.lake.spark.iceberg import IcebergTable
from airflow_provider_backpressure.connectors.lake.spark.table import open_table
from airflow_provider_backpressure.connectors.lake.tasks import spark_write
from airflow_provider_backpressure.connectors.lake.tasks.materialised_rows import select_counted
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, SliceResult
from airflow_provider_backpressure.exceptions import BackpressureError, PlanSuperseded, SinkRefused
from airflow_provider_backpressure.runners.connect_session import Address
from airflow_provider_backpressure.runners.session_settings import TIME_ZONE
from airflow_provider_backpressure.spark.stream_end import append_end
from tests.conformance.sinks.cases import Case, SparkTableCase, opened, spark_session
from tests.conformance.sinks.support import Begun, batches, begin, bounds, expected, ids
from tests.conformance.sinks.test_commits import (  # noqa: F401
    test_a_closed_plan_is_cleared,
    test_a_marker_with_other_bounds_is_not_taken_for_the_range,
    test_a_plan_that_holds_the_target_already_clears_nothing,
    test_a_second_attempt_changes_nothing,
    test_a_zombie_of_an_older_plan_is_refused,
    test_an_empty_range_has_a_marker,
    test_an_older_epoch_of_the_same_plan_is_refused,
    test_half_a_range_is_never_seen,
    test_markers_are_found_by_slice,
    test_ranges_that_commit_at_once_all_come_in,
    test_rows_and_marker_appear_together,
    test_what_a_sink_cannot_do_is_refused_at_once,
)
from tests.conformance.sinks.test_plan_rows import (  # noqa: F401
    test_a_newer_plan_has_the_row,
    test_a_plan_takes_the_target_only_from_the_one_that_it_was_made_to_follow,
    test_markers_hold_the_bounds_of_their_ranges,
    test_the_plan_comes_back_whole,
    test_without_a_plan_there_is_no_row,
)
from tests.conformance.sinks.test_upserts import (  # noqa: F401
    test_a_window_is_read_back_by_its_values,
    test_an_empty_upsert_has_a_marker,
    test_doubles_within_a_range_are_refused,
    test_half_an_upsert_is_never_seen,
    test_rows_take_the_place_of_those_with_their_key,
)

pytestmark = [
    pytest.mark.integration,
    pytest.mark.long,
    pytest.mark.statement("K1"),
    pytest.mark.parametrize("case", ["spark_delta", "spark_iceberg"], indirect=True),
]


def write_late(case: Case, begun: Begun, monkeypatch: pytest.MonkeyPatch, mode: str) -> list[Begun]:
    """Write a range whose lane is frozen before it publishes until a newer plan has the target; return that plan.

    The newer plan knows what was submitted only by the number of the older one's ranges.
    """
    newer: list[Begun] = []
    publish = spark_write._publish

    def freeze(*arguments: object) -> object:
        if not newer:
            newer.append(begin(case, mode=mode))
        return publish(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(spark_write, "_publish", freeze)
    with pytest.raises(PlanSuperseded):
        case.write(begun.spec(0), batches(case, ids(0)))
    return newer


@pytest.mark.statement("K1", "X1")
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_late_attempt_is_refused(case: Case, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """K1, X1: also where it has asked who holds the table for the last time: its token is taken by then."""
    begun = begin(case, ranges=2, mode=mode)
    (newer,) = write_late(case, begun, monkeypatch, mode)
    assert case.rows() == []
    monkeypatch.undo()
    newer.write(0, word="new")
    assert case.rows() == expected(case, 0, word="new")


@pytest.mark.statement("K1", "X1")
def test_what_is_fenced_is_what_was_submitted(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """K1, X1: the ledger says what was submitted; a plan of a million ranges does not cost a million commits."""
    begun = begin(case, ranges=1_000_000)
    with opened(case) as sink:
        sink.tell_submitted({begun.plan.plan_id: ["0.0", "7.0"]}.get)  # type: ignore[attr-defined]
        assert sink.renew(begun.plan.plan_id) == begun.plan.epoch + 1
    assert isinstance(case, SparkTableCase)
    table = open_table(spark_session(case.cluster.url), case.place["format"], case.place["table"])
    tokens = {note_of_fence(begun.plan.plan_id, each, begun.plan.epoch).token for each in ("0.0", "7.0")}
    assert set(table.state().fences) == tokens


@pytest.mark.statement("X1")
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_of_racing_attempts_exactly_one_is_in(case: Case, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """X1: two attempts at one slice with different rows: the later one commits when the other has looked already."""
    begun, publish = begin(case, mode=mode), spark_write._publish
    begun.write(0, word="old")

    def overtake(*arguments: object) -> object:
        monkeypatch.undo()
        begun.write(1, attempt=2, word="fast")
        return publish(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(spark_write, "_publish", overtake)
    assert begun.write(1, word="slow").checksum == begun.markers()["1.0"].checksum
    assert case.rows() == expected(case, 0, word="old") + expected(case, 1, word="fast")


@pytest.mark.statement("K1", "X1")
def test_merges_that_meet_all_come_in(case: Case) -> None:
    """K1, X1: of several lanes at once, each with its own note; an empty range and foreign rows beside them."""
    begun = begin(case, mode="upsert")
    begun.write(0, word="old")
    case.add_foreign()
    sessions = [Address(case.endpoint.password).begin(str(uuid.uuid4())) for _ in range(3)]

    def write(seq: int) -> SliceResult:
        spec, rows = begun.spec(seq), batches(case, ids(seq) if seq < 4 else [], word="new")
        assert isinstance(case, SparkTableCase)
        return case.write(spec, rows, sessions[seq % len(sessions)])

    with ThreadPoolExecutor(5) as pool:
        found = dict(zip([f"{seq}.0" for seq in range(1, 5)], pool.map(write, range(1, 5)), strict=True))
    markers = begun.markers()
    assert {key: (each.rows, each.checksum) for key, each in found.items()} == {
        key: (each.rows, each.checksum) for key, each in markers.items() if key != "0.0"
    }
    new = expected(case, 1, 2, 3, word="new")
    assert [row for row in case.rows() if row[0] >= 10] == new
    for session in sessions:
        session.stop()


@pytest.mark.statement("X1")
def test_a_row_without_its_key_is_refused(case: Case) -> None:
    """X1: no row could be told from it, so that each run would add it again."""
    begun = begin(case, mode="upsert", fitted=lambda write: replace(write, key=("name",)))
    with pytest.raises(SinkRefused, match=r"NULL in their key \(name\)"):
        begun.write(0)
    assert case.rows() == []


def test_a_revoked_range_refuses_every_attempt(case: Case) -> None:
    """A range that was cut or skipped: nothing of it comes in any more, and a committed one is not revoked."""
    begun = begin(case)
    begun.write(0)
    with opened(case) as sink:
        assert not sink.revoke(begun.plan, "0.0", bounds(0))
        assert sink.revoke(begun.plan, "1.0", bounds(1))
    assert {key: mark.revoked for key, mark in begun.markers().items()} == {"0.0": False, "1.0": True}
    with pytest.raises(PlanSuperseded, match="its range was revoked"):
        begun.write(1)
    assert case.rows() == expected(case, 0)


@pytest.mark.statement("K6", "X1")
def test_rows_of_an_execution_that_was_not_counted_fail_the_write(case: Case) -> None:
    """K6, X1: two executions of a task may leave their rows on two machines, and each reader takes either's."""
    assert isinstance(case, SparkTableCase)
    rows = spark_session(case.cluster.url).sql(
        "SELECT array(struct(1 AS _0, 'counted' AS _1)) AS backpressure_rows, 7 AS backpressure_run, "
        "NULL AS backpressure_end UNION ALL SELECT array(struct(1, 'other')), 8, NULL"
    )
    assert len(select_counted(rows, [7, 8]).collect()) == 2
    with pytest.raises(PySparkException, match="A task ran twice"):
        select_counted(rows, [7]).collect()
    assert select_counted(rows.where("false"), []).collect() == [], "a frame without a task says nothing"


@pytest.mark.statement("X2")
def test_branches_of_dead_attempts_are_dropped_at_the_end(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """X2: a branch keeps its files from being expired. A branch of somebody else stays."""
    assert isinstance(case, SparkTableCase)
    begun = begin(case)
    monkeypatch.setattr(IcebergTable, "_publish_branch", Mock(side_effect=KeyboardInterrupt))
    if case.place["format"] == "iceberg":
        spark_session(case.cluster.url).sql(f"ALTER TABLE {case.place['table']} CREATE BRANCH backpressure_mine")
        with pytest.raises(KeyboardInterrupt):
            begun.write(0)
        assert len(case.cluster.list_branches(case.place)) == 3
    monkeypatch.undo()
    begun.write(0, attempt=2)
    with opened(case) as sink:
        sink.complete(begun.plan)
    assert case.cluster.list_branches(case.place) <= {"main", "backpressure_mine"}
    assert case.rows() == expected(case, 0)


@pytest.mark.statement("X3")
def test_the_table_is_compared_as_a_whole_and_rows_of_others_are_found(case: Case) -> None:
    """X3: the sum of the markers is that of the table, until somebody adds rows."""
    begun = begin(case)
    begun.write(0)
    found, marker = begun.read_back(None), begun.markers()["0.0"]
    assert (found.rows, found.checksum) == (marker.rows, marker.checksum)
    with pytest.raises(SinkRefused, match="not found by the ranges"):
        begun.read_back(0)
    case.add_foreign()
    assert begun.read_back(None).rows == 13
    with pytest.raises(SinkRefused, match=r"cannot be cleared: it holds 13 rows, and the closed plan .* wrote 10"):
        begin(case, clear=begun.plan.plan_id)


@pytest.mark.statement("X3")
def test_what_somebody_has_cached_is_not_taken_for_the_table(case: Case) -> None:
    """X3: the server's cache is every session's, and keeps rows that another engine than Spark has deleted since."""
    assert isinstance(case, SparkTableCase)
    if case.place["format"] == "iceberg":
        pytest.skip("a cached table of Iceberg is of one snapshot")
    begun = begin(case)
    begun.write(0)
    spark_session(case.cluster.url).sql(f"CACHE TABLE {case.place['table']}").collect()
    assert begun.read_back(None).rows == 10
    lake = DeltaTable(case.cluster.find_folder(case.place))
    lake.delete(f"id = {ids(0)[0]}")
    assert begun.read_back(None).rows == 9
    with pytest.raises(SinkRefused, match=r"cannot be cleared: it holds 9 rows"):
        begin(case, clear=begun.plan.plan_id)
    lake.delete()
    with opened(case) as sink:
        assert not sink.holds_rows()


@pytest.mark.statement("X1", "X2")
def test_a_delete_that_comes_late_deletes_nothing(case: Case) -> None:
    """X1, X2: it had reached the server when its planner was taken for dead, and the plan itself has rows by now."""
    assert isinstance(case, SparkTableCase)
    first = begin(case)
    first.write(0)
    second = begin(case, clear=first.plan.plan_id)
    assert case.rows() == []
    second.write(1)
    table = open_table(spark_session(case.cluster.url), case.place["format"], case.place["table"])
    table.clear(note_of_clearing(second.plan.plan_id))
    assert case.rows() == expected(case, 1)
    assert set(second.markers()) == {"1.0"}


def roll_back(case: Case, *, to: int) -> None:
    """Restore the table to one of its versions, counted from the first."""
    assert isinstance(case, SparkTableCase)
    session, table = spark_session(case.cluster.url), case.place["table"]
    if case.place["format"] == "delta":
        session.sql(f"RESTORE TABLE {table} TO VERSION AS OF {to}").collect()
        return
    found = session.sql(f"SELECT snapshot_id FROM {table}.snapshots ORDER BY committed_at").collect()
    catalog = table.partition(".")[0]
    session.sql(f"CALL {catalog}.system.rollback_to_snapshot('{table}', {found[to][0]})").collect()
    open_table(session, "iceberg", table).refresh()  # type: ignore[attr-defined]


def count_versions(case: Case) -> int:
    """Return how many versions the table has."""
    assert isinstance(case, SparkTableCase)
    session, table = spark_session(case.cluster.url), case.place["table"]
    asked = f"DESCRIBE HISTORY {table}" if case.place["format"] == "delta" else f"SELECT * FROM {table}.snapshots"
    return session.sql(asked).count()


@pytest.mark.statement("K1", "X3")
def test_after_a_restore_what_is_in_the_table_is_marked(case: Case) -> None:
    """K1, X3: a range whose rows came back with the restored version must not be read again."""
    begun = begin(case)
    begun.write(0)
    versions = count_versions(case)
    begun.write(1)
    roll_back(case, to=versions - 1)
    assert case.rows() == expected(case, 0)
    assert set(begun.markers()) == {"0.0"}


@pytest.mark.statement("X3")
def test_a_table_that_is_restored_to_before_its_plan_is_refused(case: Case) -> None:
    """X3: it has rows again that the plan had cleared, or lacks what the plan found there; the next plan takes it."""
    first = begin(case)
    first.write(0)
    versions = count_versions(case)
    second = begin(case, clear=first.plan.plan_id)
    second.write(1)
    roll_back(case, to=versions - 1)
    with pytest.raises((SinkRefused, PlanSuperseded), match=r"no longer (has|holds)"):
        second.write(2)
    with opened(case) as sink:
        assert sink.held() is not None, "a restart has to know whom it takes the table from"
    begin(case, clear=first.plan.plan_id)
    assert case.rows() == []


@pytest.mark.statement("K4")
def test_a_name_may_have_a_hyphen(case: Case) -> None:
    """K4: procedures of Iceberg take it too. The session catalog, where Delta's tables are, has no such names."""
    assert isinstance(case, SparkTableCase)
    table, format_ = f"{case.place['table']}-odd", case.place["format"]
    case.place["table"] = table
    case.declared = type(case.declared)(table=table, spark_conn_id="spark", format=format_)
    if format_ == "delta":
        with pytest.raises(SinkRefused, match="not a valid name"):
            begin(case)
        return
    begun = begin(case, mode="upsert")
    begun.write(0)
    assert case.rows() == expected(case, 0)


@pytest.mark.statement("K4")
def test_partitioned_tables_are_written_and_others_refused_by_name(case: Case) -> None:
    """K4: a table that is there keeps its partitions; one that does not fit is refused before anything is written."""
    assert isinstance(case, SparkTableCase)
    session, table, format_ = spark_session(case.cluster.url), case.place["table"], case.place["format"]
    parts = {"delta": "name", "iceberg": "bucket(4, id), truncate(2, name)"}[format_]
    session.sql(f"CREATE TABLE {table} (id BIGINT, name STRING) USING {format_} PARTITIONED BY ({parts})").collect()
    begun = begin(case)
    begun.write(0)
    assert case.rows() == expected(case, 0)
    if format_ == "delta":
        empty = [each.set_column(1, "name", pyarrow.array([""] * each.num_rows)) for each in batches(case, ids(1))]
        with pytest.raises(SinkRefused, match=r"is partitioned by name, where delta keeps '' as NULL"):
            case.write(begun.spec(1), empty)
        session.sql(f"CREATE TABLE {table}_padded (id BIGINT, name CHAR(9)) USING delta").collect()
        case.declared = type(case.declared)(table=f"{table}_padded", spark_conn_id="spark", format=format_)
        with opened(case) as sink, pytest.raises(SinkRefused, match=r"column name is char\(9\) there"):
            sink.fit(case.columns, mode="append", key=("id",))
        session.sql(f"CREATE TABLE {table}_bytes (id BIGINT, name BINARY) USING delta PARTITIONED BY (name)").collect()
        case.declared = type(case.declared)(table=f"{table}_bytes", spark_conn_id="spark", format=format_)
        with opened(case) as sink, pytest.raises(SinkRefused, match=r"is partitioned by name, and Delta keeps bytes"):
            sink.fit(case.columns, mode="append", key=("id",))
    other = {"delta": "iceberg", "iceberg": "delta"}[format_]
    case.declared = type(case.declared)(table=table, spark_conn_id="spark", format=other)
    with opened(case) as sink, pytest.raises(BackpressureError, match=rf"{table} is "):
        sink.fit(case.columns, mode="append", key=())


@pytest.mark.statement("K4")
def test_files_that_do_not_keep_every_moment_are_refused(case: Case) -> None:
    """K4: Iceberg in ORC files takes 23:59:59.5 of the last day of 1969 for a second later; other types are kept."""
    assert isinstance(case, SparkTableCase)
    if case.place["format"] == "delta":
        return  # It has files of one kind.
    table = case.place["table"]
    of_orc = "USING iceberg TBLPROPERTIES ('write.format.default' = 'orc')"
    spark_session(case.cluster.url).sql(f"CREATE TABLE {table} (id BIGINT, at TIMESTAMP) {of_orc}").collect()
    columns = (case.columns[0], Column(name="at", type="timestamp with time zone"))
    with opened(case) as sink, pytest.raises(SinkRefused, match=r"writes ORC files, .* before 1970 of at: run ALTER"):
        sink.fit(columns, mode="append", key=("id",))
    spark_session(case.cluster.url).sql(f"CREATE TABLE {table}_names (id BIGINT, name STRING) {of_orc}").collect()
    case.declared = type(case.declared)(table=f"{table}_names", spark_conn_id="spark", format="iceberg")
    with opened(case) as sink:
        sink.fit(case.columns, mode="append", key=("id",))


@pytest.mark.statement("K4")
def test_a_table_that_is_partitioned_by_days_is_written(case: Case) -> None:
    """K4: Iceberg by the days of times, Delta by a date; before 1970 and without a value too. Rows change their day."""
    assert isinstance(case, SparkTableCase)
    session, table, format_ = spark_session(case.cluster.url), case.place["table"], case.place["format"]
    parts = {"delta": "day", "iceberg": "days(at), day"}[format_]
    columns = "id BIGINT, at TIMESTAMP, day DATE"
    session.sql(f"CREATE TABLE {table} ({columns}) USING {format_} PARTITIONED BY ({parts})").collect()
    types = {"id": "bigint", "at": "timestamp with time zone", "day": "date"}
    case.columns = tuple(Column(name=name, type=type_) for name, type_ in types.items())
    begun = begin(case, mode="upsert")

    def make_rows(first: datetime) -> list[tuple[int, datetime | None, date | None]]:
        times = [first + timedelta(hours=15 * each) for each in ids(0)]
        made: list[tuple[int, datetime | None, date | None]]
        made = [(each, at, at.date()) for each, at in zip(ids(0), times, strict=True)]
        return [*made[:-1], (ids(0)[-1], None, None)]

    for attempt, first in enumerate((datetime(1969, 12, 30, tzinfo=UTC), datetime(2024, 2, 28, tzinfo=UTC))):
        rows = make_rows(first)
        given = [pyarrow.array(column) for column in zip(*rows, strict=True)]
        batch = pyarrow.record_batch(given, names=list(types))
        case.write(begun.spec(attempt), append_end([batch], case.columns))
        assert case.cluster.rows(case.place) == rows
    assert session.sql(f"SELECT count(DISTINCT day) FROM {table} WHERE at >= '2024-02-28'").collect()[0][0] == 6


@pytest.mark.statement("K4")
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_hours_that_come_twice_are_kept_apart_by_a_table_that_is_partitioned_by_them(case: Case, mode: str) -> None:
    """K4: whatever zone the lane's session has, as a transform may need it; also when the files are compacted."""
    assert isinstance(case, SparkTableCase)
    session, table, format_ = spark_session(case.cluster.url), case.place["table"], case.place["format"]
    parts = {"delta": "at", "iceberg": "hours(at)"}[format_]
    session.sql(f"CREATE TABLE {table} (id BIGINT, at TIMESTAMP) USING {format_} PARTITIONED BY ({parts})").collect()
    types = {"id": "bigint", "at": "timestamp with time zone"}
    case.columns = tuple(Column(name=name, type=type_) for name, type_ in types.items())
    begun, lane = begin(case, mode=mode), Address(case.cluster.url).begin(str(uuid.uuid4()))
    lane.conf.set(TIME_ZONE, "Europe/Berlin")
    hours = [datetime(2024, 10, 26, 22, 30, tzinfo=UTC) + timedelta(hours=each) for each in range(5)]
    for seq in range(2):
        given = [pyarrow.array(range(5 * seq, 5 * seq + 5), pyarrow.int64()), pyarrow.array(hours)]
        batch = pyarrow.record_batch(given, names=list(types))
        case.write(begun.spec(seq), append_end([batch], case.columns), lane)
    rows = list(enumerate(hours + hours))
    assert case.cluster.rows(case.place) == rows
    assert lane.conf.get(TIME_ZONE) == "Europe/Berlin"
    open_table(lane, format_, table).compact()
    assert case.cluster.rows(case.place) == rows
    if format_ == "iceberg":
        found = lane.sql(f"SELECT partition.at_hour FROM {table}.partitions").collect()
        assert {row[0] for row in found} == {int(each.timestamp()) // 3600 for each in hours}
    lane.stop()


@pytest.mark.statement("K4")
def test_mapped_columns_and_deletion_vectors_are_written(case: Case) -> None:
    """K4: a table whose columns have other names in its files, and whose deletes are vectors beside them."""
    assert isinstance(case, SparkTableCase)
    session, table, format_ = spark_session(case.cluster.url), case.place["table"], case.place["format"]
    properties = {
        "delta": "'delta.columnMapping.mode' = 'name', 'delta.enableDeletionVectors' = 'true'",
        "iceberg": "'format-version' = '3', 'write.merge.mode' = 'merge-on-read'",
    }[format_]
    columns = "id BIGINT, other STRING"
    session.sql(f"CREATE TABLE {table} ({columns}) USING {format_} TBLPROPERTIES ({properties})").collect()
    session.sql(f"ALTER TABLE {table} RENAME COLUMN other TO name").collect()
    begun = begin(case, mode="upsert")
    begun.write(0)
    case.write(begun.spec(1), batches(case, ids(0)[:3], word="new"))
    found = sorted(map(tuple, session.sql(f"SELECT id, name FROM {table}").collect()))
    assert found == expected(case, 0, word="new")[:3] + expected(case, 0)[3:]
    if format_ == "iceberg":
        kinds = {row[0] for row in session.sql(f"SELECT file_format FROM {table}.files WHERE content = 1").collect()}
        assert kinds == {"PUFFIN"}
    else:
        (detail,) = session.sql(f"DESCRIBE DETAIL {table}").collect()
        assert {"columnMapping", "deletionVectors"} <= set(detail["tableFeatures"])
