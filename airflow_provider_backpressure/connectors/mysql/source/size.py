"""How much there is: rows in all, exact where counting is cheap, and the size of a row."""

import math
from collections.abc import Sequence

from airflow_provider_backpressure.connectors.mysql.catalog import CatalogColumn, Relation
from airflow_provider_backpressure.connectors.mysql.shared_connection import Session
from airflow_provider_backpressure.connectors.mysql.source.query import KeyedTable
from airflow_provider_backpressure.connectors.mysql.source.types import long, size
from airflow_provider_backpressure.connectors.relational.size import ASSUMED_ROW_BYTES, COUNTABLE_ROWS, UNEVEN, Size

LONG = 4096
"""Bytes from which on a value may make its row much larger than others."""


def row_size(columns: Sequence[CatalogColumn]) -> str:
    """Return the expression for the bytes of a row."""
    return f"({' + '.join(size(column) for column in columns)})"


def measure_size(session: Session, table: Relation, keyed: KeyedTable, columns: Sequence[CatalogColumn]) -> Size:
    """Return the size of what is asked for, ``columns``; long values are looked at while rows are counted."""
    uneven = any(long(column, LONG) for column in columns)
    if table.rows is not None and table.rows > COUNTABLE_ROWS:
        return Size(
            rows=None if keyed.partial else table.rows,
            exact=False,
            row_bytes=table.row_bytes or ASSUMED_ROW_BYTES,
            widest_bytes=math.inf if uneven else 0.0,
        )
    if not uneven:
        rows = int(session.value(keyed.rows("COUNT(*)")))
        return Size(rows=rows, exact=True, row_bytes=table.row_bytes or ASSUMED_ROW_BYTES, widest_bytes=0.0)
    bytes = row_size(columns)
    rows, mean, widest = session.rows(keyed.rows(f"COUNT(*), AVG({bytes}), MAX({bytes})"))[0]
    row_bytes, widest_bytes = float(mean or ASSUMED_ROW_BYTES), float(widest or 0)
    return Size(
        rows=int(rows),
        exact=True,
        row_bytes=row_bytes,
        widest_bytes=widest_bytes if widest_bytes > UNEVEN * row_bytes else 0.0,
    )
