"""Filtered reads of Delta tables by the deltalake library: a filter hides no row, whatever type its column has."""

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable, Field, QueryBuilder
from deltalake.schema import PrimitiveType

from airflow_provider_backpressure.connectors.lake.delta import file_actions as delta_files
from airflow_provider_backpressure.core.snapshot.spark_messages import Column
from airflow_provider_backpressure.exceptions import SinkRefused
from airflow_provider_backpressure.spark.column_types import PLAIN, arrow_type
from airflow_provider_backpressure.spark.stream_end import END
from tests.conformance.sinks.cases import Case, DeltaCase
from tests.conformance.sinks.support import begin

pytestmark = pytest.mark.integration
only_delta = pytest.mark.parametrize("case", ["delta"], indirect=True)

VALUES: dict[str, tuple[Any, Any]] = {
    "smallint": (1, 2),
    "integer": (1, 2),
    "bigint": (1, 2),
    "real": (1.5, 2.5),
    "double precision": (1.5, 2.5),
    "boolean": (False, True),
    "date": (date(2026, 1, 1), date(9999, 12, 31)),
    "timestamp without time zone": (datetime(2026, 1, 1), datetime(2026, 1, 1, 0, 0, 0, 1)),
    "timestamp with time zone": (datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)),
    "bytea": (b"\x00a", b"\xffb"),
    "text": ("a", "b" * 100),
    "numeric(20,2)": (Decimal("-1.00"), Decimal("2.00")),
    "jsonb": ('{"a": 1}', '{"a": [1]}'),
    "integer[]": ("{1}", "{2}"),
}
"""Two values of each type that files hold, and of some that they hold as text."""
COLUMNS = (
    Column(name="id", type="bigint", nullable=False),
    *(Column(name=f"c{number}", type=type_) for number, type_ in enumerate(VALUES)),
)


