"""The servers of the kill tests, each of which may be killed alone, and the failpoints that all of them share."""

import os
import signal
import uuid
from dataclasses import dataclass, replace
from typing import Any

import psutil

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.failpoints import Action, Folder, Point, Step
from airflow_provider_backpressure.core.planning.plan_result import Planned
from airflow_provider_backpressure.testing import MemoryRunner, MemorySink, MemorySource
from dev.services import Services
from tests.chaos.matrix import Draw, Victim
from tests.support.composed import Composed, close_runners


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One line of the journal: somebody was at a step."""

    seconds: float
    """By the machine's monotonic clock."""
    step: Step
    tag: str
    pid: int

    @property
    def slice_id(self) -> str:
        """The slice of the attempt."""
        return self.tag.split(":")[2]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Everything that outlives a case. ``connect``: name of the Spark Connect server."""

    services: Services
    failpoints: Folder
    source: Endpoint
    sink: Endpoint
    ledger_url: str
    connect: str
    speculates: bool = False
    """Whether that Spark starts a twin of a task that takes long."""

    def hydration(self, draw: Draw) -> Composed:
        """Return a new hydration as the seed wants it, into a table of its own."""
        server = self.services.status()[self.connect]
        return Composed(
            source=self.source,
            sink=self.sink,
            ledger_url=self.ledger_url,
            remote=server.url,
            ui_url=server.ui_url,
            table=f"public.t{draw.rows}",
            target=f"raw.t{uuid.uuid4().hex[:12]}",
            budget=Budget(credits=draw.credits, range_rows=draw.range_rows),
        )

    def plan(self, composed: Composed, **how: Any) -> Planned:
        """Plan it; that the executors have what they need is known, so no session is opened for asking.

        ``how``: fields of the planner.
        """
        known = MemoryRunner(source=MemorySource(keys=()), sink=MemorySink())
        with composed.open(known) as ports:
            return replace(ports.planner(), **how).plan()

    def begin(self) -> None:
        """Begin a new journal, with nothing armed."""
        (self.failpoints.path / "journal").unlink(missing_ok=True)
        self.disarm()

    def arm(self, step: Step, action: Action, number: int) -> None:
        """Begin a new journal, and let something happen at one pass of a step."""
        self.begin()
        self._write(str(Point(step=step, action=action, number=number)))

    def disarm(self) -> None:
        """Let nothing happen any more; who waits goes on."""
        self._write("")

    def journal(self) -> list[Pass]:
        """Return every pass since it was armed."""
        journal = self.failpoints.path / "journal"
        lines = journal.read_text().splitlines() if journal.exists() else []
        words = (line.split() for line in lines)
        return [Pass(step=Step(step), tag=tag, pid=int(pid), seconds=float(at)) for step, tag, pid, at in words]

    def passed(self, step: Step, number: int) -> Pass | None:
        """Return this pass of a step if it has happened."""
        passes = [one for one in self.journal() if one.step is step]
        return passes[number - 1] if len(passes) >= number else None

    def kill(self, victim: Victim, held: Pass | None = None) -> None:
        """Kill a victim that is no lane. ``held``: the pass at which it is caught, for who is known by it."""
        if victim is Victim.WORKER:
            assert held is not None
            os.kill(held.pid, signal.SIGKILL)
        elif victim is Victim.EXECUTOR:
            assert held is not None
            daemon = psutil.Process(held.pid).parent()
            assert daemon is not None
            os.kill(daemon.ppid(), signal.SIGKILL)
        else:
            if victim is Victim.DRIVER:
                # Their sessions would be unknown to the next server.
                close_runners()
            self.services.kill(self._server(victim))

    def restart(self, victim: Victim) -> None:
        """Bring a victim back; Spark itself brings back workers and executors."""
        if victim not in (Victim.WORKER, Victim.EXECUTOR):
            self.services.restart(self._server(victim))

    def _server(self, victim: Victim) -> str:
        return self.connect if victim is Victim.DRIVER else f"postgres:{victim}"

    def _write(self, text: str) -> None:
        fresh = self.failpoints.path / "points.new"
        fresh.write_text(text)
        fresh.replace(self.failpoints.path / "points")

    def on(self, connect: str, *, speculates: bool = False) -> "Stage":
        """Return the same with another Spark."""
        return replace(self, connect=connect, speculates=speculates)
