"""Ports: what the domain asks of the world. Each has a real implementation and an in-memory one (``testing``)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from airflow_provider_backpressure.core.bounds import Bounds
from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.hydration import GateState, Hydration, Permit, RangeCounts
from airflow_provider_backpressure.core.limits import Limit
from airflow_provider_backpressure.core.messages import (
    ChecksumSpec,
    Column,
    RangeResult,
    RangeSpec,
    ReadSpec,
    Slice,
    SliceResult,
    Transform,
    Window,
    WriteSpec,
)
from airflow_provider_backpressure.core.ranges import PlannedRange, RangeRecord, RangeState
from airflow_provider_backpressure.core.signals import Decision, MemoryReading
from airflow_provider_backpressure.core.snapshot import Plan, Snapshot
from airflow_provider_backpressure.core.statistics import WorkerStatistics


@dataclass(frozen=True, kw_only=True)
class Marker:
    """A slice's commit as the sink has it; it became visible together with the slice's rows."""

    plan_id: str
    slice_id: str
    epoch: int
    attempt: int
    bounds: Mapping[str, Any]
    rows: int
    bytes: int
    checksum: str
    committed_at: datetime
    revoked: bool = False
    quarantined: int = 0
    """Rows that went into the quarantine table instead of the target."""


class Keeper(Protocol):
    """Holds a source's exported snapshot open for as long as ranges are read in it."""

    snapshot: str
    """What a task imports the snapshot by."""

    def check(self) -> None:
        """Raise ``SnapshotLost`` where the snapshot is gone. Cheap; also keeps the connection from falling asleep."""
        ...

    def close(self) -> None:
        """Let the snapshot go; idempotent."""
        ...


class Source(Protocol):
    """An upstream, opened. Errors: ``SourceRefused``, ``SourceUnavailable``."""

    identity: str
    modules: tuple[str, ...]
    """Python modules that a task imports to read from it."""
    increments: bool
    """Whether later runs read what has come since the committed window."""

    def snapshot(self, consistency: Consistency | None = None, *, after: str | None = None) -> Snapshot:
        """Check that everything declared exists and may be read, and say what there is. Reads no rows.

        ``consistency``: ``None`` for the source's own default. ``after``: only what lies above this value of the rising
        column.
        """
        ...

    def ranges(self, snapshot: Snapshot, *, rows: int, bytes: int) -> Iterator[PlannedRange]:
        """Yield half-open ranges that cover the snapshot, none where it is empty.

        None is expected to hold more than ``rows`` rows or ``bytes`` bytes, but for what a single key value holds.
        """
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

    def close(self) -> None:
        """Give connections back; idempotent."""
        ...


