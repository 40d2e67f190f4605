"""The demo's tables of files, compared with the rows they were made from by readers of other projects."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow
import pyarrow.dataset
from deltalake import DeltaTable
from psycopg import sql
from pyarrow import csv
from pyiceberg.catalog import load_catalog

ROWS = 1_000_000
"""Rows of lineitem that the example takes."""


def compared(folder: Path, source: "psycopg.Connection[Any]") -> Iterator[tuple[str, int, bool]]:
    """Yield each table's name, its rows, and whether they are the source's."""
    expected: pyarrow.Table | None = None
    for name, table in _tables(folder):
        if expected is None:
            expected = _source(source, table.schema)
        there = table.select(expected.schema.names).cast(expected.schema).sort_by("l_id")
        yield name, there.num_rows, there.equals(expected)


def _tables(folder: Path) -> Iterator[tuple[str, pyarrow.Table]]:
    yield "parquet/lineitem", pyarrow.dataset.dataset(folder / "parquet/lineitem", format="parquet").to_table()
    yield "delta/lineitem", DeltaTable(folder / "delta/lineitem").to_pyarrow_table()
    catalog = load_catalog(
        "lake", type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/iceberg"
    )
    yield "iceberg/raw.lineitem", catalog.load_table("raw.lineitem").scan().to_arrow()


def _source(connection: "psycopg.Connection[Any]", schema: pyarrow.Schema) -> pyarrow.Table:
    """Return the source's rows in the order of their key, typed as the files are."""
    text = io.BytesIO()
    query = sql.SQL("COPY (SELECT * FROM lineitem WHERE l_id <= {} ORDER BY l_id) TO STDOUT (FORMAT csv, HEADER)")
    with connection.cursor().copy(query.format(ROWS)) as copy:
        for block in copy:
            text.write(block)
    text.seek(0)
    plain = {field.name: _plain(field.type) for field in schema}
    table = csv.read_csv(text, convert_options=csv.ConvertOptions(column_types=plain))
    return table.cast(pyarrow.schema([pyarrow.field(name, plain[name]) for name in table.schema.names]))


def _plain(type_: pyarrow.DataType) -> pyarrow.DataType:
    return pyarrow.string() if pyarrow.types.is_large_string(type_) else type_
