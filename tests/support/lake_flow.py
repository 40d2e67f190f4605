"""The tasks of a group of followed tables into tables of Spark's catalog: as ``operator_flow``, with a real cluster."""

import sys
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from airflow_provider_backpressure.connectors.lake.spark.commit_notes import Kind, Note, is_shared_window
from airflow_provider_backpressure.connectors.lake.spark.sql_session import SqlSession
from airflow_provider_backpressure.connectors.lake.spark.table import open_table
from airflow_provider_backpressure.core.endpoints import NOWHERE, Endpoint
from airflow_provider_backpressure.sinks import SparkTableSink
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
        table = self.place("{table}")["table"]
        return {
            "source": self.declare_source(),
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
            ours, theirs = {*self.change(f"SELECT id, v, doc FROM {name}")}, {*self.rows(name)}
            found[name] = (len(ours - theirs), len(theirs - ours))
        return {name: each for name, each in found.items() if each != (0, 0)}


def list_windows(flow: LakeFlow, name: str) -> list[Note]:
    """Return the notes of windows in a target's own log."""
    place = flow.place(name)
    with closing(SqlSession(replace(NOWHERE, password=flow.cluster.url))) as session:
        table: Any = open_table(session.get(), place["format"], place["table"])
        table.state()
        notes = table._notes if place["format"] == "iceberg" else [each.note for each in table._commits]
    return [each for each in notes if each and each.kind is Kind.MARK and is_shared_window(each.about["slice_id"])]


def check_windows(flow: LakeFlow) -> None:
    """Fail where a window was committed twice to a table, or not where the one before it has ended."""
    for name in flow.names:
        bounds = [each.about["bounds"] for each in list_windows(flow, name)]
        assert bounds, name
        bounds.sort(key=lambda each: int(each["start"].partition(" ")[0]))
        ends = [each["end"].partition(" ")[0] for each in bounds]
        assert [each["start"].partition(" ")[0] for each in bounds][1:] == ends[:-1], name


def write_everything(flow: LakeFlow, value: int) -> None:
    """Write transactions over all tables: updates that leave long values out, deletes, keys that change, inserts."""
    for name in flow.names:
        flow.change(
            f"UPDATE {name} SET v = {value}",
            f"UPDATE {name} SET id = id + 1000 WHERE id = {value + 10}",
            f"DELETE FROM {name} WHERE id = {value + 30}",
            f"INSERT INTO {name} VALUES ({5000 + value}, {value}, repeat('z', 3000))",
        )


def plans(flow: LakeFlow) -> dict[str, str]:
    """Return the plan by which each table was read as a whole."""
    every = [one for one in flow.hydrations() if one.plan and one.plan.stream]
    return {one.source_identity.rpartition(".")[2]: one.plan.plan_id for one in every if one.plan}


if __name__ == "__main__":
    LakeFlow.read(Path(sys.argv[1])).run()
