"""Whether rows may go into a table of files."""

from collections.abc import Sequence

import pyarrow

from airflow_provider_backpressure.core.config import Mode
from airflow_provider_backpressure.core.messages import Column
from airflow_provider_backpressure.exceptions import SinkRefused
from airflow_provider_backpressure.lakes.table import LakeTable


def check_mode(table: LakeTable, mode: Mode, key: Sequence[str], columns: Sequence[Column]) -> None:
    """Raise ``SinkRefused`` for a mode that the format does not have, or a key that does not arrive."""
    if mode is Mode.REPLACE:
        raise SinkRefused(f"{table.name} cannot be replaced at once: use append into an empty table, or upsert.")
    if mode is not Mode.UPSERT:
        return
    if not table.merges:
        raise SinkRefused(f"{table.name} has no rows that could be told by a key: Parquet files take append only.")
    if not key:
        raise SinkRefused(f"{table.name} cannot be upserted without a key.")
    missing = [name for name in key if name not in {column.name for column in columns}]
    if missing:
        raise SinkRefused(f"The key of {table.name} has columns that do not arrive: {', '.join(missing)}.")


def check_columns(name: str, there: pyarrow.Schema | None, arriving: pyarrow.Schema) -> None:
    """Raise ``SinkRefused`` unless an existing table has exactly the columns that arrive, of the same types."""
    if there is None:
        return
    extra = sorted(set(there.names) - set(arriving.names))
    missing = sorted(set(arriving.names) - set(there.names))
    if missing:
        raise SinkRefused(f"{name} has no column {', '.join(missing)}.")
    if extra:
        raise SinkRefused(f"{name} has columns that do not arrive: {', '.join(extra)}.")
    for field in arriving:
        other = there.field(field.name)
        if other.type != field.type:
            raise SinkRefused(f"Column {field.name} of {name} is {other.type}, and {field.type} arrives.")
        if field.nullable and not other.nullable:
            raise SinkRefused(f"Column {field.name} of {name} takes no NULL, and may be NULL where it comes from.")
