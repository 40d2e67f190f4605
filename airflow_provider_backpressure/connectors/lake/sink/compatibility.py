"""Whether rows may go into a table of files."""

from collections.abc import Sequence

import pyarrow

from airflow_provider_backpressure.connectors.lake.table import LakeTable
from airflow_provider_backpressure.core.config import Mode
from airflow_provider_backpressure.core.snapshot.messages import Column
from airflow_provider_backpressure.exceptions import SinkRefused


def check_mode(table: LakeTable, mode: Mode, key: Sequence[str], columns: Sequence[Column]) -> None:
    """Raise ``SinkRefused`` for a mode that the format does not have, or a key that does not arrive."""
    if mode is Mode.REPLACE:
        others = "use append into an empty table, or upsert" if table.merges else "use append into an empty folder"
        raise SinkRefused(f"{table.name} cannot be replaced at once: {others}.")
    if mode is not Mode.UPSERT:
        return
    if not table.merges:
        raise SinkRefused(f"{table.name} has no rows that a key could identify: Parquet files take append only.")
    if not key:
        raise SinkRefused(f"{table.name} cannot be upserted without a key.")
    missing = [name for name in key if name not in {column.name for column in columns}]
    if missing:
        raise SinkRefused(f"The key of {table.name} has columns that do not arrive: {', '.join(missing)}.")


def check_columns(name: str, there: pyarrow.Schema | None, arriving: pyarrow.Schema) -> None:
    """Raise ``SinkRefused`` unless an existing table has exactly the columns that arrive, of the same types.

    It names all that do not fit at once.
    """
    if there is None:
        return
    extra = sorted(set(there.names) - set(arriving.names))
    missing = sorted(set(arriving.names) - set(there.names))
    against = [f"it has no column {', '.join(missing)}"] if missing else []
    if extra:
        against.append(f"{', '.join(extra)} there does not arrive")
    for field in arriving:
        if field.name in missing:
            continue
        other = there.field(field.name)
        if other.type != field.type:
            against.append(f"column {field.name} is {field.type} here and {other.type} there")
        elif field.nullable and not other.nullable:
            against.append(f"column {field.name} takes no NULL there, and may be NULL where it comes from")
    if against:
        raise SinkRefused(f"Rows cannot go into {name}: {'; '.join(against)}.")
