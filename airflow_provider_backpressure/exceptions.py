"""Every error this package raises.

::

    BackpressureError
    ├── Terminal                  asking again changes nothing; the sentence says what to change
    │   ├── InvalidDeclaration    a budget, range, table name or message that cannot be meant
    │   ├── SourceRefused         no such table, no right, no key, a type that cannot be carried
    │   ├── SinkRefused           a target that does not fit, no right, rows already there
    │   │   └── QuarantineFull    more rows were refused than may be kept aside
    │   ├── RunnerRefused         executors without a driver, another Python, a broken transform
    │   ├── LedgerRefused         tables missing, hydration owned by another DAG, unknown hydration
    │   ├── PlanSuperseded        the target's fence names a newer plan: this one must not write
    │   ├── LogLost               the source no longer has all of the log that was to be replayed
    │   ├── VerificationFailed    source and sink differ; the ranges are named
    │   └── IllegalTransition     a state machine was asked for a step it does not have
    └── Transient                 the same request may go well later
        ├── SourceUnavailable
        ├── SinkUnavailable
        ├── RunnerUnavailable
        ├── LedgerUnavailable
        ├── SnapshotLost          the snapshot that ranges are read in is gone: a retry takes another one
        │   └── PlanOutdated      no later snapshot can continue the plan: a retry plans again
        ├── TablesFailed          some of a task's tables have failed, and a retry may help one of them
        └── RangeFailed           one attempt of one range; carries its cause
            ├── OutOfMemory       it took more than the executor had: a smaller range may go
            └── WorkerLost        its process ended without a word: killed, by whomever

Whether to retry is the type, never a flag.
"""

import re
from typing import TypeVar


class BackpressureError(Exception):
    """Base of the tree. ``str()`` is one sentence, free of secrets, fit to be shown to a user."""


class Terminal(BackpressureError):
    """Asking again changes nothing."""


class InvalidDeclaration(Terminal, ValueError):
    """A value that cannot be meant."""


class SourceRefused(Terminal):
    """The source cannot be read as declared."""


class SinkRefused(Terminal):
    """The target cannot be written as declared."""


class QuarantineFull(SinkRefused):
    """More rows were refused than may be kept aside."""


class RunnerRefused(Terminal):
    """Spark is there but cannot run our ranges."""


class LedgerRefused(Terminal):
    """The ledger is there but cannot serve."""


class PlanSuperseded(Terminal):
    """The target's plan row names a newer epoch."""


class LogLost(Terminal):
    """The source no longer has all of the log from the committed position on: what changed there is not known."""


class VerificationFailed(Terminal):
    """Source and sink differ."""


class IllegalTransition(Terminal):
    """A state machine was asked for a step it does not have."""


class Transient(BackpressureError):
    """The same request may go well later."""


class SourceUnavailable(Transient):
    """The source does not answer."""


class SinkUnavailable(Transient):
    """The sink does not answer."""


class RunnerUnavailable(Transient):
    """Spark does not answer."""


class LedgerUnavailable(Transient):
    """The ledger does not answer."""


class SnapshotLost(Transient):
    """The snapshot that ranges are read in is gone: what was read is not mixed with another one."""


class PlanOutdated(SnapshotLost):
    """No later snapshot can continue the plan: the source's table or the target's rows are others by now."""


class TablesFailed(Transient):
    """Some tables of a task have failed, each with its own cause; the others are done."""


class RangeFailed(Transient):
    """One attempt of one range failed."""


class OutOfMemory(RangeFailed):
    """One attempt of one range took more memory than its executor had."""


class WorkerLost(RangeFailed):
    """A process of one attempt of one range ended without a word, as one does that the kernel's OOM killer ends."""


E = TypeVar("E", bound=BaseException)

_MARKED = re.compile(r"\[backpressure:(\w+)\] (.*?) \[/backpressure\]", re.DOTALL)


def to_text(error: BackpressureError) -> str:
    """Return the error's class and sentence in marks that :func:`from_text` finds again inside any other text.

    The class is the nearest one that both sides know.
    """
    known = next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == BackpressureError.__module__)
    return f"[backpressure:{known}] {' '.join(str(error).split())} [/backpressure]"


def from_text(text: str) -> BackpressureError | None:
    """Return our last error that the text carries, or ``None``."""
    for name, sentence in reversed(_MARKED.findall(text)):
        kind = globals().get(name)
        if isinstance(kind, type) and issubclass(kind, BackpressureError):
            return kind(sentence)
    return None


def strip_frames(error: E) -> E:
    """Return a library's error, and those behind it, without the frames that raised them, to be kept as a cause.

    A driver's frames hold the login that it was called with, and some loggers print what each frame held. What the
    error says stays.
    """
    behind: BaseException | None = error
    while behind is not None:
        behind.__traceback__ = None
        behind = behind.__cause__ or behind.__context__
    return error


ALLOW_DELETES = 'trigger the DAG with {"backpressure": "allow_deletes"}'
"""Part of each error of a mirror that would delete too much: by it a run of several tables finds those it stopped."""
RESTART = 'trigger the DAG with {"backpressure": "restart"} to plan again'
