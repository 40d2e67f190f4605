"""Ports: what the domain asks of the world. Each has a real implementation and an in-memory one (``testing``)."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.gate.gate_event import Diff
from airflow_provider_backpressure.core.gate.signals import MemoryReading
from airflow_provider_backpressure.core.health_signal_declarations import Figure, Watched
from airflow_provider_backpressure.core.progress.source_position import Upstream
from airflow_provider_backpressure.core.snapshot.bounds import Bounds, LogBounds, LogPosition, Values
from airflow_provider_backpressure.core.snapshot.plan import Plan, Snapshot
from airflow_provider_backpressure.core.snapshot.ranges import PlannedRange
from airflow_provider_backpressure.core.snapshot.spark_messages import (
    ChecksumSpec,
    Column,
    RangeResult,
    RangeSpec,
    ReadSpec,
    Slice,
    SliceResult,
    Transform,
    Window,
)
from airflow_provider_backpressure.core.snapshot.table_alterations import TableStorage
from airflow_provider_backpressure.exceptions import BackpressureError


class Keeper(Protocol):
    """Holds a source's exported snapshot open for as long as ranges are read in it."""

    snapshot: str
    """What a task imports the snapshot by."""

    def check(self) -> None:
        """Raise ``SnapshotLost`` where the snapshot is gone. Cheap; also keeps the connection from falling asleep."""
        ...

    def count(self) -> int | None:
        """Return how many rows the plan's ranges hold in this snapshot; ``None`` where that takes too long."""
        ...

    def close(self) -> None:
        """Let the snapshot go; idempotent."""
        ...


class Health(Protocol):
    """Looks at the health of one database or broker, for one thread, over a connection of its own.

    It connects at the first look. Looks that hang end within seconds, as far as the server itself still answers.
    """

    @property
    def key(self) -> Hashable:
        """Equal for those that see the same: a process needs only one of them."""
        ...

    def look(self) -> Mapping[Watched, Figure | BackpressureError]:
        """Return what is seen of each signal, or why nothing is; raises where nothing is seen of any."""
        ...

    def close(self) -> None:
        """Give the connection back; idempotent."""
        ...


class ChangeLog(Protocol):
    """A database's log, as one hydration replays it. Errors: ``SourceRefused``, ``SourceUnavailable``, ``LogLost``."""

    stream: str
    """Names the log's reader; the same in every run of the hydration."""
    unit: str
    """What its positions count, for people."""

    def begin(self) -> LogPosition:
        """Let the source keep its log, and return from where on: what the ranges will not see lies behind it.

        What an earlier life of the hydration has left in the source is created again. Whatever was committed before the
        position is seen by every query that begins after this call.
        """
        ...

    def windows(
        self, start: LogPosition, *, bytes: int, goal: LogPosition | None = None, large: bool = False
    ) -> list[LogBounds]:
        """Return pieces of at most ``bytes`` bytes that cover the log from ``start`` to where it is safe now.

        ``large``: where the source would rather have smaller ones, they are as large as that all the same.

        None where nothing was written since. ``LogLost`` where the source no longer has all of it, or lacks
        transactions before ``goal``, which rows of the target show already. ``SnapshotLost`` where the log was given
        up, so that all is to be read again, as declared.
        """
        ...

    def storage(self, read: ReadSpec) -> TableStorage | None:
        """Return how the table is stored now, as of everything that the log shows up to the windows asked for last.

        ``None`` where nothing of that matters.
        """
        ...

    def release(self, upto: LogPosition) -> None:
        """Let the source forget its log before a position, which has to be one that the sink has committed.

        Idempotent; nothing where it was released already.
        """
        ...

    def guard(self, *, replaying: bool | None) -> None:
        """Let the declared policy act where what the source keeps for us endangers it. Cheap; asked every few seconds.

        ``replaying``: ``None`` where no run is under way. ``SourceRefused`` where the work is to stop and the log to be
        kept, or nobody replays it; nothing of the kind while it is being replayed, which frees the log.
        ``SnapshotLost`` where the log was given up, so that all is to be read again. ``LogLost`` where it is lost
        already, and nobody has declared that.
        """
        ...

    def drop(self) -> None:
        """Remove what was made in the source; idempotent."""
        ...


