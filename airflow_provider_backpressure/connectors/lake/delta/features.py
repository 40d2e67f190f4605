"""Which Delta tables can be written: their features, the names of their columns, and the bounds in their log."""

import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import pyarrow
from deltalake import ColumnProperties, DeltaTable, TableFeatures, WriterProperties

from airflow_provider_backpressure.exceptions import SinkRefused

log = logging.getLogger(__name__)

BOUNDED, NO_BOUNDS = "delta.dataSkippingStatsColumns", "delta.dataSkippingNumIndexedCols"
_PLAIN = re.compile(r"[A-Za-z_]\w*")
FORBIDDEN = " ,;{}()\n\t="
"""Characters that Delta takes in no column's name."""
FEATURES = frozenset({"timestampNtz", "appendOnly", "invariants", "v2Checkpoint", "vacuumProtocolCheck"})
"""Features that a table may have; others bind how files are read or written."""
_BINDING = ("delta.constraints.", "delta.columnMapping.mode", "delta.enableChangeDataFeed")
_OF_COLUMNS = ("delta.invariants", "delta.generationExpression", "delta.identity.", "__CHAR_VARCHAR_TYPE_STRING")
"""What binds the values of a column, and is kept with it: no writer but Spark's looks at it."""


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
    strange += sorted(_find_bound(json.loads(table.schema().to_json())))
    if strange:
        raise SinkRefused(
            f"{name} has features that are not supported: {', '.join(strange)}. Drop them, or name another table."
        )


def check_changeable(table: DeltaTable | None, name: str) -> None:
    """Raise ``SinkRefused`` for a table from which no row may be taken, nor changed."""
    if table is not None and table.metadata().configuration.get("delta.appendOnly") == "true":
        raise SinkRefused(f"{name} takes only new rows (delta.appendOnly): use mode='append', or unset that.")


def _find_bound(type_: Any) -> Iterator[str]:
    """Yield which columns of a schema, or parts of them, are bound by what."""
    if not isinstance(type_, dict):
        return
    for field in type_.get("fields", ()):
        yield from (f"{key} of {field['name']}" for key in field.get("metadata", {}) if key.startswith(_OF_COLUMNS))
        yield from _find_bound(field.get("type"))
    for part in ("elementType", "keyType", "valueType"):
        yield from _find_bound(type_.get(part))


def select_bounded(schema: pyarrow.Schema) -> dict[str, str]:
    """Return the setting by which merges write bounds only of columns of which they are right.

    Of decimals the library writes doubles and of infinities none, and readers then pass over files that have the rows.
    """
    names = [
        field.name
        for field in schema
        if (pyarrow.types.is_integer(field.type) or pyarrow.types.is_date(field.type)) and _PLAIN.fullmatch(field.name)
    ]
    return {BOUNDED: ",".join(names)} if names else {NO_BOUNDS: "0"}


def create_writer_properties(schema: pyarrow.Schema) -> WriterProperties:
    """Return how a merge writes files: as :func:`..tasks.parquet_writer.open_writer`, without bounds of floats.

    The library's leave NaN out, and filters of readers then pass over rows with NaN.
    """
    unbounded = ColumnProperties(statistics_enabled="NONE")
    floats = {field.name: unbounded for field in schema if pyarrow.types.is_floating(field.type)}
    return WriterProperties(compression="ZSTD", column_properties=floats)


def keep_bounds_right(table: DeltaTable | None, name: str) -> None:
    """Let a table that was made by others have the setting too, where rows are merged into it."""
    if table is None:
        return
    schema = pyarrow.schema(table.schema().to_arrow())
    inexact = (pyarrow.types.is_decimal, pyarrow.types.is_floating)
    wrong = [each.name for each in schema if any(is_kind(each.type) for is_kind in inexact)]
    if wrong and not {BOUNDED, NO_BOUNDS} & table.metadata().configuration.keys():
        log.warning(
            "%s gets a setting, so that no wrong bounds of %s are written into its log.", name, ", ".join(wrong)
        )
        table.alter.set_table_properties(select_bounded(schema))


def list_implied_features(table: DeltaTable | None) -> None:
    """List features in a table's protocol that the library leaves out, and without which Spark refuses the table.

    From writer version 7 on, which times without a zone bring, columns that may not be NULL need one (deltalake 1.6).
    """
    if table is None:
        return
    protocol = table.protocol()
    listed = protocol.writer_features or ()
    needed = any(not field.nullable for field in table.schema().fields)
    if protocol.min_writer_version >= 7 and needed and "invariants" not in listed:
        table.alter.add_feature([TableFeatures.Invariants, TableFeatures.AppendOnly])


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
