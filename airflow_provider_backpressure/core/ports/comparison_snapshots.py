"""Ports of a comparison by value while windows of the log go in: source and target, each as of one moment.

The target is opened first, at its frontier. The source's snapshot then sees everything that was committed before that,
and more. The log between them, as far as the snapshot sees it, says by which rows they have to differ.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from airflow_provider_backpressure.core.ports import ChangeLog
from airflow_provider_backpressure.core.snapshot.bounds import Bounds, LogPosition
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.spark_messages import ReadSpec, WriteSpec
from airflow_provider_backpressure.core.snapshot.table_alterations import TableStorage


class SourceMoment(Protocol):
    """A source's table as one snapshot shows it. Errors: as those of a source and its log."""

    snapshot: str
    """What a task imports the snapshot by."""
    storage: TableStorage | None
    """The table's files then: a snapshot does not show the rows of others."""

    def changes(self, start: LogPosition, key: Sequence[str]) -> Iterable[Sequence[bytes]]:
        """Yield the table's changes in the log from ``start`` on that the snapshot sees, as a window's are.

        ``LogLost`` where the log from there on was released: another moment has to be opened.
        """
        ...

    def close(self) -> None:
        """Let the snapshot go; idempotent."""
        ...


@runtime_checkable
class HasSourceMoments(Protocol):
    """A source whose table can be compared while its log is replayed."""

    def open_moment(self, read: ReadSpec, log: ChangeLog) -> SourceMoment:
        """Take a snapshot of the table. ``log``: the hydration's own, or the table's part of one that is shared."""
        ...


@dataclass(frozen=True, kw_only=True)
class RowTotal:
    """Number and sum of hashes of some rows."""

    rows: int = 0
    checksum: str = ""
    """As in :class:`..core.snapshot.spark_messages.SliceResult`; empty where there is no row."""


@dataclass(frozen=True, kw_only=True)
class Late:
    """What the source's snapshot shows of a range and the target does not yet."""

    before: RowTotal | None
    """Rows of the target that the log has changed since; ``None``: all of them, since the table was emptied."""
    after: RowTotal
    """What these rows became, and rows that are new."""


class TargetMoment(Protocol):
    """A target as one snapshot shows it. Errors: ``SinkRefused``, ``SinkUnavailable``."""

    snapshot: str
    at: LogPosition
    """Up to where the log is replayed into it."""
    plan: Plan
    """The plan that it has of the table."""

    def bring(self, changes: Iterable[Sequence[bytes]]) -> int:
        """Work out what rows become of these changes, beside the target, and return how many changes there were."""
        ...

    def measure_late(self, bounds: Bounds | None) -> Late:
        """Return what the changes make of the rows of a range; ``None``: of all rows."""
        ...

    def close(self) -> None:
        """Let the snapshot go; idempotent."""
        ...


@runtime_checkable
class HasTargetMoments(Protocol):
    """A sink whose target can be compared while windows of the log go in."""

    def open_moment(self, plan: Plan, *, committed: int) -> TargetMoment:
        """Take a snapshot of the target, which has to be consistent as of its frontier.

        ``plan``: as the ledger has it; ``committed``: how many of its ranges are committed there. ``LedgerRefused``
        where windows are still to be replayed before the target is consistent, ``PlanSuperseded`` where it has another
        plan by now.
        """
        ...

    def find_nullable(self, write: WriteSpec) -> set[str]:
        """Return the columns of the key that may be NULL in the target, where only somebody else can write such rows.

        A followed source has no such row, and its ranges need not select it.
        """
        ...
