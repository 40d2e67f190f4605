"""A hydration that is half done: left so in a ledger, kept as a file, and gone on with.

``python -m tests.support.half_done`` keeps what this revision leaves, before the next migration is written.
"""

import json
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from airflow_provider_backpressure.core.admission.permits_and_reservations import Limiter
from airflow_provider_backpressure.core.config import Budget, Consistency, Mode
from airflow_provider_backpressure.core.execution.lane_runner import Hydrator
from airflow_provider_backpressure.core.planning.plan_result import Verdict
from airflow_provider_backpressure.core.planning.planner import Planner
from airflow_provider_backpressure.core.ports.ledger import Ledger
from airflow_provider_backpressure.core.ports.sink import Marker
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.ledger.migration import migrate
from airflow_provider_backpressure.ledger.repository import SqlLedger
from airflow_provider_backpressure.ledger.revision import REVISION
from airflow_provider_backpressure.testing import MemoryRunner, MemorySink, MemorySource

LEDGERS = Path(__file__).parent.parent / "integration" / "ledgers"
ROWS, COMMITTED = 100, 4
BUDGET = Budget(credits=1, range_rows=10)


class MortalRunner(MemoryRunner):
    """Ends its lane as a kill does, with a range in flight."""

    def run(self, spec: Any) -> Any:
        """See ``Runner.run``."""
        if len(self.submitted) == COMMITTED:
            raise KeyboardInterrupt
        return super().run(spec)


def hydrate(ledger: Ledger, sink: MemorySink, runner: type[MemoryRunner] = MemoryRunner) -> tuple[Verdict, list[int]]:
    """Plan or resume, and drain; return the planner's verdict and which ranges were submitted."""
    source = MemorySource(keys=range(ROWS))
    made = runner(source=source, sink=sink)
    planner = Planner(
        source=source,
        sink=sink,
        runner=made,
        ledger=ledger,
        budget=BUDGET,
        mode=Mode.APPEND,
        consistency=Consistency.STATIC,
        owner="dag",
        cluster="spark",
    )
    verdict = planner.plan().verdict
    (one,) = ledger.hydrations()
    assert one.plan is not None
    Hydrator(
        hydration_id=one.id,
        plan=one.plan,
        lane="lane",
        ledger=ledger,
        source=source,
        sink=sink,
        runner=made,
        limiter=Limiter(ledger=ledger, hydration_id=one.id, budget=BUDGET, memory=made.memory),
        budget=BUDGET,
        share=BUDGET.credits,
    ).run()
    return verdict, [spec.seq for spec in made.submitted]


def keep(folder: Path) -> Path:
    """Leave a hydration half done, and write all that stands in its ledger and in its target to a file."""
    sink = MemorySink()
    with _ledger() as (url, database):
        migrate(url)
        with closing(SqlLedger(url)) as ledger, suppress(KeyboardInterrupt):
            hydrate(ledger, sink, MortalRunner)
        rows = [json.dumps(row, sort_keys=True) for row in _rows(database)]
    path = folder / f"{REVISION}.json"
    lines = ",\n".join(rows)
    path.write_text(f'{{"version": "{REVISION}", "sink": {kept(sink)}, "rows": [\n{lines}\n]}}\n')
    return path


def kept(sink: MemorySink) -> str:
    """Return what a target has, as JSON."""
    assert sink.plan is not None
    markers = [asdict(one) for one in sink.markers(sink.plan.plan_id).values()]
    values = {"rows": sink.rows, "plan": sink.plan.to_json(), "epoch": sink.last_epoch, "markers": markers}
    return json.dumps(values, default=str, sort_keys=True)


def target(kept: dict[str, Any]) -> MemorySink:
    """Return the target as it was left."""
    markers = [
        Marker(**{**one, "committed_at": datetime.fromisoformat(one["committed_at"])}) for one in kept["markers"]
    ]
    return MemorySink(
        rows=list(kept["rows"]),
        plan=Plan.from_json(kept["plan"]),
        last_epoch=kept["epoch"],
        _markers={(one.plan_id, one.slice_id): one for one in markers},
    )


@contextmanager
def _ledger() -> Iterator[tuple[str, Path]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.db"
        yield f"sqlite:///{path}", path


def _rows(database: Path) -> Iterator[dict[str, Any]]:
    with closing(sqlite3.connect(database)) as connection:
        named = "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'backpressure%' ORDER BY 1"
        for (table,) in connection.execute(named).fetchall():
            found = connection.execute(f"SELECT * FROM {table}")
            names = [column[0] for column in found.description]
            for row in found:
                yield {"table": table, **dict(zip(names, row, strict=True))}


if __name__ == "__main__":
    print(keep(LEDGERS))
