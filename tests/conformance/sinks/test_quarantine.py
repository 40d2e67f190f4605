"""What every real sink promises of rows that it cannot take: they fail their range by name, or are kept aside, once."""

import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from deltalake import DeltaTable

from airflow_provider_backpressure.connectors.lake.iceberg.catalog_properties import to_pyiceberg_properties
from airflow_provider_backpressure.connectors.lake.tasks import write as lake
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, SliceResult
from airflow_provider_backpressure.exceptions import InvalidDeclaration, RangeFailed, SinkRefused
from airflow_provider_backpressure.sinks import DeltaSink, IcebergSink, ParquetSink, PostgresSink
from airflow_provider_backpressure.spark.column_types import arrow_schema
from airflow_provider_backpressure.spark.stream_end import BAD, END, bad
from tests.conformance.sinks.cases import Case, DeltaCase, HadoopCase, IcebergCase, ParquetCase, PostgresCase, opened
from tests.conformance.sinks.support import Begun, batches, begin, bounds, expected, ids
from tests.conformance.sinks.test_ordered import log
from tests.support import lakes
from tests.support.postgres import run

pytestmark = pytest.mark.integration

LAKES = ["delta", "hadoop", "iceberg", "parquet"]
REAL = pytest.mark.parametrize("case", [*LAKES, "postgres"], indirect=True)
ONLY_LAKES = pytest.mark.parametrize("case", LAKES, indirect=True)


def spoiled(case: Case, seq: int, *wrong: int) -> Iterator[pyarrow.RecordBatch]:
    """Yield a range as a reader does that hands on what it could not take apart."""
    for batch in batches(case, ids(seq)):
        said = [bad("no JSON", b"{") if key in wrong else None for key in batch.column(0).to_pylist()]
        columns, names = batch.columns, batch.schema.names
        yield pyarrow.record_batch(
            [*columns[:-1], pyarrow.array(said, pyarrow.string()), columns[-1]], names=[*names[:-1], BAD, names[-1]]
        )


def write(begun: Begun, seq: int, *wrong: int, **changes: Any) -> SliceResult:
    read = replace(begun.plan.read, keep_bad=True)
    return begun.case.write(begun.spec(seq, read=read, **changes), spoiled(begun.case, seq, *wrong))


def keeping(case: Any, most: int) -> Begun:
    """Begin a plan whose sink keeps so many rows."""
    case.declared = replace(case.declared, quarantine=most)
    return begin(case)


def kept(case: Any) -> list[dict[str, Any]]:
    """Return what was kept, as a plain reader of the format finds it."""
    match case:
        case PostgresCase():
            rows = run(case.endpoint, "SELECT slice_id, key, reason, row, target FROM raw.backpressure_quarantine")
            found = [dict(zip(("slice_id", "key", "reason", "row", "target"), row, strict=True)) for row in rows]
        case ParquetCase():
            found = lakes.table("parquet", path=f"{case.folder}_quarantine").to_pylist()
        case DeltaCase():
            found = DeltaTable(f"{case.folder}_quarantine").to_pyarrow_table().to_pylist()
        case HadoopCase():
            found = case.table("t_quarantine").scan().to_arrow().to_pylist()
        case IcebergCase():
            found = lakes.table("iceberg", table="raw.t_quarantine", catalog=case.catalog).to_pylist()
    return sorted(found, key=lambda row: json.loads(row["key"])["id"])


@REAL
@pytest.mark.statement("X1")
def test_rows_are_kept_aside_once_and_the_totals_add_up(case: Case) -> None:
    """X1: with key, reason and the row; a second attempt keeps them no second time, nor does one that died between."""
    begun = keeping(case, 4)
    result = write(begun, 0, 3, 7)
    assert (result.rows, result.quarantined) == (8, 2)
    assert write(begun, 0, 3, 7, attempt=2) == replace(result, times={}, peak_memory_bytes=0)
    marker = begun.markers()["0.0"]
    assert (marker.rows, marker.quarantined, marker.checksum) == (8, 2, result.checksum)
    write(begun, 1)
    assert case.rows() == [row for row in expected(case, 0, 1) if row[0] not in (3, 7)]
    assert begun.read_back(0).checksum == marker.checksum
    found = kept(case)
    assert [json.loads(row["key"]) for row in found] == [{"id": 3}, {"id": 7}]
    assert {(row["slice_id"], row["reason"], row["target"]) for row in found} == {
        ("0.0", "no JSON", begun.plan.write.fence)
    }
    assert json.loads(found[1]["row"]) == {"id": 7, "name": "row 7", "value": "{"}


