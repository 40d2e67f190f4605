"""A lane's process of the soak: tables that share a log, followed run after run by the tasks of one group.

``python -m tests.soak.stream FOLDER``: the folder has the group as ``flow.json``, and ``end`` asks for one last run.
"""

import json
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from airflow_provider_backpressure.exceptions import Transient
from tests.soak.lane import END, LAST_TRIES, PAUSE, RESTART_SECONDS, TURNS
from tests.support.operator_flow import OperatorFlow

FLOW, NAME = "flow.json", "stream"
RETRIES = 3
"""Of each task, as a DAG would declare them."""

log = logging.getLogger("soak")


@dataclass(kw_only=True)
class StreamRuns:
    """The runs of one task group."""

    flow: OperatorFlow
    folder: Path
    runs: int = 0
    """Runs that ended well."""
    errors: list[str] = field(default_factory=list)
    """Errors that a retry or a later run is meant to cure, each by its type."""
    _restart_at: float = field(default_factory=lambda: time.monotonic() + RESTART_SECONDS)

    def run_once(self) -> bool:
        """Do what a run of the DAG does; whether it ended well."""
        due = time.monotonic() > self._restart_at
        flow = self.flow.with_run(f"run {time.time_ns()}", **({"backpressure": "restart"} if due else {}))
        try:
            tables = self._try(flow.plan)
            if tables is not None:
                self._try(lambda tries: flow.hydrate(tables, tries=tries))
                self._try(lambda tries: flow.verify(tables, tries=tries))
        except (AirflowFailException, Transient, TaskDeferred) as error:
            log.warning("%s", error)
            return False
        if due:
            self._restart_at = time.monotonic() + RESTART_SECONDS
        self.runs += 1
        return True

    def _try(self, task: Callable[..., Any]) -> Any:
        """Do a task with its retries."""
        for left in reversed(range(RETRIES + 1)):
            try:
                return task(tries=left)
            except (AirflowFailException, Transient, TaskDeferred) as error:
                self.errors.append(type(error).__name__)
                self.write()
                if not left or isinstance(error, AirflowFailException):
                    raise
                log.warning("%s", error)
                time.sleep(PAUSE)
        raise AssertionError("the last try returns or raises")

    def write(self) -> None:
        """Write down what came of it so far."""
        fresh = self.folder / f"{TURNS}.new"
        fresh.write_text(json.dumps({NAME: {"runs": self.runs, "errors": self.errors}}))
        fresh.replace(self.folder / TURNS)


def main(folder: Path) -> None:
    """Follow until told to end, and once more then."""
    runs = StreamRuns(flow=OperatorFlow.read(folder / FLOW), folder=folder)
    while not (folder / END).exists():
        runs.run_once()
        runs.write()
        time.sleep(PAUSE)
    for _ in range(LAST_TRIES):
        ended = runs.run_once()
        runs.write()
        if ended:
            return
        time.sleep(PAUSE)
    raise RuntimeError(f"The tables that share a log did not come to their end: {runs.errors[-LAST_TRIES:]}")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    main(Path(sys.argv[1]))
