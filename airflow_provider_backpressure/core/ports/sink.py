"""Ports of a sink: its target, its plans' fence and its commit markers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from airflow_provider_backpressure.core.config import Log, Mode
from airflow_provider_backpressure.core.health_signal_declarations import Watched
from airflow_provider_backpressure.core.ports import Health
from airflow_provider_backpressure.core.snapshot.bounds import Bounds, LogPosition, bounds_from_json
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.spark_messages import (
    Column,
    Window,
    WriteSpec,
)
from airflow_provider_backpressure.core.stage_metrics import Flow


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
    read_at: str = ""
    """The position of the source's log after the rows were read, a ``LogPosition``; empty where that was not asked."""

    @property
    def rows_read(self) -> int:
        """Rows that were read from the source: those in the target, and those kept aside."""
        return self.rows + self.quarantined

    def has_bounds(self, bounds: Bounds) -> bool:
        """Whether the slice was committed with just these bounds."""
        return bounds_from_json(dict(self.bounds)) == bounds


@dataclass(frozen=True, kw_only=True)
class PlanRow:
    """The plan that holds a target, as the target itself knows it."""

    plan_id: str
    epoch: int
    source_identity: str
    plan: Plan | None
    """The whole of it, but for its epoch; ``None`` where an earlier release has begun it."""
    committed: int
    """Slices of the plan that have a marker, revoked ones not counted."""
    published: bool = True
    """Whether readers see the rows of the plan; under ``replace`` they do not until the end."""


class Activity(StrEnum):
    """What a target does with an attempt."""

    WAITING = "waiting"
    """For rows, or for the next statement."""
    LOADING = "loading"
    """It takes rows."""
    ENDING = "ending"
    """It has all rows, and brings them to their place."""


@runtime_checkable
class ShowsReaders(Protocol):
    """A source whose server shows the sessions that read from it."""

    def activities(self, plan_id: str) -> dict[str, Activity]:
        """Return what the target does now with each attempt of the plan that reads, by slice id.

        It loads where the reader is not read from, and waits where the server has no rows for it yet.
        """
        ...


@runtime_checkable
class KeepsTimes(Protocol):
    """A sink beside whose rows running attempts write down their times themselves, since no server shows them."""

    def read_times(self, plan_id: str, slice_ids: Sequence[str]) -> dict[str, Flow]:
        """Return what the latest attempt at each of these slices has measured so far; none of one that is new."""
        ...


class MirrorTarget(Protocol):
    """A target of which each transaction can exchange a range's rows. Errors: ``SinkRefused``, ``SinkUnavailable``."""

    def check(self, write: WriteSpec, split: Sequence[str]) -> None:
        """Raise ``SinkRefused`` where ranges of these columns may hold other rows in the target than in the source."""
        ...

    def rows(self, near: int | None = None) -> int:
        """Return how many rows the target holds, of a very large one the server's estimate.

        So it may for a large one of which the estimate is about ``near``, the rows that the source holds.
        """
        ...

    def check_rewrites(self, write: WriteSpec, key: Sequence[str], split: Sequence[str]) -> None:
        """Raise ``SinkRefused`` where a range's rows cannot be exchanged by this key together with its marker.

        ``write``: what :meth:`Sink.fit` has returned a moment ago; what that has checked is not checked again.
        """
        ...

    def index_ranges(self, key: Sequence[str]) -> None:
        """Let rows be found by this key until the target is completed, where it has no such index. Idempotent."""
        ...

    def find_confirmation(self, plan_id: str) -> int:
        """Return the epoch under which :meth:`confirm` has confirmed a plan; 0: it has not."""
        ...

    def files(self) -> str:
        """Name the target's files and columns: there are others where rows or values were exchanged at one stroke.

        Empty without a target.
        """
        ...

    def count_deleted(self, plan_id: str) -> int:
        """Return how many rows a plan has deleted, by its markers."""
        ...

    def writes(self, since: int) -> list[Marker]:
        """Return the latest marker of each bounds that were written under this epoch or a later one."""
        ...

    def confirm(self, plan: Plan, *, rows: int) -> None:
        """Write one marker that confirms the ranges of a plan that did not change, with their rows. Idempotent.

        ``SinkRefused`` where the target has other files or columns than when the plan was made.
        """
        ...


