"""One hydration over in-memory ports, with the parts of a run as they are called one by one."""

from typing import Any

from airflow_provider_backpressure.core.admission.permits_and_reservations import Limiter
from airflow_provider_backpressure.core.config import Budget, Mode
from airflow_provider_backpressure.core.execution.lane_runner import Hydrator
from airflow_provider_backpressure.core.planning.plan_result import Planned
from airflow_provider_backpressure.core.planning.planner import Planner
from airflow_provider_backpressure.core.poll_policy import PollPolicy
from airflow_provider_backpressure.core.ports.ledger import Ledger
from airflow_provider_backpressure.core.snapshot.ranges import RangeState
from airflow_provider_backpressure.testing import ManualClock, MemoryLedger, MemoryRunner, MemorySink, MemorySource

POLL = PollPolicy(initial=0.001, maximum=0.1)


class Bench:
    """One hydration over in-memory ports."""

    def __init__(
        self, rows: int = 100, *, range_rows: int = 10, credits: int = 3, ledger: Ledger | None = None
    ) -> None:
        self.source = MemorySource(keys=list(range(rows)))
        self.sink = MemorySink()
        self.runner = MemoryRunner(source=self.source, sink=self.sink)
        self.ledger: Ledger = ledger or MemoryLedger()
        self.budget = Budget(credits=credits, range_rows=range_rows)
        self.plan(restart=False)

    def planner(self, **changes: Any) -> Planner:
        values: dict[str, Any] = {
            "source": self.source,
            "sink": self.sink,
            "runner": self.runner,
            "ledger": self.ledger,
            "budget": self.budget,
            "mode": Mode.APPEND,
            "owner": "dag",
            "cluster": "spark",
        }
        return Planner(**{**values, **changes})

    def plan(self, *, restart: bool) -> Planned:
        self.planned = self.planner().plan(restart=restart)
        self.id, self.plan_id = self.planned.hydration.id, self.planned.plan.plan_id
        return self.planned

    def lane(self, name: str = "lane", **changes: Any) -> Hydrator:
        values: dict[str, Any] = {
            "hydration_id": self.id,
            "plan": self.planned.plan,
            "lane": name,
            "ledger": self.ledger,
            "source": self.source,
            "sink": self.sink,
            "runner": self.runner,
            "limiter": Limiter(
                ledger=self.ledger, hydration_id=self.id, budget=self.budget, memory=lambda: self.runner.memory()
            ),
            "budget": self.budget,
            "share": self.budget.credits,
            "poll": POLL,
            "clock": ManualClock(),
        }
        return Hydrator(**{**values, **changes})

    def states(self) -> dict[RangeState, int]:
        counts: dict[RangeState, int] = {}
        for record in self.ledger.ranges(self.plan_id):
            counts[record.state] = counts.get(record.state, 0) + 1
        return counts