class Sink(Protocol):
    """A downstream target, opened. Errors: ``SinkRefused``, ``SinkUnavailable``."""

    identity: str
    modules: tuple[str, ...]
    """Python modules that a task imports to write into it."""

    def fit(self, columns: Sequence[Column], *, mode: str, key: Sequence[str]) -> WriteSpec:
        """Check that rows of these columns may go into the target, or that it can be created. Changes nothing."""
        ...

    def prepare(self, write: WriteSpec) -> None:
        """Create what is missing: the target and the plan and marker tables. Idempotent."""
        ...

    def holds_rows(self) -> bool:
        """Whether the target exists and has at least one row."""
        ...

    def begin(self, plan: Plan, *, clear: str | None = None) -> int:
        """Write the plan into the target's plan row and return its newly minted epoch: every older plan is fenced.

        ``clear``: id of the plan before, which is closed unfinished; what it wrote is removed in the same step, as the
        mode demands. ``SinkRefused`` where the target also holds rows of others.
        """
        ...

    def renew(self, plan_id: str) -> int | None:
        """Mint a newer epoch for a plan, so that its attempts of before are refused, and return it.

        ``None`` where another plan holds the target's plan row by now.
        """
        ...

    def epoch(self, plan_id: str) -> int | None:
        """Return the epoch of this plan if it still holds the target's plan row, else ``None``."""
        ...

    def markers(self, plan_id: str, slice_ids: Sequence[str] | None = None) -> dict[str, Marker]:
        """Return the markers of a plan by slice id, of all slices or of those asked for."""
        ...

    def end_attempts(self, plan_id: str, slice_id: str) -> int:
        """End every connection of attempts at this slice and return how many there were."""
        ...

    def rows_in_flight(self, plan_id: str) -> dict[str, int]:
        """Return rows that running attempts have handed to the sink and not committed yet, by slice id."""
        ...

    def slice_query(self, write: WriteSpec, bounds: Bounds | None, window: Window | None = None) -> str:
        """Return the statement that reads the plan's rows of these bounds (``None``: all), columns as written.

        ``window``: of these values of the rising column only. Under ``replace`` the rows are in the shadow until it is
        published, and in the target from then on.
        """
        ...

    def discard(self, plan: Plan, slice_id: str, bounds: Bounds) -> int:
        """Remove a slice's rows and its marker in one step, so that it can be written anew; return the rows removed.

        Idempotent. ``SinkRefused`` where the slice's rows cannot be told from others, ``PlanSuperseded`` for a plan
        that no longer holds the target.
        """
        ...

    def complete(self, plan: Plan) -> None:
        """Finish what the rows have come into, once every range is committed. Idempotent.

        Under ``replace`` that is the shadow, which gets its indexes and keys; under every other mode there is nothing
        to do. ``SinkRefused`` where the new rows break one of them.
        """
        ...

    def publish(self, plan: Plan) -> None:
        """Let the shadow take the target's place in one step. Idempotent; only ``replace`` has anything to do.

        Completes it first. ``PlanSuperseded`` for a plan that no longer holds the target, ``SinkRefused`` where the
        target has become one whose place cannot be taken, ``SinkUnavailable`` where readers do not let it go for now.
        """
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


class Runner(Protocol):
    """The way to Spark. Errors: ``RunnerRefused``, ``RunnerUnavailable``, ``RangeFailed``."""

    session_id: str
    """Stands in the ledger before each submission, so that another process can find and end the job."""
    overhead_seconds: float
    """What a job takes beside its rows, as measured; ranges are planned so long that it is a small part of them."""

    def probe(self, modules: Sequence[str] = ()) -> ExecutorEnvironment:
        """Run a task on the executors that looks at what is there: Python, and these modules beside those of all."""
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


class LedgerReader(Protocol):
    """Reading the ledger. Errors: ``LedgerUnavailable``; ``LedgerRefused`` where its tables are missing."""

    def hydration(self, hydration_id: str) -> Hydration:
        """Return one; ``LedgerRefused`` where there is none of that id."""
        ...

    def find(self, *, environment: str, source_identity: str, sink_identity: str) -> Hydration | None:
        """Return the hydration of this source and sink."""
        ...

    def hydrations(self) -> list[Hydration]:
        """Return all, the latest changed first."""
        ...

    def gate(self, hydration_id: str) -> GateState:
        """Return the gate's state in one read."""
        ...

    def counts(self, plan_id: str) -> RangeCounts:
        """Count a plan's ranges by state."""
        ...

    def ranges(
        self, plan_id: str, *, states: Sequence[RangeState] | None = None, after_seq: int = -1, limit: int | None = None
    ) -> list[RangeRecord]:
        """Return ranges in the order of ``seq``, paged by ``after_seq`` and ``limit``."""
        ...

    def range(self, plan_id: str, seq: int) -> RangeRecord:
        """Return one range; ``LedgerRefused`` where there is none."""
        ...

    def abandoned(self, hydration_id: str, *, lane: str | None = None) -> list[RangeRecord]:
        """Return admitted ranges whose lease has run out, and all that ``lane`` holds (from an earlier life of it)."""
        ...

    def statistics(self, hydration_id: str) -> list[WorkerStatistics]:
        """Return the statistics, one row per worker."""
        ...

    def rate(self, hydration_id: str, *, seconds: float = 60.0) -> float | None:
        """Return rows committed per second over the latest samples; ``None`` with fewer than two."""
        ...


