"""Tables of files by their kind, declared by the product and read by nothing of it."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.dataset
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from airflow_provider_backpressure.sinks import DeltaSink, IcebergSink, ParquetSink

KINDS = ("delta", "iceberg", "parquet")


def place(kind: str, folder: Path) -> dict[str, Any]:
    """Return what a table of this kind in a folder is declared with."""
    if kind != "iceberg":
        return {"kind": kind, "path": str(folder / "lake" / "t")}
    uri = f"sqlite:///{folder}/lake.db"
    return {
        "kind": kind,
        "table": "raw.t",
        "catalog": {"name": "lake", "type": "sql", "uri": uri, "warehouse": f"file://{folder}"},
    }


def declared(kind: str, **fields: Any) -> DeltaSink | IcebergSink | ParquetSink:
    """Return the declaration."""
    return {"delta": DeltaSink, "iceberg": IcebergSink, "parquet": ParquetSink}[kind](**fields)


def table(kind: str, *, quarantine: int | None = None, **fields: Any) -> pyarrow.Table:
    """Return all rows, read by the format's own library."""
    if kind == "parquet":
        return pyarrow.dataset.dataset(fields["path"], format="parquet").to_table()
    if kind == "delta":
        return DeltaTable(fields["path"]).to_pyarrow_table()
    with closing(load_catalog(**fields["catalog"])) as catalog:
        return catalog.load_table(fields["table"]).scan().to_arrow()


def rows(place: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Return all rows as Python's values, ordered by the first column."""
    found = table(**place)
    return sorted(zip(*(column.to_pylist() for column in found.columns), strict=True), key=lambda row: row[0])
