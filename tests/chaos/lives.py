"""The lives of a lane as tests see and end them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from airflow_provider_backpressure.core.failpoints import Step
from tests.chaos.lane import UNARMED, begun
from tests.chaos.stage import Pass, Stage
from tests.support.composed import Composed
from tests.support.waiting import until

T = TypeVar("T")
LIVES = 5
"""Most lives that a lane may need: Airflow's retries."""
SECONDS = 180.0
"""Longest wait for a lane at a step or at its end. A server with connectors takes half of it to start again."""


@dataclass(kw_only=True)
class Lives:
    """The lives of one lane, one after the other."""

    stage: Stage
    config: Path
    log: Path
    number: int = 0
    process: Any = None
    """Of the life that is or was the last."""

    def begin(self) -> None:
        """Start the next life."""
        self.process = begun(self.config, self.log)
        self.number += 1

    def kill(self) -> None:
        """End it at once, if it has not ended."""
        self.process.kill()
        self.process.join()

    def said(self) -> str:
        """Return the end of the log."""
        return self.log.read_text()[-4000:] if self.log.exists() else ""

    def until(self, found: Callable[[], T]) -> T:
        """Return what ``found`` gives as soon as it is true; fail after a deadline with what the lane said."""
        return until(found, SECONDS, told=self.said)

    def reached(self, step: Step, number: int) -> Pass:
        """Return the pass at which the victim is caught, once somebody is there."""

        def look() -> Pass | None:
            found, code = self.stage.passed(step, number), self.process.exitcode
            assert found or code is None, f"the lane ended with {code}: {self.said()}"
            return found

        found = self.until(look)
        assert found is not None
        return found

    def to_the_end(self, most: int = LIVES) -> None:
        """Let the lane live again as often as it ends with an error."""
        while True:
            self.process.join(SECONDS)
            code = self.process.exitcode
            assert code is not None, f"the lane hangs: {self.said()}"
            assert code != UNARMED, "the lane was started without failpoints"
            if code == 0:
                return
            assert self.number < most, self.said()
            self.begin()


@contextmanager
def living(stage: Stage, composed: Composed, folder: Path) -> Iterator[Lives]:
    """Begin the first life; leave the stage to the next case, whatever became of this one."""
    lives = Lives(stage=stage, config=composed.write(folder), log=folder / "lane.log")
    lives.begin()
    try:
        yield lives
    finally:
        stage.disarm()
        lives.kill()