class Ledger(LedgerReader, Protocol):
    """Writing the ledger. Every method is one short transaction."""

    def register(
        self, *, environment: str, source_identity: str, sink_identity: str, owner: str, cluster: str, credits: int
    ) -> Hydration:
        """Return the hydration of this source and sink, made where it is missing.

        The configured credits and cluster are taken over; ``LedgerRefused`` names the owner where it is another one.
        """
        ...

    def hold(self, hydration_id: str, *, run: str, over: str | None = None) -> str:
        """Let a run have the hydration for itself where nobody has it, or the run ``over`` has; return who has it.

        Whether a run is over is for the caller to know. Asking again changes nothing.
        """
        ...

    def let_go(self, hydration_id: str, *, run: str) -> bool:
        """Let the next run have it; ``False`` where this run does not hold it (any more)."""
        ...

    def save_plan(self, hydration_id: str, plan: Plan, ranges: Iterable[PlannedRange]) -> int:
        """Store a new plan with its ranges and return their number. Statistics begin anew with the plan's total."""
        ...

    def take_over(self, hydration_id: str, plan: Plan) -> None:
        """Write down the newer epoch under which a new life of the lane goes on with the same plan.

        Nothing where another plan is the current one by now.
        """
        ...

    def admit(
        self,
        hydration_id: str,
        *,
        lane: str,
        session_id: str,
        lease_seconds: float,
        memory_bytes: int = 0,
        seq: int | None = None,
    ) -> Permit | None:
        """Give the next planned range (or ``seq``) a credit under the hydration's row lock, or ``None``.

        ``None`` while paused, while every credit is in flight, and where no such range is planned. The permit's
        range has a new attempt number and tag. Asked for a ``seq`` that this very lane holds already under an unexpired
        lease and whose attempt has no session yet (``session_id`` empty at reservation), the reservation becomes the
        permit: same attempt, lease renewed, session written.
        """
        ...

    def renew(self, hydration_id: str, *, lane: str, lease_seconds: float) -> int:
        """Renew the leases of every range that the lane has in flight and return how many there are."""
        ...

    def commit(
        self,
        plan_id: str,
        seq: int,
        *,
        worker: str,
        attempt: int,
        rows: int,
        bytes: int,
        checksum: str,
        limit: Limit,
        pressure: float,
        memory_bytes: int | None = None,
    ) -> bool:
        """Write down that the sink has committed a range; ``False`` where that was written already.

        In the same transaction the credit comes back, the worker's statistics grow, credits follow the limit's law,
        commit latency and memory per range are learned (moving mean; moving maximum), and a sample is kept.
        """
        ...

    def release(self, plan_id: str, seq: int, *, attempt: int, error: str, fail: bool = False) -> bool:
        """Take the credit back from an attempt that came to nothing: planned again, or failed. ``False`` if not its."""
        ...

    def retry_failed(self, plan_id: str) -> int:
        """Plan failed ranges again, as a person's retry of the task means it; return how many there were."""
        ...

    def reopen(self, plan_id: str, seq: int, *, who: str, why: str | None = None) -> bool:
        """Plan a committed or failed range of the current plan again; ``False`` where it is neither.

        What it had committed no longer counts as progress. Who, when and why stay in the control table.
        """
        ...

    def finish(self, hydration_id: str) -> Hydration:
        """Go to steady state where every range of the plan is committed; the total becomes exact. Idempotent.

        ``LedgerRefused`` where a range is still open.
        """
        ...

    def record_decision(self, hydration_id: str, decision: Decision) -> None:
        """Keep the gate's latest decision with all its reasons."""
        ...

    def record_read(self, hydration_id: str, *, worker: str, in_flight_rows: int) -> None:
        """Keep what a worker has read beyond what is committed; ``snapshot_read`` never goes back."""
        ...

    def pause(self, hydration_id: str, *, who: str, why: str | None = None) -> None:
        """Close the gate by hand; who, when and why stay in the control table."""
        ...

    def resume(self, hydration_id: str, *, who: str, why: str | None = None) -> None:
        """Take the hand off again."""
        ...

    def close(self) -> None:
        """Give connections back; idempotent."""
        ...
