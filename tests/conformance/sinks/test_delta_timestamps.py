"""Delta tables that Spark has compacted by its defaults: their timestamps are INT96, and not every reader is right."""

import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.transaction import AddAction, RemoveAction

from airflow_provider_backpressure.core.snapshot.spark_messages import Column
from airflow_provider_backpressure.exceptions import SinkRefused
from airflow_provider_backpressure.spark.column_types import carrier
from airflow_provider_backpressure.spark.stream_end import END
from tests.conformance.sinks.cases import COLUMNS, DeltaCase
from tests.conformance.sinks.support import Begun, begin
from tests.conformance.sinks.test_landed import landed, read_back

pytestmark = [
    pytest.mark.integration,
    pytest.mark.statement("X3"),
    pytest.mark.parametrize("case", ["delta"], indirect=True),
]

NOW, LATER = datetime(2026, 5, 4, 3, 2, 1, 7, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
LEAST, GREATEST = (datetime(1970, 1, 1, tzinfo=UTC) + sign * ((2**63 - 1) // 1000) * MICROSECOND for sign in (-1, 1))
"""The first and the last time that fit into 64 bits as nanoseconds."""
FIRST, LAST = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_times_that_spark_has_compacted_are_read(case: DeltaCase, mode: str) -> None:
    """X3: of all years, by verification and by a run that reads back what was landed."""
    begun = fill(case, mode, {1: FIRST, 2: LAST, 3: NOW}, ranges=1)
    before = begun.read_back(None)
    compact(case.folder)
    assert begun.read_back(None) == before
    with landed(case) as source:
        rows = sorted(row for part in read_back(source) for row in part)
    assert rows == [(1, FIRST), (2, LAST), (3, NOW)]


def test_rows_are_merged_where_the_library_reads_the_times_right(case: DeltaCase) -> None:
    """X3: it takes them for nanoseconds, which hold them from 1678 to 2262."""
    begun = fill(case, "upsert", {1: NOW, 2: LEAST, 3: GREATEST})
    compact(case.folder)
    case.write(begun.spec(1), rows({1: LATER}))
    assert read(case.folder) == {1: LATER, 2: LEAST, 3: GREATEST}


@pytest.mark.parametrize("strange", [FIRST, LEAST - MICROSECOND, GREATEST + MICROSECOND, LAST])
def test_rows_are_not_merged_into_times_that_would_change(case: DeltaCase, strange: datetime) -> None:
    """X3: the row that is merged is another one of the file. Once the files are written again, the rows go in."""
    begun = fill(case, "upsert", {1: NOW, 2: strange})
    compact(case.folder)
    with pytest.raises(SinkRefused, match="times in the column at before 1678 or after 2262, as INT96"):
        case.write(begun.spec(1), rows({1: LATER}))
    assert read(case.folder) == {1: NOW, 2: strange}
    compact(case.folder, int96=False)
    case.write(begun.spec(1), rows({1: LATER}))
    assert read(case.folder) == {1: LATER, 2: strange}


def fill(case: DeltaCase, mode: str, values: dict[int, datetime], ranges: int = 2) -> Begun:
    """Land rows in a table of a key and a time."""
    case.columns = (COLUMNS[0], Column(name="at", type="timestamp with time zone"))
    begun = begin(case, mode=mode, ranges=ranges)
    case.write(begun.spec(0), rows(values))
    return begun


def rows(values: dict[int, datetime], type_: str = "timestamp with time zone") -> Iterator[pyarrow.RecordBatch]:
    """Yield rows and their end, as the frame path hands them over."""
    at = carrier(type_)[0]
    schema = pyarrow.schema([("id", pyarrow.int64()), ("at", at), (END, pyarrow.bool_())])
    times = pyarrow.array(list(values.values()), pyarrow.timestamp("us", "UTC")).cast(at)
    yield pyarrow.record_batch([pyarrow.array(values), times, pyarrow.array([False] * len(values))], schema=schema)
    yield pyarrow.record_batch([*(pyarrow.nulls(1, each) for each in schema.types[:2]), pyarrow.array([True])], schema)


def read(folder: Path) -> dict[int, datetime]:
    """Return the rows that readers see."""
    reading = ds.ParquetReadOptions(coerce_int96_timestamp_unit="us")
    found = DeltaTable(folder).to_pyarrow_dataset(parquet_read_options=reading).to_table()
    return {row["id"]: row["at"] for row in found.sort_by("id").to_pylist()}


def compact(folder: Path, *, int96: bool = True) -> None:
    """Write all rows into one file, as Spark does: its own settings write INT96."""
    table, name = DeltaTable(folder), f"part-00000-{uuid.uuid4()}-c000.snappy.parquet"
    reading = ds.ParquetReadOptions(coerce_int96_timestamp_unit="us")
    found = table.to_pyarrow_dataset(parquet_read_options=reading).to_table()
    pq.write_table(found, folder / name, use_deprecated_int96_timestamps=int96, store_schema=False)
    now, sizes = int(time.time() * 1000), pyarrow.table(table.get_add_actions(flatten=True)).to_pylist()
    old = [RemoveAction(each["path"], False, now, each["size_bytes"], {}) for each in sizes]
    about = json.dumps({"numRecords": found.num_rows})
    new = AddAction(name, (folder / name).stat().st_size, {}, now, False, about)
    table.create_write_transaction([*old, new], "append", table.schema())


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_spark_may_read_times_without_a_zone_beside_a_key(case: DeltaCase, mode: str) -> None:
    """X3: columns that are never NULL are a feature of the table then, which Spark wants listed."""
    case.columns = (replace(COLUMNS[0], nullable=False), Column(name="at", type="timestamp without time zone"))
    for plan in range(2):
        begun = begin(case, mode=mode, ranges=2)
        case.write(begun.spec(plan), rows({plan: NOW}, case.columns[1].type))
        protocol = DeltaTable(case.folder).protocol()
        assert {"timestampNtz", "invariants", "appendOnly"} <= set(protocol.writer_features or ())
    assert len(read(case.folder)) == 2
