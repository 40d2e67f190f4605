"""Timestamps as INT96, as Spark writes them by default, also when it compacts files of this package.

deltalake's merge reads them as nanoseconds in 64 bits, which end in 2262: it would write every other time of a file
that it touches as another time (deltalake 1.6).
"""

from collections.abc import Iterator

import pyarrow
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from airflow_provider_backpressure.connectors.lake.delta import file_actions
from airflow_provider_backpressure.connectors.lake.plan_and_mark_files import batches
from airflow_provider_backpressure.connectors.lake.storage import Place
from airflow_provider_backpressure.exceptions import SinkRefused

_LEAST, _GREATEST = (pyarrow.scalar(each // 1000, pyarrow.timestamp("us")) for each in (1 - 2**63, 2**63 - 1))
"""First and last time that nanoseconds in 64 bits hold, in whole microseconds."""
_checked: dict[str, frozenset[str]] = {}
"""Files by table that this process has found to be right: a file never changes."""


def check_mergeable(table: DeltaTable, place: Place) -> None:
    """Raise ``SinkRefused`` where a merge would change times that it only carries over.

    Each file is opened once in a process: its footer, and the columns that are INT96.
    """
    if not any(pyarrow.types.is_timestamp(field.type) for field in pyarrow.schema(table.schema().to_arrow())):
        return
    active = frozenset(file_actions.active(table))
    for name in sorted(active - _checked.get(place.path, frozenset())):
        for column, values in _read_int96(place, name):
            if not _is_held(values):
                raise SinkRefused(
                    f"{name} of {place.path} has times in the column {column} before 1678 or after 2262, as INT96: the "
                    "library that merges rows would change them. In a session of Spark with "
                    "spark.sql.parquet.outputTimestampType=TIMESTAMP_MICROS, write the files again, as by UPDATE of a "
                    "column to itself, and compact the table in such sessions only."
                )
    _checked[place.path] = active


def _read_int96(place: Place, name: str) -> Iterator[tuple[str, pyarrow.Array]]:
    with place.input(name) as stream:
        footer = pq.read_metadata(stream)
    schema = (footer.schema.column(number) for number in range(footer.num_columns))
    found = [column.path for column in schema if column.physical_type == "INT96"]
    for batch in batches(place.input(name), found) if found else ():
        yield from zip(batch.schema.names, batch.columns, strict=True)


def _is_held(values: pyarrow.Array) -> bool:
    ends = pc.min_max(values.cast(pyarrow.timestamp("us")))
    least, greatest = ends["min"], ends["max"]
    return not least.is_valid or bool(least.as_py() >= _LEAST.as_py() and greatest.as_py() <= _GREATEST.as_py())
