"""The tasks of a group of followed tables into tables of Spark's catalog: as ``operator_flow``, with a real cluster."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.sinks import SparkTableSink
from airflow_provider_backpressure.sources import PostgresSource
from tests.support import duck
from tests.support.lakes import Cluster
from tests.support.ledgers import new_ledger
from tests.support.operator_flow import BUDGET, OperatorFlow


@dataclass(frozen=True, kw_only=True)
class LakeFlow(OperatorFlow):
    """One task group of tables of ``public`` into those of a schema of the cluster's catalog."""

    format: str
    prefix: str
    """Beginning of the names of the targets, which no other test has."""
    folder: str
    """Where the cluster has its tables."""
    maintain_every: int = 0

    @classmethod
    def make_into(
        cls, format_: str, cluster: Cluster, database: Endpoint, folder: Path, prefix: str, **values: Any
    ) -> "LakeFlow":
        """Make the tables, each with some rows, and a ledger."""
        new_ledger(folder / "ledger.db")
        port = int(cluster.url.rpartition(":")[2].partition("/")[0])
        place = {"format": format_, "prefix": prefix, "folder": str(cluster.folder), "spark": port}
        made = cls(database=database, ledger=str(folder / "ledger.db"), **place, **values)
        for name in made.names:
            made.make_table(name)
        return made

    @property
    def cluster(self) -> Cluster:
        """The cluster."""
        return Cluster(url=f"sc://127.0.0.1:{self.spark}", ui_url="", folder=Path(self.folder))

    @property
    def declared(self) -> dict[str, Any]:
        """Arguments of every operator."""
        tables = self.tables or tuple(f"public.{name}" for name in self.names)
        table = self.place("{table}")["table"]
        return {
            "source": PostgresSource(conn_id="source", tables=tables, at_wal_limit=self.policy),
            "sink": SparkTableSink(
                **{
                    "table": table,
                    "spark_conn_id": "spark",
                    "format": self.format,
                    "maintain_every": self.maintain_every,
                    **self.sink,
                }
            ),
            "spark_conn_id": "spark",
            "budget": BUDGET,
        }

    def place(self, name: str) -> dict[str, Any]:
        """Return what the target of a table is declared with."""
        return self.cluster.place(self.format, f"{self.prefix}_{name}")

    def rows(self, name: str) -> list[tuple[Any, ...]]:
        """Return the rows of a target, which two engines read alike."""
        found = self.cluster.rows(self.place(name))
        assert len(found) == len(set(found)), "a row is there twice"
        theirs = duck.read_rows(self.format, self.cluster.find_folder(self.place(name)))
        assert sorted(theirs, key=lambda row: row[0]) == found
        return found

    def differs(self, *names: str) -> dict[str, tuple[int, int]]:
        """Return how many rows only the source and only the target has, of the tables that are not the same."""
        found = {}
        for name in names or self.names:
            ours, theirs = {*self.do(f"SELECT id, v, doc FROM {name}")}, {*self.rows(name)}
            found[name] = (len(ours - theirs), len(theirs - ours))
        return {name: each for name, each in found.items() if each != (0, 0)}


if __name__ == "__main__":
    LakeFlow.read(Path(sys.argv[1])).run()
