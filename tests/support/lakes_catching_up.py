"""A table of a catalog of Spark's that is hydrated under ``catch_up``, run after run."""

from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.gate.hydration_record import Hydration
from airflow_provider_backpressure.core.planning.catch_up_windows import check_caught_up
from airflow_provider_backpressure.core.ports import Runner
from airflow_provider_backpressure.core.verification.completeness_check import Completion
from tests.support import duck, mysql
from tests.support.catching_up import Followed
from tests.support.composed import Composed
from tests.support.lakes import Cluster

Rows = list[tuple[Any, ...]]


@dataclass(frozen=True, kw_only=True)
class FollowedTable(Followed):
    """One hydration of ``t`` into a table that Spark's own connector writes."""

    cluster: Cluster
    query: str = "SELECT * FROM t ORDER BY 1"
    """What the source is compared by; the first column is the key."""

    def finish(self) -> Hydration:
        """End the run, as its last task does."""
        with self.ports() as ports:
            check_caught_up(ports.plan, ports.sink)
            Completion(plan=ports.plan, ledger=ports.ledger, sink=ports.sink).check()
            ports.sink.complete(ports.plan)
            return ports.ledger.finish(ports.hydration.id)

    def rows(self) -> Rows:
        """Return the rows of the target, read without Spark."""
        return self.cluster.rows(self.composed.into)

    def differs(self) -> tuple[int, int]:
        """How many rows only the source and only the target has, which two engines read alike."""
        ours, theirs = self.source(self.query), self.rows()
        assert len(theirs) == len(set(theirs)), "a row is there twice"
        into = self.composed.into
        assert sorted(duck.read_rows(into["format"], self.cluster.find_folder(into)), key=lambda row: row[0]) == theirs
        return len(set(ours) - set(theirs)), len(set(theirs) - set(ours))


class FollowedMySQLTable(FollowedTable):
    """The same of a table in MySQL."""

    def source(self, *statements: str) -> Rows:
        """Do things to the source."""
        return mysql.run(self.composed.source, "SET SESSION cte_max_recursion_depth = 100000000", *statements)


def follow(
    hydration: Composed,
    cluster: Cluster,
    into: dict[str, Any],
    runner: Runner,
    logins: dict[str, Endpoint],
    budget: Budget | None = None,
) -> FollowedTable:
    """Let a hydration follow its source into a table of the cluster, run by a session that logs in by these."""
    logins["source"] = replace(hydration.source, conn_id="source")
    composed = replace(
        hydration,
        remote=cluster.url,
        ui_url=cluster.ui_url,
        into=into,
        mode="upsert",
        consistency="catch_up",
        budget=budget or Budget(credits=2, range_rows=2000),
    )
    made = FollowedMySQLTable if composed.kind == "mysql" else FollowedTable
    return made(composed=composed, runner=runner, cluster=cluster)