@REAL
def test_above_the_cap_the_range_fails_and_keeps_nothing(case: Case) -> None:
    """The cap is the plan's: what other ranges have kept counts."""
    begun = keeping(case, 2)
    write(begun, 0, 3)
    with pytest.raises(SinkRefused, match=r"More than 2 rows cannot go into .*one of them is \{\"id\": 15\}: no JSON"):
        write(begun, 1, 11, 15)
    assert [row["slice_id"] for row in kept(case)] == ["0.0"]
    assert set(begun.markers()) == {"0.0"}
    assert write(begun, 1, 11).quarantined == 1


@REAL
def test_without_a_quarantine_the_row_is_named(case: Case) -> None:
    """And nothing of its range is written."""
    begun = begin(case)
    with pytest.raises(SinkRefused, match=r'The row \{"id": 3\} cannot go into .*: no JSON'):
        write(begun, 0, 3)
    assert case.rows() == []
    assert begun.markers() == {}


@REAL
@pytest.mark.statement("X3")
def test_a_repaired_range_keeps_its_rows_once(case: Case) -> None:
    """X3: what was kept of a range goes with it, and comes again when it is read again."""
    begun = keeping(case, 4)
    write(begun, 0, 3)
    write(begun, 1, 11)
    with opened(case) as sink:
        sink.discard(begun.plan, "0.0", bounds(0))
    assert [row["slice_id"] for row in kept(case)] == ["1.0"]
    write(begun, 0, 3, attempt=2)
    assert [row["slice_id"] for row in kept(case)] == ["0.0", "1.0"]


@REAL
@pytest.mark.statement("X3")
def test_a_repair_goes_by_the_quarantine_of_the_plan(case: Case) -> None:
    """X3: the DAG declares none any more, and the range is written as it was planned. What was kept came twice."""
    begun = keeping(case, 4)
    write(begun, 0, 3)
    declared = case.declared
    case.declared = replace(declared, quarantine=None)
    with opened(case) as sink:
        if isinstance(case, PostgresCase):
            sink.discard(begun.plan, "0.0", bounds(0))
        else:
            with pytest.raises(SinkRefused, match=r"1 rows of this range are kept beside .*: declare quarantine= on"):
                sink.discard(begun.plan, "0.0", bounds(0))
            assert set(begun.markers()) == {"0.0"}
    case.declared = declared
    assert len(kept(case)) == (0 if isinstance(case, PostgresCase) else 1)


