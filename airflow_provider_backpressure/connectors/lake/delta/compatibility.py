"""What of Delta this package writes: tables without partitions and without features that constrain rows."""

import pyarrow
from deltalake import DeltaTable

from airflow_provider_backpressure.exceptions import SinkRefused

FORBIDDEN = " ,;{}()\n\t="
"""Characters that Delta takes in no column's name."""
FEATURES = frozenset({"timestampNtz", "appendOnly", "invariants", "v2Checkpoint", "vacuumProtocolCheck"})
"""Features that a table may have; others bind how files are read or written."""
_BINDING = (
    "delta.constraints.",
    "delta.columnMapping.mode",
    "delta.enableChangeDataFeed",
    "delta.generationExpression",
)


def schema_of(table: DeltaTable, name: str) -> pyarrow.Schema:
    """Return a table's columns; ``SinkRefused`` as for :func:`check_features`."""
    check_features(table, name)
    return pyarrow.schema(table.schema().to_arrow())


def check_features(table: DeltaTable, name: str) -> None:
    """Raise ``SinkRefused`` for a table whose files, as it is now, must not be written here, nor read by themselves."""
    protocol, metadata = table.protocol(), table.metadata()
    if metadata.partition_columns:
        raise SinkRefused(f"{name} is partitioned by {', '.join(metadata.partition_columns)}: that is not supported.")
    features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    strange = sorted(str(feature) for feature in features - FEATURES)
    strange += sorted(
        key
        for key, value in metadata.configuration.items()
        if key.startswith(_BINDING) and value not in ("none", "false")
    )
    if strange:
        raise SinkRefused(
            f"{name} has features that are not supported: {', '.join(strange)}. Drop them, or name another table."
        )


def check_names(schema: pyarrow.Schema, name: str) -> None:
    """Raise ``SinkRefused`` for a column whose name Delta does not take, or takes for that of another."""
    strange = [field.name for field in schema if any(character in FORBIDDEN for character in field.name)]
    if strange:
        names = ", ".join(map(repr, strange))
        raise SinkRefused(f"Delta takes no column {names} in {name}: no spaces nor any of ,;{{}}()=.")
    folded = [column.lower() for column in schema.names]
    twice = sorted({column for column in schema.names if folded.count(column.lower()) > 1})
    if twice:
        raise SinkRefused(f"Delta cannot distinguish the columns {', '.join(twice)} of {name}.")