def batches(first: int, *, nan: bool = False) -> Iterator[pyarrow.RecordBatch]:
    """Yield three rows: one of first values, one of second values, one of NULLs."""
    schema = pyarrow.schema([*((each.name, arrow_type(each.type)) for each in COLUMNS), (END, pyarrow.bool_())])
    rows: list[list[Any]] = [[first, first + 1, first + 2]]
    for type_, (low, high) in VALUES.items():
        floating = type_ in ("real", "double precision")
        rows.append([low, float("nan") if nan and floating else high, None])
    columns = [*rows, [False] * 3]
    arrays = [pyarrow.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    yield pyarrow.record_batch(arrays, schema=schema)
    nulls = [pyarrow.nulls(1, each.type) for each in schema][:-1]
    yield pyarrow.record_batch([*nulls, pyarrow.array([True])], schema=schema)


def compare_filters(case: Case) -> None:
    """Compare what filters on each column find with what Arrow finds in all rows."""
    assert isinstance(case, DeltaCase)
    table = DeltaTable(case.folder)
    found = table.to_pyarrow_dataset()
    rows = found.to_table()
    for column in COLUMNS[1:]:
        type_, field = arrow_type(column.type), ds.field(column.name)
        for value in VALUES[column.type]:
            it = pyarrow.scalar(value, type_)
            filters = (field == it, field != it, field <= it, field >= it, field < it, field > it, field.is_null())
            for one in (*filters, field.is_valid()):
                assert found.to_table(filter=one).num_rows == rows.filter(one).num_rows, (column.type, str(one))
            count = rows.filter(field == it).num_rows
            assert count
            assert table.to_pyarrow_table(filters=[(column.name, "=", value)]).num_rows == count, column.type
        engine = QueryBuilder().register("t", table)
        counted = pyarrow.table(engine.execute(f"SELECT count(*) AS n FROM t WHERE {column.name} IS NULL"))
        assert counted["n"].to_pylist() == [rows.filter(field.is_null()).num_rows]


def test_every_type_that_files_hold_is_filtered_by() -> None:
    """A type that is added to the sink is added here."""
    assert PLAIN.keys() <= VALUES.keys()


@only_delta
@pytest.mark.parametrize("nan", [False, True])
def test_filters_on_appended_rows_find_all(case: Case, nan: bool) -> None:
    """Also where a file holds NaN, whose order bounds cannot say."""
    case.columns = COLUMNS
    begun = begin(case)
    case.write(begun.spec(0), batches(0))
    case.write(begun.spec(1), batches(10, nan=nan))
    compare_filters(case)


@only_delta
@pytest.mark.parametrize("nan", [False, True])
def test_filters_on_upserted_rows_find_all(case: Case, nan: bool) -> None:
    """A merge leaves files that the library wrote, beside those that were appended before."""
    case.columns = COLUMNS
    begun = begin(case)
    case.write(begun.spec(0), batches(0))
    begun = begin(case, mode="upsert")
    case.write(begun.spec(1), batches(2))
    case.write(begun.spec(2), batches(20, nan=nan))
    compare_filters(case)


@only_delta
def test_the_repair_in_the_docs_makes_old_files_found(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files whose log entries have bounds of some columns are added again; rows and markers stay."""
    assert isinstance(case, DeltaCase)
    case.columns = COLUMNS
    begun = begin(case)
    add = delta_files.AddAction
    bad = json.dumps(
        {"numRecords": 3, "minValues": {"id": 0}, "maxValues": {"id": 2}, "nullCount": {"id": 0, "c10": 1}}
    )
    monkeypatch.setattr(delta_files, "AddAction", lambda **given: add(**{**given, "stats": bad}))
    case.write(begun.spec(0), batches(0))
    monkeypatch.undo()
    with pytest.raises(AssertionError):
        compare_filters(case)
    guide = Path(__file__).parents[3] / "docs" / "howto" / "lakes.md"
    (repair,) = (part for part in guide.read_text().split("```") if "AddAction(" in part)
    names: dict[str, Any] = {}
    exec(repair.removeprefix("python"), names)
    names["remove_bounds"](str(case.folder))
    compare_filters(case)
    assert DeltaTable(case.folder).to_pyarrow_table().num_rows == 3
    assert begun.read_back(0).checksum == begun.markers()["0.0"].checksum


def rows_of(columns: tuple[Column, ...]) -> Iterator[pyarrow.RecordBatch]:
    """Yield one row, whose texts name their columns, and the row that ends a range."""
    schema = pyarrow.schema([*((each.name, arrow_type(each.type)) for each in columns), (END, pyarrow.bool_())])
    values: list[Any] = [1, *(each.name for each in columns[1:]), False]
    ending = [*([None] * len(columns)), True]
    for row in (values, ending):
        yield pyarrow.record_batch(
            [pyarrow.array([value], f.type) for value, f in zip(row, schema, strict=True)], schema
        )


@only_delta
@pytest.mark.parametrize("order", [("id", "b", "a"), ("b", "a", "id")])
def test_an_upsert_goes_by_the_names_of_columns(case: Case, order: tuple[str, ...]) -> None:
    """The table's columns may have another order than those that arrive."""
    assert isinstance(case, DeltaCase)
    types = {"id": pyarrow.int64(), "a": pyarrow.string(), "b": pyarrow.string()}
    case.columns = (Column(name="id", type="bigint"), Column(name="a", type="text"), Column(name="b", type="text"))
    DeltaTable.create(str(case.folder), pyarrow.schema([(name, types[name]) for name in order]))
    case.write(begin(case, mode="upsert").spec(0), rows_of(case.columns))
    assert DeltaTable(case.folder).to_pyarrow_table().to_pylist() == [{"id": 1, "a": "a", "b": "b"}]


@only_delta
def test_an_upsert_without_a_column_of_the_table_is_refused(case: Case) -> None:
    """Somebody added it after the plan was made."""
    assert isinstance(case, DeltaCase)
    case.columns = (Column(name="id", type="bigint"), Column(name="a", type="text"))
    begun = begin(case, mode="upsert")
    DeltaTable(case.folder).alter.add_columns([Field("added", PrimitiveType("string"), nullable=True)])
    with pytest.raises(SinkRefused, match="has the column added, which the arriving rows do not have"):
        case.write(begun.spec(0), rows_of(case.columns))
