"""Columns of an Iceberg table beside those of its version: ALTER TABLE changes the first and makes no version."""

import json
import re
from typing import Any

from airflow_provider_backpressure.connectors.lake.source.spark_sql_names import quote
from airflow_provider_backpressure.connectors.lake.spark.connect_or_classic_session import SPARK_ERRORS
from airflow_provider_backpressure.connectors.lake.spark.table import is_lost

_SCHEMA_ID = re.compile(r"schemaId=(\d+), snapshotId=")
_OF_NO_VALUE = frozenset({"doc", "required", "write-default"})
"""What may change of a column without another value for a reader."""


def is_altered(session: Any, table: str, version: str) -> bool:
    """Whether a table has other columns than its current version, which is read with the columns of its commit.

    A column that was dropped and added again has the old name and type. So numbers of schemas are compared, which
    Iceberg shows in plans since 1.11. Another number may be due to a comment alone: then the fields decide, by their
    ids, in the table's metadata file. Where the cluster cannot read the file, another number counts as altered.
    """
    sides = (table, f"{table} VERSION AS OF {version}")
    now, then = (_find_schema_id(session, side) for side in sides)
    if now is None and then is None:
        here, there = (session.sql(f"SELECT * FROM {side}").schema.fields for side in sides)  # noqa: S608
        shown = [[(each.name, each.dataType.simpleString()) for each in fields] for fields in (here, there)]
        return shown[0] != shown[1]
    if now == then:
        return False
    fields = _read_fields(session, table)
    return now not in fields or fields[now] != fields.get(then)


def _find_schema_id(session: Any, side: str) -> int | None:
    # Without columns, whose names could read like the number.
    found = [_SCHEMA_ID.findall(row["plan"]) for row in session.sql(f"EXPLAIN SELECT 1 FROM {side}").collect()]  # noqa: S608
    return int(found[-1][-1]) if found and found[-1] else None


def _read_fields(session: Any, table: str) -> dict[int | None, Any]:
    """Return the fields of each schema by its number; none where the cluster cannot read the metadata file."""
    try:
        *_, entry = session.sql(f"SELECT file FROM {table}.metadata_log_entries").collect()  # noqa: S608
        (line,) = session.sql(f"SELECT value FROM text.{quote(entry['file'])}").collect()  # noqa: S608
        metadata = json.loads(line["value"], object_hook=_leave_values)
        return {each["schema-id"]: each["fields"] for each in metadata["schemas"]}
    except SPARK_ERRORS as error:
        if is_lost(error):
            raise
    except (ValueError, LookupError):
        pass
    return {}


def _leave_values(described: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in described.items() if name not in _OF_NO_VALUE}
