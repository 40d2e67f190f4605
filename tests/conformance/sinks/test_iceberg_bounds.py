"""Bounds of Iceberg's files where a text is so long that Arrow writes none: filters and merges find every row."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow
import pytest
from pyiceberg.expressions import EqualTo

from airflow_provider_backpressure.connectors.lake.iceberg import column_bounds as iceberg_bounds
from airflow_provider_backpressure.connectors.lake.iceberg import upsert as iceberg_merge
from airflow_provider_backpressure.connectors.lake.tasks import parquet_writer as lake_files
from airflow_provider_backpressure.core.snapshot.spark_messages import Column
from airflow_provider_backpressure.spark.stream_end import END
from tests.conformance.sinks.cases import IcebergCase
from tests.conformance.sinks.support import Begun, begin

pytestmark = pytest.mark.integration
only_iceberg = pytest.mark.parametrize("case", ["iceberg"], indirect=True)

LONG = 5000
"""Characters of a text: Arrow writes no bound of more than 4096 bytes."""
GROUPS: tuple[list[Any], ...] = (["m", "n"], ["a", "z" * LONG], [None, "y"])
"""Values of three row groups: the second has no bounds, although its values lie outside those of the others."""
TYPES = pytest.mark.parametrize("type_", ["text", "bytea"])


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each batch be a row group."""
    monkeypatch.setattr(lake_files, "GROUP_BYTES", 1)
    monkeypatch.setattr(iceberg_merge, "GROUP_BYTES", 1)


def rows(type_: str, groups: Sequence[list[Any]], first: int = 0) -> Iterator[pyarrow.RecordBatch]:
    """Yield values with rising ids, and the row that ends a range."""
    arrow = {"text": pyarrow.string(), "double precision": pyarrow.float64()}.get(type_, pyarrow.binary())
    schema = pyarrow.schema([("id", pyarrow.int64()), ("name", arrow), (END, pyarrow.bool_())])
    for group in groups:
        values = [to_value(type_, value) for value in group]
        table = [list(range(first, first + len(values))), values, [False] * len(values)]
        first += len(values)
        yield pyarrow.record_batch(
            [pyarrow.array(each, field.type) for each, field in zip(table, schema, strict=True)], schema=schema
        )
    yield pyarrow.record_batch(
        [pyarrow.array([each], f.type) for each, f in zip([None, None, True], schema, strict=True)], schema=schema
    )


def to_value(type_: str, value: str | None) -> Any:
    return value.encode() if value is not None and type_ == "bytea" else value


def start(case: IcebergCase, type_: str, mode: str, key: str = "id") -> Begun:
    """Begin a plan whose second column has a type."""
    case.columns = (Column(name="id", type="bigint", nullable=False), Column(name="name", type=type_))
    return begin(case, mode=mode, fitted=lambda write: replace(write, key=(key,) if mode == "upsert" else ()))


def find(case: IcebergCase, value: Any) -> list[int]:
    """Return the ids of a value, as a filter of the format's library finds them."""
    return sorted(case.table().scan(row_filter=EqualTo("name", value)).to_arrow()["id"].to_pylist())


@only_iceberg
@TYPES
@pytest.mark.statement("X3")
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_filters_find_rows_beside_long_values(case: IcebergCase, type_: str, mode: str) -> None:
    """X3: a row group without bounds lets no other one's count for the file."""
    begun = start(case, type_, mode)
    case.write(begun.spec(0), rows(type_, GROUPS))
    for number, value in enumerate(value for group in GROUPS for value in group if value is not None):
        assert find(case, to_value(type_, value)) == [number + (value == "y")], value[:1]


@only_iceberg
@TYPES
@pytest.mark.statement("X3")
def test_filters_find_rows_that_a_merge_has_rewritten(case: IcebergCase, type_: str) -> None:
    """X3: what remains of a file is written again, in row groups too."""
    begun = start(case, type_, "upsert")
    case.write(begun.spec(0), rows(type_, GROUPS))
    case.write(begun.spec(1), rows(type_, [["b"]]))
    assert find(case, to_value(type_, "m")) == []
    assert [find(case, to_value(type_, value)) for value in ("b", "n", "a", "z" * LONG, "y")] == [
        [0],
        [1],
        [2],
        [3],
        [5],
    ]


