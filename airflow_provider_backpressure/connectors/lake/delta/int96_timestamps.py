"""Timestamps as INT96, as Spark writes them by default, also when it compacts files of this package.

deltalake's merge reads them as nanoseconds in 64 bits, which end in 2262: it would write every other time of a file
that it touches as another time (deltalake 1.6).
"""

from concurrent.futures import ThreadPoolExecutor

import pyarrow
import pyarrow.compute as pc
from deltalake import DeltaTable

from airflow_provider_backpressure.connectors.lake.delta import file_actions
from airflow_provider_backpressure.connectors.lake.plan_and_mark_files import FOOTERS, batches, footer
from airflow_provider_backpressure.connectors.lake.storage import Place
from airflow_provider_backpressure.exceptions import SinkRefused

MOST = (2**63 - 1) // 1000
"""Microseconds before and after 1970 that fit as nanoseconds into 64 bits."""
_checked: dict[str, frozenset[str]] = {}
"""Files by table that this process has found to be right: a file never changes."""


def check_mergeable(table: DeltaTable, place: Place) -> None:
    """Raise ``SinkRefused`` where a merge would change times that it only carries over.

    Each file is opened once in a process: its footer, and the columns that are INT96.
    """
    if not any(pyarrow.types.is_timestamp(field.type) for field in pyarrow.schema(table.schema().to_arrow())):
        return
    active = frozenset(file_actions.active(table))
    unknown = sorted(active - _checked.get(place.path, frozenset()))
    with ThreadPoolExecutor(FOOTERS) as pool:
        for name, column in zip(unknown, pool.map(lambda each: _find_changed(place, each), unknown), strict=True):
            if column is not None:
                raise SinkRefused(
                    f"{name} of {place.path} has times in the column {column} before 1678 or after 2262, as INT96: the "
                    "library that merges rows would change them. In a session of Spark with "
                    "spark.sql.parquet.outputTimestampType=TIMESTAMP_MICROS, write the files again, as by UPDATE of a "
                    "column to itself, and compact the table in such sessions only."
                )
    _checked[place.path] = active


def _find_changed(place: Place, name: str) -> str | None:
    """Return a column of a file whose times a merge would change."""
    schema = footer(place, name).schema
    columns = [schema.column(number) for number in range(len(schema))]
    found = [column.path for column in columns if column.physical_type == "INT96"]
    for batch in batches(place.input(name), found) if found else ():
        for column in found:
            if not _is_held(batch.column(column)):
                return str(column)
    return None


def _is_held(values: pyarrow.Array) -> bool:
    ends = pc.min_max(values.cast(pyarrow.timestamp("us")).cast(pyarrow.int64())).as_py()
    return ends["min"] is None or (ends["min"] >= -MOST and ends["max"] <= MOST)
