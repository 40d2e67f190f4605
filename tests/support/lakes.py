"""Tables of files by their kind, declared by the product and read by nothing of it."""

from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.dataset
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.table import StaticTable

from airflow_provider_backpressure.connectors.lake.spark.sql_session import SqlSession
from airflow_provider_backpressure.core.endpoints import NOWHERE
from airflow_provider_backpressure.sinks import DeltaSink, IcebergSink, ParquetSink, SparkTableSink

KINDS = ("delta", "iceberg", "parquet")
SPARK_TABLE = "spark_table"


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A Spark Connect server with the connectors of Delta and Iceberg, and a catalog of each."""

    url: str
    ui_url: str
    folder: Path

    def place(self, format_: str, name: str, **more: Any) -> dict[str, Any]:
        """Return what a table that this cluster writes is declared with."""
        schema = {"delta": "spark_catalog.default", "iceberg": "lake.raw"}[format_]
        named = {"kind": SPARK_TABLE, "table": f"{schema}.{name}", "spark_conn_id": "spark", "format": format_}
        return {**named, **more}

    def find_folder(self, place: dict[str, Any]) -> Path:
        """Return where the files of such a table are."""
        name = place["table"].rpartition(".")[2]
        return self.folder / {"delta": "warehouse", "iceberg": "iceberg/raw"}[place["format"]] / name

    def read(self, place: dict[str, Any]) -> pyarrow.Table:
        """Return all rows of such a table, read without Spark."""
        if place["format"] == "delta":
            return DeltaTable(self.find_folder(place)).to_pyarrow_table()
        return self._load(place).scan().to_arrow()

    def rows(self, place: dict[str, Any]) -> list[tuple[Any, ...]]:
        """Return all rows as Python's values, ordered by the first column."""
        columns = (column.to_pylist() for column in self.read(place).columns)
        return sorted(zip(*columns, strict=True), key=lambda row: row[0])

    def sql(self, statement: str) -> list[Any]:
        """Run a statement by Spark, as somebody else does, and return its rows."""
        with closing(SqlSession(replace(NOWHERE, password=self.url))) as session:
            found: list[Any] = session.get().sql(statement).collect()
            return found

    def find_version(self, place: dict[str, Any]) -> Any:
        """Return the present version of such a table: a number, or the id of a snapshot."""
        if place["format"] == "delta":
            return self.sql(f"DESCRIBE HISTORY {place['table']} LIMIT 1")[0]["version"]
        return self.sql(f"SELECT snapshot_id FROM {place['table']}.refs WHERE name = 'main'")[0][0]

    def set_back(self, place: dict[str, Any], version: Any) -> None:
        """Make an older version the present one."""
        name = place["table"]
        if place["format"] == "delta":
            self.sql(f"RESTORE TABLE {name} TO VERSION AS OF {version}")
        else:
            self.sql(f"CALL {name.partition('.')[0]}.system.rollback_to_snapshot('{name}', {version})")

    def list_branches(self, place: dict[str, Any]) -> set[str]:
        """Return the names of an Iceberg table's branches."""
        return set(self._load(place).metadata.refs) if place["format"] == "iceberg" else set()

    def _load(self, place: dict[str, Any]) -> StaticTable:
        return StaticTable.from_metadata(f"file://{self.find_folder(place)}")


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


SINKS = {"delta": DeltaSink, "iceberg": IcebergSink, "parquet": ParquetSink, SPARK_TABLE: SparkTableSink}


def declared(kind: str, **fields: Any) -> Any:
    """Return the declaration."""
    return SINKS[kind](**fields)


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
