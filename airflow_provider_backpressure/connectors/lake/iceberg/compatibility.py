"""What of Iceberg this package writes: tables without partitions, rows without delete files."""

import pyarrow
from pyiceberg.table import Table

from airflow_provider_backpressure.exceptions import SinkRefused

PROPERTIES = {
    # Old metadata files go as new ones come: each commit writes one, with all snapshots and slices in it.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    # Otherwise every commit leaves a manifest of its own, and readers open them all.
    "commit.manifest-merge.enabled": "true",
}
"""Of a table that is created here."""
_LARGE = {pyarrow.large_string(): pyarrow.string(), pyarrow.large_binary(): pyarrow.binary()}


def to_stored_schema(schema: pyarrow.Schema) -> pyarrow.Schema:
    """Return a schema as Iceberg has it: its least integer has 32 bits."""
    fields = [field.with_type(pyarrow.int32()) if field.type == pyarrow.int16() else field for field in schema]
    return pyarrow.schema(fields)


def schema_of(table: Table, name: str) -> pyarrow.Schema:
    """Return a table's columns; ``SinkRefused`` for one that this package must not write into."""
    if not table.spec().is_unpartitioned():
        raise SinkRefused(f"{name} is partitioned by {table.spec()}: that is not supported.")
    fields = [
        pyarrow.field(field.name, _LARGE.get(field.type, field.type), field.nullable)
        for field in table.schema().as_arrow()
    ]
    return pyarrow.schema(fields)