@only_iceberg
@TYPES
@pytest.mark.statement("X1")
def test_a_merge_finds_its_keys_past_wrong_bounds(
    case: IcebergCase, monkeypatch: pytest.MonkeyPatch, type_: str
) -> None:
    """X1: earlier releases wrote bounds of texts that are not true of the file."""
    begun, groups = start(case, type_, "upsert", key="name"), GROUPS[:2]
    with monkeypatch.context() as patched:
        patched.setattr(iceberg_bounds, "_find_unbounded", lambda _: ())
        case.write(begun.spec(0), rows(type_, groups))
    assert find(case, to_value(type_, "a")) == []
    case.write(begun.spec(1), rows(type_, [["a"]], first=10))
    names = case.table().scan().to_arrow()
    assert sorted(zip(names["name"].to_pylist(), names["id"].to_pylist(), strict=True)) == sorted(
        (to_value(type_, value), key) for value, key in (("m", 0), ("n", 1), ("a", 10), ("z" * LONG, 3))
    )


@only_iceberg
@TYPES
def test_a_merge_passes_over_files_without_its_keys(
    case: IcebergCase, monkeypatch: pytest.MonkeyPatch, type_: str
) -> None:
    """Their footers say so: they are not read."""
    begun = start(case, type_, "upsert", key="name")
    case.write(begun.spec(0), rows(type_, [["a"], ["c"]]))
    case.write(begun.spec(1), rows(type_, [["x"], ["z"]], first=10))
    read: list[str] = []
    real = iceberg_merge._without

    def note(table: Any, data: Any, task: Any, *args: Any) -> Any:
        read.append(task.file.file_path)
        return real(table, data, task, *args)

    monkeypatch.setattr(iceberg_merge, "_without", note)
    case.write(begun.spec(2), rows(type_, [["b"], ["c"]], first=20))
    assert len(read) == 1
    assert sorted(case.table().scan().to_arrow()["id"].to_pylist()) == [0, 10, 11, 20, 21]


@only_iceberg
@pytest.mark.statement("X3")
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_nulls_of_columns_without_bounds_are_counted(case: IcebergCase, mode: str) -> None:
    """X3: DuckDB takes a number that is not there for 0, and finds no NULL. Of floats there are no statistics."""
    begun = start(case, "double precision", mode)
    values = [[1.5, None], [float("nan"), None, 2.5], [3.5]]
    case.write(begun.spec(0), rows("double precision", values))
    assert count_nulls(case) == [2]
    if mode == "upsert":
        case.write(begun.spec(1), rows("double precision", [[7.5, 8.5], [None]]))
        assert sum(count_nulls(case)) == 2, "one of a row that stays, one that came"


@only_iceberg
@pytest.mark.statement("X3")
def test_a_text_whose_bound_cannot_be_raised_arrives(case: IcebergCase) -> None:
    """X3: the character behind U+D7FF is none. Its file has no bounds, and filters find its rows."""
    begun, odd = start(case, "text", "append"), "\ud7ff" * 17
    case.write(begun.spec(0), rows("text", [["a", odd], [None]]))
    case.write(begun.spec(1), rows("text", [["b"]], first=10))
    assert (find(case, odd), find(case, "a"), find(case, "b")) == ([1], [0], [10])


def count_nulls(case: IcebergCase) -> list[int]:
    """Return the NULLs of the second column, as the manifests have them, by file."""
    table = case.table()
    column = table.schema().find_field("name").field_id
    return [task.file.null_value_counts[column] for task in table.scan().plan_files()]


@pytest.mark.parametrize(
    ("statistics", "bounded"),
    [
        (None, False),
        ({"has_min_max": False, "null_count": 1}, False),
        ({"has_min_max": False, "null_count": 2}, True),
        ({"max": "b"}, True),
        # As Arrow 17 reads a bound that is not there.
        ({"max": ""}, False),
        ({"max": b""}, False),
        ({"max": 0, "physical_type": "INT64"}, True),
    ],
)
def test_a_bound_counts_if_it_is_there(statistics: dict[str, Any] | None, bounded: bool) -> None:
    """Executors may have an older Arrow, which hides that a bound is missing."""
    known = {"has_min_max": True, "has_null_count": True, "null_count": 0, "physical_type": "BYTE_ARRAY"}
    found = None if statistics is None else SimpleNamespace(**known | statistics)
    assert iceberg_bounds._is_bounded(SimpleNamespace(statistics=found, num_values=2)) is bounded
