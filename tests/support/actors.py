"""Processes on one thread and one virtual clock: who takes a step, who dies, and how time goes, is chosen from outside.

An actor stops at every failpoint, at every call over a network and at every wait. There another one may go on, or the
actor may be killed, or left standing for as long as the schedule likes: then it is a zombie, and goes on later.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import greenlet

from airflow_provider_backpressure.exceptions import PlanSuperseded, Transient


class Killed(BaseException):
    """SIGKILL: no handler sees it, and what a ``finally`` wants to do outside of the process does not happen."""


class Ended(Transient):
    """Airflow told a task to end, as when it is cleared or marked failed."""


class _Process(greenlet.greenlet):
    killed = False


def pause(where: str) -> None:
    """Let the schedule decide who goes on; nothing outside of an actor."""
    current = greenlet.getcurrent()
    if current.parent is None:
        return
    if current.killed:
        raise Killed
    current.parent.switch(where)


def _schedule() -> greenlet.greenlet:
    """Return where every actor comes back to, also one that another actor has started."""
    found = greenlet.getcurrent()
    while found.parent is not None:
        found = found.parent
    return found


class Actor:
    """A process. It runs when it is told to, up to its next stop."""

    def __init__(self, name: str, work: Callable[[], object]) -> None:
        self.name = name
        self.at = "its beginning"
        """Where it stands."""
        self._work = work
        self._greenlet = _Process(self._run, parent=_schedule())

    @property
    def alive(self) -> bool:
        """Whether it has something left to do."""
        return not self._greenlet.dead

    def step(self) -> None:
        """Go on to the next stop."""
        self.at = self._greenlet.switch() or "its end"

    def kill(self) -> None:
        """End it where it stands; it does nothing any more."""
        self._greenlet.killed = True
        with contextlib.suppress(Killed):  # raised here where it has not begun yet
            self._greenlet.throw(Killed)
        assert not self.alive, "a process outlived SIGKILL"

    def _run(self) -> None:
        # Each is a process that has ended; any other error is a failure of the test.
        with contextlib.suppress(Killed, Transient, PlanSuperseded):
            self._work()


@dataclass(kw_only=True)
class VirtualClock:
    """Time as it goes for everybody. What the ledger's database takes it for may jump."""

    now: float = 0.0
    """Seconds, which only grow."""
    skew: float = 0.0
    """Seconds by which the database's clock is ahead."""

    def datetime(self) -> datetime:
        """Return the time as the database tells it."""
        return datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=self.now + self.skew)


@dataclass(kw_only=True)
class ActorClock:
    """A process's own clock, over when its task is told to end, as ``operators.lane_progress.LaneClock`` is."""

    time: VirtualClock
    over: bool = False

    def monotonic(self) -> float:
        """See ``Clock.monotonic``."""
        if self.over:
            self.over = False
            raise Ended("Airflow ended the task.")
        return self.time.now

    def sleep(self, seconds: float) -> None:
        """Stand until it is time."""
        until = self.time.now + seconds
        while self.monotonic() < until:
            pause("a wait")


@dataclass(kw_only=True)
class Link:
    """The way to a database: it may be cut, or lose the next answer after the question has done its work."""

    name: str
    error: type[Transient]
    down: bool = False
    lossy: bool = False

    def to(self, port: Any) -> Any:
        """Return the port as it is seen over this way."""
        return _Remote(port=port, link=self)


@dataclass(frozen=True, kw_only=True)
class _Remote:
    port: Any
    link: Link
    known: dict[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        if name not in self.known:
            found = getattr(self.port, name)
            if not callable(found):
                return found
            self.known[name] = self._called(name, found)
        return self.known[name]

    def _called(self, name: str, found: Callable[..., Any]) -> Callable[..., Any]:
        link, where = self.link, f"{self.link.name}.{name}"

        def call(*args: Any, **options: Any) -> Any:
            pause(where)
            if link.down:
                raise link.error("It does not answer.")
            answer = found(*args, **options)
            if link.lossy:
                link.lossy = False
                raise link.error("The answer was lost.")
            return answer

        return call
