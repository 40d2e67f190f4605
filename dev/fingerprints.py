"""Count and checksum of rows, as plain readers see them that share nothing with the product.

The checksum is the sum of the first 60 bits of MD5 over each row's text, its values with a space between them: every
server can make it, and the order of the rows does not matter. A NULL leaves its place out.
"""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pyarrow
import pyarrow.compute
import pyarrow.dataset
import pymysql
from psycopg import sql

DIGITS = 15
"""Hexadecimal digits of MD5 that are summed."""
Fingerprint = tuple[int, int]
"""Rows and checksum."""


def in_postgres(connection: "psycopg.Connection[Any]", schema: str, table: str, columns: Sequence[str]) -> Fingerprint:
    """Return those of a table in PostgreSQL."""
    statement = sql.SQL(
        "SELECT count(*), coalesce(sum(('x' || left(md5(concat_ws(' ', {})), {}))::bit(60)::bigint), 0) FROM {}"
    )
    names = sql.SQL(", ").join(map(sql.Identifier, columns))
    found = connection.execute(statement.format(names, DIGITS, sql.Identifier(schema, table))).fetchone()
    assert found is not None
    return int(found[0]), int(found[1])


def in_mysql(connection: "pymysql.Connection[Any]", table: str, columns: Sequence[str]) -> Fingerprint:
    """Return those of a table in MySQL; names are taken as they are."""
    digits = f"LEFT(MD5(CONCAT_WS(' ', {', '.join(columns)})), {DIGITS})"
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT count(*), coalesce(sum(CAST(CONV({digits}, 16, 10) AS unsigned)), 0) FROM {table}")
        rows, total = cursor.fetchone() or (0, 0)
    return int(rows), int(total)


def in_files(folder: Path, columns: Sequence[str]) -> Fingerprint:
    """Return those of a folder of Parquet."""
    if not folder.exists():
        return 0, 0
    batches = pyarrow.dataset.dataset(folder, format="parquet").to_batches(columns=list(columns))
    return of_texts(text for batch in batches for text in _texts(batch))


def of_texts(texts: Iterable[str]) -> Fingerprint:
    """Return those of rows that are given as their texts."""
    rows, total = 0, 0
    for text in texts:
        rows += 1
        total += int(hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()[:DIGITS], 16)
    return rows, total


def _texts(batch: pyarrow.RecordBatch) -> list[str]:
    values = [column.cast(pyarrow.string()) for column in batch.columns]
    joined: list[str] = pyarrow.compute.binary_join_element_wise(*values, " ", null_handling="skip").to_pylist()
    return joined