class Sink(Protocol):
    """A downstream target, opened. Errors: ``SinkRefused``, ``SinkUnavailable``."""

    identity: str
    modules: tuple[str, ...]
    """Python modules that a task imports to write into it."""
    modes: tuple[Mode, ...]
    """What it offers; advice names no other."""

    def fit(self, columns: Sequence[Column], *, mode: str, key: Sequence[str], log: Log | None = None) -> WriteSpec:
        """Check that rows of these columns may go into the target, or that it can be created. Changes nothing.

        ``log``: what changes and deletes its rows by key.
        """
        ...

    def widen(self, columns: Sequence[Column]) -> None:
        """Add columns that may be NULL to a target that is there. Idempotent; ``SinkRefused`` where a sink cannot."""
        ...

    def prepare(self, write: WriteSpec) -> None:
        """Create what is missing: the target and the plan and marker tables. Idempotent."""
        ...

    def holds_rows(self) -> bool:
        """Whether the target exists and has at least one row."""
        ...

    def begin(self, plan: Plan, *, clear: str | None = None) -> int:
        """Write the plan into the target's plan row and return its newly minted epoch: every older plan is fenced.

        ``PlanSuperseded`` where :meth:`Plan.check_turn` refuses the plan that holds the target by then.

        ``clear``: id of the plan before, which is closed unfinished; what it wrote is removed in the same step, as the
        mode demands. ``SinkRefused`` where the target also holds rows of others. A plan that holds the target already
        gets a newer epoch, and nothing is removed.
        """
        ...

    def renew(self, plan_id: str) -> int | None:
        """Mint a newer epoch for a plan, so that its attempts of before are refused, and return it.

        ``None`` where another plan holds the target's plan row by now.
        """
        ...

    def epoch(self, plan_id: str) -> int | None:
        """Return the epoch of this plan if it still holds the target's plan row, otherwise ``None``."""
        ...

    def held(self) -> PlanRow | None:
        """Return the target's plan row; ``None`` where no plan holds the target, or there is none. Changes nothing."""
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

    def activities(self, plan_id: str) -> dict[str, Activity] | None:
        """Return what the target does now with each running attempt of the plan, by slice id.

        ``None``: the target has no server that could be asked.
        """
        ...

    def slice_query(self, write: WriteSpec, bounds: Bounds | None, window: Window | None = None) -> str:
        """Return the statement that reads the plan's rows of these bounds (``None``: all), columns as written.

        ``window``: of these values of the rising column only. Under ``replace`` the rows are in the shadow until it is
        published, and in the target from then on.
        """
        ...

    def scan_queries(self, write: WriteSpec, bounds: Bounds, window: Window | None, *, parts: int) -> Sequence[str]:
        """Return statements that read all of the plan's rows once together, about as many each: at most ``parts``.

        Nothing where rows of such bounds are found by themselves. ``window``: as for :meth:`slice_query`.
        """
        ...

    def find_surplus(self, plan: Plan) -> str:
        """Say what the target holds that the plan has not written, and how to be rid of it; empty: nothing.

        Nothing is said of what comparing the plan's ranges, or the target as a whole, finds by itself; nor where a
        mode lets others write too (``upsert``). A target that earlier plans have filled before an increment is judged
        as far as their rows can be distinguished from others.
        """
        ...

    def read_quarantine(self, plan: Plan, slice_id: str) -> tuple[str, ...]:
        """Return a slice's rows in quarantine, each as the task has kept it: JSON, cut off where it is very long."""
        ...

    def check_history(self) -> None:
        """Raise ``SinkRefused`` where the target is not the one that its plans wrote, or was set back behind them.

        Only tables of files can be: in a database plan and markers are restored with the rows.
        """
        ...

    def discard(self, plan: Plan, slice_id: str, bounds: Bounds) -> int:
        """Remove a slice's rows and its marker in one step, so that it can be written again; return the rows removed.

        Rows may stay where writing them again replaces them by key. Idempotent. ``SinkRefused`` where the slice's rows
        cannot be distinguished from others, ``PlanSuperseded`` for a plan that no longer holds the target.
        """
        ...

    def revoke(self, plan: Plan, slice_id: str, bounds: Bounds) -> bool:
        """Put a revoked marker in a slice's place, which refuses every attempt at it; ``False`` where it is committed.

        Idempotent. ``SinkRefused`` where a sink has no such markers, ``PlanSuperseded`` as for :meth:`discard`.
        """
        ...

    def prune(self, plan: Plan, plan_ids: Sequence[str]) -> int:
        """Forget what the target keeps of these earlier plans, and return how many markers went. Idempotent.

        None of the plan that holds the target, of the plan before it, and under ``mirror`` none that is the newest
        write over its bounds: a later plan skips the range by it. ``PlanSuperseded`` where ``plan`` no longer holds the
        target, ``SinkRefused`` where our role may not.
        """
        ...

    def complete(self, plan: Plan) -> None:
        """Finish the table that holds the rows, once every range is committed. Idempotent.

        Under ``replace`` that is the shadow, which gets its indexes and keys. A target into which a log is replayed is
        marked as consistent. Otherwise there is nothing to do. ``SinkRefused`` where the new rows break one of them.
        """
        ...

    def publish(self, plan: Plan) -> None:
        """Let the shadow take the target's place in one step. Idempotent; only ``replace`` has anything to do.

        Completes it first. ``PlanSuperseded`` for a plan that no longer holds the target, ``SinkRefused`` where the
        target has become one whose place cannot be taken, ``SinkUnavailable`` where readers do not let it go for now.
        """
        ...

    def scratch(self, digits: str, *, indexes: bool = True) -> "ScratchSink":
        """Open a target beside this one that is made like it, for a probe. Nothing is created before ``prepare``.

        ``digits``: eight hexadecimal ones, the end of its name. ``indexes``: whether it has those of the target.
        ``SinkRefused`` where a sink has no such targets.
        """
        ...

    def mirror(self, write: WriteSpec | None = None) -> MirrorTarget:
        """Return what exchanging a range's rows asks of the target; only for a sink that has the mode ``mirror``.

        ``write``: of the table that a plan writes, which under ``replace`` is the shadow, once it is there.
        """
        ...

    def traces(self) -> tuple[str, ...]:
        """Name what the product keeps of the target beside its rows: plan, markers, rows put aside. Changes nothing."""
        ...

    def erase(self) -> None:
        """Remove all of that. Idempotent. The target keeps its rows; attempts that still run are refused from then on.

        ``SinkRefused`` where our role may not.
        """
        ...

    def health(self, watched: Sequence[Watched], *, seconds: float) -> Health:
        """Return what looks at these signals; ``SinkRefused`` names one that it cannot give."""
        ...

    def close(self) -> None:
        """Give connections back; idempotent."""
        ...


@runtime_checkable
class ReplaysApart(Protocol):
    """A target that gets the windows of a log which tables share by commits of its own, one for each."""

    def find_frontier(self, plan: Plan) -> LogPosition:
        """Return up to where the log is in the target of a table's plan."""
        ...


@runtime_checkable
class FencesSlices(Protocol):
    """A sink that refuses late attempts slice by slice, so that it matters which were ever submitted."""

    def tell_submitted(self, submitted: Callable[[str], Sequence[str] | None]) -> None:
        """Take what returns the slices of a plan that were ever submitted and are not known to be committed.

        It is asked when the plan's attempts have been refused by a newer epoch. ``None``: nobody knows the plan, and
        every slice of it that is not committed counts as submitted.
        """
        ...


class ScratchSink(Sink, Protocol):
    """A target that only a probe writes."""

    def drop(self, plan_id: str) -> None:
        """Remove it with its rows, its plan row and its markers, in one step. Idempotent.

        ``SinkRefused`` for what a probe did not make, and where another plan holds it.
        """
        ...
