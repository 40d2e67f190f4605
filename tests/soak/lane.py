"""A lane's process: a thread for each hydration, whose runs follow each other as a DAG's do, until told to end.

``python -m tests.soak.lane FOLDER``: the folder has a file for each hydration, and ``end`` asks for one last run each.
"""

import json
import logging
import sys
import time
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from airflow_provider_backpressure.core.execution.lane_submission import Outcome
from airflow_provider_backpressure.core.planning.catch_up_windows import check_caught_up
from airflow_provider_backpressure.core.planning.plan_result import Planned, Verdict
from airflow_provider_backpressure.exceptions import Transient
from airflow_provider_backpressure.runners.connect_runner import ConnectRunner
from tests.support.composed import Composed, Ports
from tests.support.kafka import ComposedKafka

END, TURNS = "end", "turns.json"
PAUSE = 1.0
"""Seconds between two runs: what is not there yet is not asked for without end."""
RESTART_SECONDS = 300.0
"""Seconds after which a table that is followed is read again from its beginning."""
LAST_TRIES = 20
"""How often the last run of a hydration is tried, with nothing in its way any more."""

log = logging.getLogger("soak")


@dataclass(kw_only=True)
class Hydrated:
    """One hydration, on one warm session for as long as that lives."""

    composed: Composed
    runs: int = 0
    """Runs that ended well."""
    errors: list[str] = field(default_factory=list)
    """Errors that a retry is meant to cure, each by its type."""
    _runner: ConnectRunner | None = None
    _restart_at: float = field(default_factory=lambda: time.monotonic() + RESTART_SECONDS)

    def once(self) -> bool:
        """Do what a run of the DAG does; whether it ended well."""
        try:
            with self.composed.open(self._opened()) as ports:
                done = run(ports, self._plan(ports))
        except Transient as error:
            log.warning("%s: %s", self.composed.lane, error)
            self.errors.append(type(error).__name__)
            self.close()
            return False
        self.runs += done
        return done

    def _plan(self, ports: Ports) -> Planned:
        due = self.composed.consistency == "catch_up" and time.monotonic() > self._restart_at
        planned = ports.planner().plan(restart=due)
        if due:
            self._restart_at = time.monotonic() + RESTART_SECONDS
        return planned

    def close(self) -> None:
        """Give the session back; the next run opens another."""
        if self._runner is not None:
            try:
                self._runner.close()
            finally:
                self._runner = None

    def _opened(self) -> ConnectRunner:
        if self._runner is None:
            places = {name: replace(getattr(self.composed, name), conn_id=name) for name in ("source", "sink")}
            self._runner = ConnectRunner(self.composed.remote, places, ui_url=self.composed.ui_url)
        return self._runner


def run(ports: Ports, planned: Planned) -> bool:
    """Drain, follow and finish; whether it came to its end."""
    if planned.verdict is Verdict.UNCHANGED:
        return True
    if ports.hydrator().run().outcome is not Outcome.DONE:
        return False
    while ports.planner().follow():
        if ports.hydrator().run().outcome is not Outcome.DONE:
            return False
    if ports.composed.consistency == "catch_up":
        check_caught_up(ports.plan, ports.sink)
    ports.sink.complete(ports.plan)
    ports.sink.publish(ports.plan)
    ports.ledger.finish(ports.hydration.id)
    return True


def read(file: Path) -> Composed:
    """Read a hydration's file."""
    kind = ComposedKafka if json.loads(file.read_text())["kind"] == "kafka" else Composed
    return kind.read(file)


def follow(one: Hydrated, end: Path) -> None:
    """Run a hydration again and again, and once more in the end, when nothing is in its way."""
    with closing(one):
        while not end.exists():
            one.once()
            time.sleep(PAUSE)
        for _ in range(LAST_TRIES):
            if one.once():
                return
            time.sleep(PAUSE)
    raise RuntimeError(f"{one.composed.lane} did not come to its end: {one.errors[-LAST_TRIES:]}")


def main(folder: Path) -> None:
    """Follow all; the first error that no retry cures ends the process."""
    own = [Hydrated(composed=read(file)) for file in sorted(folder.glob("hydration-*.json"))]
    with ThreadPoolExecutor(len(own)) as pool:
        running = [pool.submit(follow, one, folder / END) for one in own]
        while wait(running, PAUSE, FIRST_EXCEPTION).not_done:
            tell(folder, own)
            if any(one.done() and one.exception() for one in running):
                # The others end too, and then it is told.
                (folder / END).touch()
        tell(folder, own)
        for one in running:
            one.result()


def tell(folder: Path, own: list[Hydrated]) -> None:
    """Write down what came of it so far."""
    told = {one.composed.lane: {"runs": one.runs, "errors": one.errors} for one in own}
    fresh = folder / f"{TURNS}.new"
    fresh.write_text(json.dumps(told))
    fresh.replace(folder / TURNS)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    main(Path(sys.argv[1]))
