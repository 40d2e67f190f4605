"""Places on a range's way where a test may kill, freeze or hold the process; nothing at all in production.

They are on only where the process was *started* with ``BACKPRESSURE_FAILPOINTS`` naming a folder. That is read once,
from the environment that the kernel was given with the program: neither a DAG, nor a connection, nor any code that
sets ``os.environ`` can turn them on, and in a process without it :data:`reach` is a function that does nothing.

The folder has two files, shared by all processes of a test, Spark's Python workers too:

``points``
    What is to happen, ``before_submit=kill@3,in_copy=wait``: the step, the action, and at which pass of the step
    (``@1`` unless said), counted for each plan over all processes. It is read at each pass, so it can be changed while
    everything runs. Actions: ``kill`` (SIGKILL), ``freeze`` (SIGSTOP), ``raise``, and ``wait`` until the file says
    something else.
``journal``
    Each pass, in the order in which they happened: step, tag of the attempt, process id, seconds (monotonic clock).
"""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from airflow_provider_backpressure.core.poll_policy import PollPolicy, SystemClock
from airflow_provider_backpressure.exceptions import InvalidDeclaration, RangeFailed

VARIABLE = "BACKPRESSURE_FAILPOINTS"
WAIT_SECONDS = 120.0
"""Longest ``wait``: a test that died must not leave a process running."""
_POLL = PollPolicy(initial=0.01, maximum=0.01)


class Step(StrEnum):
    """Where a range is, in the order of its way."""

    BEFORE_SUBMIT = "before_submit"
    """The permit is in the ledger; nothing was submitted."""
    AFTER_SUBMIT = "after_submit"
    """Spark has been asked for the job."""
    IN_COPY = "in_copy"
    """A block of rows has gone to the sink, one pass for each block."""
    BEFORE_SINK_COMMIT = "before_sink_commit"
    """Rows and marker are in the sink's transaction, which is still open."""
    AFTER_SINK_COMMIT = "after_sink_commit"
    """The sink has committed; the result has not left the task."""
    BEFORE_LEDGER_COMMIT = "before_ledger_commit"
    """The lane has read the marker."""
    AFTER_LEDGER_COMMIT = "after_ledger_commit"
    """The ledger has it: the credit is back."""


class Action(StrEnum):
    """What happens there."""

    KILL = "kill"
    FREEZE = "freeze"
    RAISE = "raise"
    WAIT = "wait"


@dataclass(frozen=True, kw_only=True)
class Point:
    """One armed step."""

    step: Step
    action: Action
    number: int = 1
    """Pass of the step at which it acts, counted for each plan over all processes."""

    def __str__(self) -> str:
        """Return it as the file ``points`` spells it."""
        return f"{self.step}={self.action}@{self.number}"


def parse(text: str) -> dict[Step, Point]:
    """Read what ``points`` says; ``InvalidDeclaration`` for what it cannot mean."""
    found: dict[Step, Point] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        step, _, rest = entry.partition("=")
        action, _, number = rest.partition("@")
        try:
            point = Point(step=Step(step), action=Action(action), number=int(number or 1))
        except ValueError as error:
            raise InvalidDeclaration(f"{entry!r} is no failpoint: it must read step=action@pass.") from error
        found[point.step] = point
    return found


@dataclass(frozen=True, kw_only=True)
class Folder:
    """The failpoints of one test, as files."""

    path: Path

    def reach(self, step: Step, tag: str) -> None:
        """Note the pass and do what is armed for it; ``RangeFailed`` for ``raise`` and for a ``wait`` without end."""
        number = self._note(step, tag)
        point = self.points().get(step)
        if point is None or point.number != number:
            return
        if point.action is Action.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        elif point.action is Action.FREEZE:
            os.kill(os.getpid(), signal.SIGSTOP)
        elif point.action is Action.RAISE:
            raise RangeFailed(f"The failpoint {point} was reached.")
        else:
            self._wait(point)

    def points(self) -> dict[Step, Point]:
        """Return what is armed now."""
        try:
            return parse((self.path / "points").read_text())
        except FileNotFoundError:
            return {}

    def _note(self, step: Step, tag: str) -> int:
        """Add a line to the journal and return how many of this step and plan there are up to it.

        An append is atomic, and leaves the file's offset behind what was added.
        """
        mine = f"{step} {tag.rsplit(':', 2)[0]}:"
        journal = os.open(self.path / "journal", os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(journal, f"{step} {tag} {os.getpid()} {time.monotonic():.3f}\n".encode())
            lines = os.pread(journal, os.lseek(journal, 0, os.SEEK_CUR), 0).decode().splitlines()
        finally:
            os.close(journal)
        return sum(line.startswith(mine) for line in lines)

    def _wait(self, point: Point) -> None:
        for _ in _POLL.tries(timeout=WAIT_SECONDS, clock=SystemClock()):
            if self.points().get(point.step) != point:
                return
        raise RangeFailed(f"Nobody took the failpoint {point} back within {WAIT_SECONDS:g} s.")


def _off(step: Step, tag: str) -> None:
    """Do nothing: what :data:`reach` is in every process that was not started for a test."""


def get_folder_at_start(environment: bytes) -> Folder | None:
    """Return the folder that the environment of a program's start names, if any. Entries are separated by NUL."""
    start = f"{VARIABLE}=".encode()
    for entry in environment.split(b"\0"):
        if entry.startswith(start):
            return Folder(path=Path(os.fsdecode(entry.removeprefix(start))))
    return None


def _environment() -> bytes:
    try:
        return Path("/proc/self/environ").read_bytes()
    except OSError:  # no Linux, or none of our business: off
        return b""


_folder = get_folder_at_start(_environment())
ON = _folder is not None
"""Whether this process was started with failpoints."""
reach: Callable[[Step, str], None] = _folder.reach if _folder else _off
"""Called at each step with the attempt's tag."""