class SharedTableLog(ChangeLog, Protocol):
    """A table's part of a log that several tables share. Windows are of all of them, so it has none.

    ``begin`` lets the table join the log, and ``drop`` lets it leave: other tables keep the log in both cases.
    """

    query: str
    """What a task needs to know of the table, as :class:`..core.snapshot.spark_messages.StreamTable` has it."""

    def check(self, position: LogPosition) -> None:
        """Raise ``LogLost`` where the log does not show every change of the table since ``begin`` returned this.

        Asked behind the end of the windows that are planned.
        """
        ...


@runtime_checkable
class ChecksPosition(Protocol):
    """A log that may be another one by now, although it reaches a position: its server was restored, or replaced."""

    def check(self, position: LogPosition) -> None:
        """Raise ``LogLost`` where the log cannot be continued from a position."""
        ...


@runtime_checkable
class SharesLog(Protocol):
    """A source whose log can be that of other tables too."""

    def get_shared_log(self, stream: str) -> SharedTableLog:
        """Return its part of the log. ``stream``: the id of the hydration that replays the log."""
        ...


Unread = Callable[[], Mapping[int, int]]
"""From which offset on each partition of a log has not been committed yet."""


class Source(Protocol):
    """An upstream, opened. Errors: ``SourceRefused``, ``SourceUnavailable``."""

    identity: str
    modules: tuple[str, ...]
    """Python modules that a task imports to read from it."""
    increments: bool
    """Whether later runs read only rows after the committed window."""
    increment_column: str | None
    """The declared rising column; ``None`` where there is none, and for a log, which is read by offsets."""

    def snapshot(
        self,
        consistency: Consistency | None = None,
        *,
        after: str | None = None,
        previous: Window | None = None,
        counted: bool = True,
    ) -> Snapshot:
        """Check that everything declared exists and may be read, and say what there is. Reads no rows.

        ``consistency``: ``None`` for the source's own default. ``after``: only what lies above this value of the rising
        column; of a source with versions the one that was read, which is the answer's too where rows are the same.
        ``previous``: the window of the plan whose place a new one takes; a source that begins at its end begins
        where that plan's hydration began. ``counted``: whether it matters how much there is; otherwise ``total`` may be
        ``None``, and what would have to look through the rows for it does not.
        """
        ...

    def ranges(self, snapshot: Snapshot, *, rows: int, bytes: int) -> Iterator[PlannedRange]:
        """Yield half-open ranges that cover the snapshot, none where it is empty.

        None is expected to hold more than ``rows`` rows or ``bytes`` bytes, but for what a single key value holds.
        """
        ...

    def cut(self, read: ReadSpec, bounds: Bounds, *, parts: int) -> Sequence[Bounds]:
        """Return about so many pieces of about the same size that cover just these bounds, in order.

        Only the bounds themselves where they cannot be cut: they hold one value, or what a log's order holds together.
        """
        ...

    def in_order(self, read: ReadSpec, columns: Sequence[str], values: Sequence[Values]) -> list[Values]:
        """Return values of a key in the order by which the source cuts it. Reads no row."""
        ...

    def keep(self, plan: Plan) -> Keeper:
        """Export a snapshot and keep it; ``SnapshotLost`` where the plan's ranges do not cover what is there now."""
        ...

    def read_spec(self, snapshot: Snapshot) -> ReadSpec:
        """Return what the tasks of every range need."""
        ...

    def slice(self, read: ReadSpec, bounds: Bounds, slice_id: str) -> Slice:
        """Return the slice with the statement that reads exactly these bounds."""
        ...

    def check_range(self, plan: Plan, bounds: Bounds) -> None:
        """Raise ``SourceRefused`` where a committed range can no longer be read as its plan reads it.

        Cheap: whether the source is the one that was planned, has the plan's columns, and keeps what the bounds name.
        Reads at most a record of each partition.
        """
        ...

    def log(self, hydration_id: str) -> ChangeLog:
        """Return the log as this hydration replays it; ``SourceRefused`` where the source has none to be replayed.

        Its windows are read as this source's slices are, by :meth:`slice`.
        """
        ...

    def health(self, watched: Sequence[Watched], *, seconds: float, unread: Unread | None = None) -> Health:
        """Return what looks at these signals, each look for ``seconds`` at most; ``SourceRefused`` names one that it
        cannot give. ``unread`` is for a log; without it nothing of it has been read.
        """
        ...

    def upstream(self) -> Upstream:
        """Return the source's own position. It costs the source one cheap question, and reads no rows."""
        ...

    def close(self) -> None:
        """Give connections back; idempotent."""
        ...


