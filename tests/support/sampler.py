"""A sampler that looks for more in flight than a hydration has credits: in the ledger, in Spark and in the sink."""

import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPException

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.ranges import RangeState
from airflow_provider_backpressure.ledger.repository import SqlLedger
from tests.support.postgres import connected
from tests.support.waiting import beside

PERIOD = 0.1
"""Seconds between two samples."""


@dataclass(kw_only=True)
class Sampler:
    """Looks at one hydration every 100 ms; ``violations`` names what was above the limit."""

    ledger_url: str
    sink: Endpoint
    target: str
    """The hydration is the one whose sink ends so."""
    ui_url: str | None
    limit: int
    range_bytes: int
    samples: int = 0
    most: int = 0
    """Most ranges that were seen in flight."""
    violations: list[str] = field(default_factory=list)

    @contextmanager
    def looking(self) -> Iterator["Sampler"]:
        """Look until the block is left."""
        with beside(self._look):
            yield self

    def _look(self, over: threading.Event) -> None:
        with closing(SqlLedger(self.ledger_url)) as ledger, connected(self.sink) as connection:
            while not over.wait(PERIOD):
                found = next((one for one in ledger.hydrations() if one.sink_identity.endswith(self.target)), None)
                if found is None or found.plan is None:
                    continue
                plan_id = found.plan.plan_id
                flying = ledger.ranges(plan_id, states=[RangeState.ADMITTED])
                row = connection.execute(
                    "SELECT count(*) FROM pg_stat_activity WHERE starts_with(application_name, %s)"
                    " AND starts_with(query, 'COPY') AND query LIKE '%%FROM STDIN%%'",
                    (f"bp:{plan_id}:",),
                ).fetchone()
                assert row is not None
                seen = {
                    "in flight": len(flying),
                    # In shares of the budget, of which a part counts as a whole one.
                    "bytes in flight": -(-sum(each.planned_bytes for each in flying) // self.range_bytes),
                    "sink connections": row[0],
                    "Spark jobs": len(running_jobs(self.ui_url, plan_id)),
                }
                self.samples += 1
                self.most = max(self.most, len(flying))
                self.violations += [f"{name} {value}" for name, value in seen.items() if value > self.limit]


def running_jobs(ui_url: str | None, plan_id: str) -> list[int]:
    """Return the numbers of a plan's jobs that run in Spark now; none where its page does not answer."""
    try:
        base = f"{ui_url}/api/v1/applications"
        with urllib.request.urlopen(base, timeout=2) as answer:
            application = json.load(answer)[0]["id"]
        with urllib.request.urlopen(f"{base}/{application}/jobs?status=running", timeout=2) as answer:
            jobs = json.load(answer)
    except (OSError, HTTPException, ValueError, IndexError):
        return []  # the driver has just been killed, or its page is only coming up
    return [job["jobId"] for job in jobs if any(f"bp:{plan_id}:" in tag for tag in job.get("jobTags", ()))]
