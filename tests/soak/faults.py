"""Faults at random, by a seed: a lane, Spark's driver and the ledger killed, backends ended, a broker stopped."""

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.soak.stage import ACCOUNT, KILLED, LEDGER, SHARED, SINK, SOURCE, Stage
from tests.support import mysql
from tests.support.postgres import run
from tests.support.waiting import beside

STANDS_STILL = 4.0
"""Seconds for which the broker is stopped."""
DRIVER, LANE = "Spark's driver is killed", "a lane is killed"
EARLY = (DRIVER, LANE)
"""Only in the first half: their memory is judged from their last start on, which takes some time of it."""


@dataclass(kw_only=True)
class Faults:
    """What happens to a stage."""

    stage: Stage
    seed: int
    seconds: float
    """Of the whole soak."""
    done: list[tuple[float, str]] = field(default_factory=list)
    """Seconds since the beginning, and what happened."""

    @property
    def pause(self) -> tuple[float, float]:
        """Least and most seconds between two faults."""
        return (8.0, 16.0) if self.seconds < 600 else (15.0, 45.0)

    @contextmanager
    def happening(self) -> Iterator[None]:
        """Let them happen until the block is left, and everything is up again."""
        with beside(self._happen):
            yield

    def _happen(self, over: threading.Event) -> None:
        draw, began = random.Random(self.seed), time.monotonic()
        while not over.wait(draw.uniform(*self.pause)):
            at = time.monotonic() - began
            name = draw.choice([*self._kinds])
            if name in EARLY and at > self.seconds / 2:
                name = draw.choice([other for other in self._kinds if other not in EARLY])
            self._kinds[name]()
            self.done.append((at, name))

    @property
    def _kinds(self) -> dict[str, Callable[[], None]]:
        return {
            LANE: self._kill_lane,
            DRIVER: lambda: self._restart("connect"),
            "the ledger is killed": lambda: self._restart(LEDGER),
            "backends in the sink are ended": lambda: self._end_backends(SINK),
            "backends in the source are ended": lambda: self._end_backends(SOURCE),
            "connections to MySQL are ended": self._end_mysql,
            "the broker stands still": self._stop_broker,
        }

    def _kill_lane(self) -> None:
        """Kill the lane that is there for it, and with it that of the tables that share a log."""
        for name in (KILLED, SHARED):
            if (lane := self.stage.lanes.get(name)) is not None:
                lane.kill()
                lane.start()

    def _restart(self, name: str) -> None:
        self.stage.services.kill(name)
        self.stage.services.restart(name)

    def _end_backends(self, server: str) -> None:
        run(
            self.stage.endpoint(server),
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
            " WHERE application_name ~ '^(bp|backpressure)'",
        )

    def _end_mysql(self) -> None:
        at = self.stage.endpoint("mysql", "mysql")
        for (number,) in mysql.run(at, f"SELECT ID FROM information_schema.PROCESSLIST WHERE USER = '{ACCOUNT}'"):
            try:
                mysql.run(at, f"KILL {number}")
            except mysql.pymysql.Error:
                continue  # it has just ended by itself

    def _stop_broker(self) -> None:
        self.stage.services.kill("kafka", signal.SIGSTOP)
        time.sleep(STANDS_STILL)
        self.stage.services.kill("kafka", signal.SIGCONT)