@dataclass(frozen=True, kw_only=True)
class ExecutorEnvironment:
    """What a probe found on the executors."""

    python: str
    """``major.minor``."""
    modules: Mapping[str, str | None]
    """Version by module name; ``None`` where it cannot be imported."""
    spark: str = ""
    """Version of Spark itself; empty where it was not asked for."""


class Runner(Protocol):
    """The way to Spark. Errors: ``RunnerRefused``, ``RunnerUnavailable``, ``RangeFailed``."""

    session_id: str
    """Is in the ledger before each submission, so that another process can find and end the job."""
    overhead_seconds: float
    """What a job takes beside its rows, as measured; ranges are planned so long that it is a small part of them."""
    returns_results: bool
    """Whether results name their slices. Where not, the sink's markers alone show what an attempt has done."""

    def probe(self, modules: Sequence[str] = ()) -> ExecutorEnvironment:
        """Run a task on the executors that looks at what is there: Spark, Python, and these modules.

        ``RunnerRefused`` where their versions cannot work with those of this side; a warning where nobody tried them.
        """
        ...

    def describe(self, read: ReadSpec, transform: Transform) -> tuple[Column, ...]:
        """Return the columns that the transform makes, by analysis, without reading a row; types as PostgreSQL's."""
        ...

    def run(self, spec: RangeSpec) -> Future[RangeResult]:
        """Submit an attempt; the future ends with its result, or with ``RangeFailed`` or a ``Terminal`` error."""
        ...

    def checksum(self, spec: ChecksumSpec) -> Future[SliceResult]:
        """Count and hash a piece of a table on the executors."""
        ...

    def interrupt(self, session_id: str, tag: str) -> None:
        """Stop the job with this tag, also one that another process submitted; nothing where there is none."""
        ...

    def memory(self) -> MemoryReading | None:
        """Return the live memory of the fullest executor, or ``None`` where it cannot be seen.

        A runner that gives each range executors of its own says so in the reading.
        """
        ...

    def close(self) -> None:
        """End the session; idempotent."""
        ...


class Receiver(Protocol):
    """The receiver of a channel's messages. Called from threads of the channel's own; nothing here may block."""

    def on_subscribed(self, hydration_id: str) -> None:
        """Every message on this hydration that is published from now on will be heard; what was before may be lost.

        Called again after each interruption.
        """
        ...

    def heard(self, frame: bytes) -> None:
        """A message came, as it was sent; or what somebody else has put on the channel."""
        ...

    def lost(self) -> None:
        """Nothing is heard any more of any hydration."""
        ...


class Channel(Protocol):
    """Takes diffs from process to process. It never raises and never waits: what cannot be sent is dropped.

    Messages may be lost, doubled and shuffled. Built around a :class:`Receiver`; opens nothing before it is used.
    """

    @property
    def healthy(self) -> bool:
        """Whether what others publish is being heard now."""
        ...

    def publish(self, hydration_id: str, diff: Diff) -> None:
        """Send a diff to every process that has subscribed to its hydration, this one included."""
        ...

    def subscribe(self, hydration_id: str) -> None:
        """Begin to hear of a hydration; idempotent. ``Receiver.subscribed`` says when it is so."""
        ...

    def unsubscribe(self, hydration_id: str) -> None:
        """Hear of it no more; idempotent."""
        ...

    def flush(self, seconds: float) -> bool:
        """Wait until what was published has been sent, no longer than this; ``False`` where something is left."""
        ...

    def close(self) -> None:
        """Give connections back and end threads; idempotent."""
        ...
