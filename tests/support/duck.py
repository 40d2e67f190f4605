"""Tables of Delta and Iceberg, read by DuckDB: an engine that shares no code with Spark, pyiceberg or delta-rs."""

from importlib import import_module
from pathlib import Path
from typing import Any

import duckdb

EXTENSIONS = {"delta": ("delta",), "iceberg": ("avro", "iceberg")}
"""What DuckDB needs for each format, from packages: it would download them."""
SCANS = {"delta": "delta_scan", "iceberg": "iceberg_scan"}


def read_rows(format_: str, folder: Path, columns: str = "*") -> list[tuple[Any, ...]]:
    """Return all rows of the table in a folder, in no order."""
    extensions = Path(next(iter(import_module("duckdb_ext").__path__))) / "extensions"
    with duckdb.connect(config={"autoinstall_known_extensions": "false"}) as connection:
        connection.execute(f"SET extension_directory = '{extensions}'")
        for name in EXTENSIONS[format_]:
            connection.load_extension(name)
        return connection.execute(f"SELECT {columns} FROM {SCANS[format_]}('{folder}')").fetchall()