@ONLY_LAKES
@pytest.mark.statement("X1", "X2")
def test_an_attempt_that_dies_between_the_two_commits_is_not_doubled(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X1, X2: what it kept is there already, and the next attempt's are refused as doubles of it."""

    class Died(BaseException):
        """As a kill is."""

    def die(*_: object) -> None:
        raise Died

    begun = keeping(case, 4)
    with monkeypatch.context() as patched:
        patched.setattr(lake, "reach", lambda step, tag: die() if step is lake.Step.BEFORE_SINK_COMMIT else None)
        with pytest.raises(Died):
            write(begun, 0, 3, 7)
    assert case.rows() == []
    assert len(kept(case)) == 2
    assert write(begun, 0, 3, 7, attempt=2).quarantined == 2
    assert len(kept(case)) == 2
    assert case.rows() == [row for row in expected(case, 0) if row[0] not in (3, 7)]


def stop(begun: Begun, *wrong: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an attempt keep rows and die before its range is committed."""

    class Died(BaseException):
        """As a kill is."""

    def die(step: lake.Step, tag: str) -> None:
        if step is lake.Step.BEFORE_SINK_COMMIT:
            raise Died

    with monkeypatch.context() as patched:
        patched.setattr(lake, "reach", die)
        with pytest.raises(Died):
            write(begun, 0, *wrong)
    assert keys(begun.case) == list(wrong)


def keys(case: Case) -> list[int]:
    """Return the ids of the rows that were kept."""
    return [json.loads(row["key"])["id"] for row in kept(case)]


@ONLY_LAKES
@pytest.mark.statement("X1", "X2")
@pytest.mark.parametrize("wrong", [[], [3, 8], [3, 7, 9]])
def test_an_attempt_that_finds_other_bad_rows_exchanges_them(
    case: Case, monkeypatch: pytest.MonkeyPatch, wrong: list[int]
) -> None:
    """X1, X2: a setting or a transform has changed since; every row that was read is in one of the two tables."""
    begun = keeping(case, 4)
    stop(begun, 3, 7, monkeypatch=monkeypatch)
    assert write(begun, 0, *wrong, attempt=2).quarantined == len(wrong)
    assert keys(case) == wrong
    assert case.rows() == [row for row in expected(case, 0) if row[0] not in wrong]


@ONLY_LAKES
@pytest.mark.statement("X1")
@pytest.mark.parametrize("wrong", [[], [9]])
def test_rows_of_an_attempt_that_was_alive_are_put_back(
    case: Case, monkeypatch: pytest.MonkeyPatch, wrong: list[int]
) -> None:
    """X1: its range is committed after its rows were exchanged, and before the range of the later attempt."""
    begun = keeping(case, 4)
    held, go = threading.Event(), threading.Event()

    with ThreadPoolExecutor(1) as pool:

        def reach(step: lake.Step, tag: str) -> None:
            if step is not lake.Step.BEFORE_SINK_COMMIT:
                return
            if tag == begun.spec(0).tag:
                held.set()
                assert go.wait(60)
            else:
                go.set()
                writing.result(60)

        monkeypatch.setattr(lake, "reach", reach)
        writing = pool.submit(write, begun, 0, 3, 7)
        try:
            assert held.wait(60)
            assert write(begun, 0, *wrong, attempt=2).quarantined == 2
        finally:
            go.set()
    assert keys(case) == [3, 7]
    assert case.rows() == [row for row in expected(case, 0) if row[0] not in (3, 7)]


@ONLY_LAKES
@pytest.mark.statement("X1")
def test_a_late_attempt_leaves_the_rows_of_a_later_one(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """X1: the later attempt has committed its range by then."""
    begun = keeping(case, 4)

    def reach(step: lake.Step, tag: str) -> None:
        if step is lake.Step.IN_COPY and tag == begun.spec(0).tag:
            monkeypatch.undo()
            write(begun, 0, 9, attempt=2)

    monkeypatch.setattr(lake, "reach", reach)
    with pytest.raises(RangeFailed, match=r"Attempt 2 at slice 0\.0 has kept other rows"):
        write(begun, 0, 3, 7)
    assert keys(case) == [9]
    assert case.rows() == [row for row in expected(case, 0) if row[0] != 9]


@ONLY_LAKES
def test_a_value_that_the_table_s_type_cannot_hold_is_kept_too(case: Case) -> None:
    """Batches of another type than was planned are cast; the row whose value does not fit stands alone."""
    begun = keeping(case, 4)

    def loose() -> Iterator[pyarrow.RecordBatch]:
        for batch in batches(case, ids(0)):
            texts = [None if key is None else "many" if key == 5 else str(key) for key in batch.column(0).to_pylist()]
            yield batch.set_column(0, "id", pyarrow.array(texts, pyarrow.string()))

    result = case.write(begun.spec(0), loose())
    assert (result.rows, result.quarantined) == (9, 1)
    assert case.rows() == [row for row in expected(case, 0) if row[0] != 5]


FAR = pytest.mark.parametrize(
    ("type_", "days", "text"),
    [
        ("date", 6_000_000, "18397-06-11"),
        ("date", 2_932_897, "10000-01-01"),
        ("date", -719_163, "0000-12-31"),
        ("timestamp with time zone", 2_932_897, "10000-01-01 00:00:00.000000Z"),
        ("timestamp without time zone", -719_163, "0000-12-31 00:00:00.000000"),
    ],
)


def dated(case: Case, type_: str, days: int, key: int = 5) -> Iterator[pyarrow.RecordBatch]:
    """Yield a range whose rows have a day or a moment: the last ones of Python's years, and a farther one."""
    case.columns = (Column(name="id", type="bigint", nullable=False), Column(name="at", type=type_))
    known = [-719_162, 2_932_896, *[0] * 8]
    found = [days if each == key else known[each] for each in ids(0)]
    field = arrow_schema(case.columns).field("at").type
    whole = pyarrow.array(found, pyarrow.int32()).cast(pyarrow.date32())
    values = (
        whole if pyarrow.types.is_date(field) else pyarrow.array([each * 86_400_000_000 for each in found]).cast(field)
    )
    schema = pyarrow.schema([("id", pyarrow.int64()), ("at", field), (END, pyarrow.bool_())])
    yield pyarrow.record_batch([pyarrow.array(ids(0)), values, pyarrow.array([False] * 10)], schema=schema)
    ends = [pyarrow.array([each], f.type) for each, f in zip([None, None, True], schema, strict=True)]
    yield pyarrow.record_batch(ends, schema=schema)


@FAR
@pytest.mark.statement("X5")
@pytest.mark.parametrize(
    ("case", "mode"),
    [("delta", "upsert"), ("hadoop", "append"), ("iceberg", "append"), ("iceberg", "upsert")],
    indirect=["case"],
)
def test_a_year_that_the_format_s_library_does_not_know_is_a_bad_row(
    case: Any, mode: str, type_: str, days: int, text: str
) -> None:
    """X5: it is named, or kept aside; the first and the last day of the years 1 to 9999 go in."""
    whole = list(dated(case, type_, days))
    begun = begin(case, mode=mode)
    with pytest.raises(SinkRefused, match=f"column at: {re.escape(text)} is outside of the years 1 to 9999"):
        case.write(begun.spec(0), whole)
    case.declared = replace(case.declared, quarantine=1)
    begun = begin(case, mode=mode)
    result = case.write(begun.spec(0), whole)
    assert (result.rows, result.quarantined) == (9, 1)
    assert json.loads(kept(case)[0]["row"]) == {"id": 5, "at": text}
    assert begun.read_back(None).checksum == begun.markers()["0.0"].checksum


@pytest.mark.parametrize("case", ["delta", "parquet"], indirect=True)
def test_a_far_year_is_appended_where_files_have_no_bounds_elsewhere(case: Case) -> None:
    """Readers of the format's own library find it again."""
    rows = list(dated(case, "date", 6_000_000))
    begun = begin(case)
    result = case.write(begun.spec(0), rows)
    assert (result.rows, begun.read_back(0).checksum) == (10, result.checksum)


@ONLY_LAKES
def test_a_table_of_another_s_making_is_not_written_into(case: Any, tmp_path: Path) -> None:
    """What lies where rows would be kept must be a table for such rows."""
    folder = tmp_path / "lake"
    match case:
        case ParquetCase():
            (folder / "t_quarantine").mkdir(parents=True)
            import pyarrow.parquet as pq

            pq.write_table(pyarrow.table({"a": [1]}), folder / "t_quarantine" / "a.parquet")
        case DeltaCase():
            DeltaTable.create(folder / "t_quarantine", pyarrow.schema([("a", pyarrow.int64())]))
        case IcebergCase():
            begin(case)
            from pyiceberg.catalog import load_catalog

            load_catalog(**to_pyiceberg_properties(case.catalog)).create_table(
                "raw.t_quarantine", pyarrow.schema([("a", pyarrow.int64())])
            )
    with pytest.raises(SinkRefused, match="t_quarantine: it has no column"):
        keeping(case, 1)


def test_what_is_no_number_of_rows_is_refused() -> None:
    """At the declaration, whatever the sink."""
    for make in (
        lambda most: PostgresSink(conn_id="c", table="t", quarantine=most),
        lambda most: ParquetSink(path="/t", quarantine=most),
        lambda most: DeltaSink(path="/t", quarantine=most),
        lambda most: IcebergSink(table="a.t", quarantine=most),
    ):
        for most in (0, -1, True, "3"):
            with pytest.raises(InvalidDeclaration, match=r"Sink\.quarantine must be a (whole )?number"):
                make(most)


@pytest.mark.parametrize("case", ["postgres"], indirect=True)
def test_a_row_of_a_log_is_kept_without_its_mark(case: Any) -> None:
    """No source has the mark: it is for the target, and is no column of the row that was read."""
    case.declared = replace(case.declared, quarantine=1)
    begun = log(case, {0: 0}, {0: 2})
    begun.write({0: (0, 2)}, [(0, 0, 1, "a\0"), (0, 1, 2, "b")], attempt=2)
    assert case.rows() == [(2, "b")]
    ((row,),) = run(case.endpoint, "SELECT row FROM raw.backpressure_quarantine")
    assert json.loads(row) == {"partition": 0, "offset": 0, "headers": "[]", "id": 1, "name": "a\0"}


@REAL
def test_the_rows_of_a_slice_are_found_again(case: Case) -> None:
    """A full verification takes them out of what the source still has."""
    begun = keeping(case, 4)
    write(begun, 0, 3, 7)
    write(begun, 1, 15)
    with opened(case) as sink:
        found = [sink.read_quarantine(begun.plan, f"{seq}.0") for seq in range(3)]
    assert [sorted(json.loads(row)["id"] for row in rows) for rows in found] == [[3, 7], [15], []]
