"""The committed frontier of a hydration: how far in the source's own log the sink is."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.gate.hydration_record import Hydration, Phase
from airflow_provider_backpressure.core.planning.catch_up_windows import SUFFIX
from airflow_provider_backpressure.core.ports.ledger import LedgerReader
from airflow_provider_backpressure.core.progress.source_position import from_position
from airflow_provider_backpressure.core.snapshot.bounds import LogBounds, LogPosition, OffsetBounds
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord, RangeState
from airflow_provider_backpressure.core.snapshot.replay_window import ReplayWindow
from airflow_provider_backpressure.core.snapshot.topic_offsets import Frontier, LogWindow, unread_offsets
from airflow_provider_backpressure.exceptions import LedgerRefused

STILL = (RangeState.PLANNED, RangeState.ADMITTED, RangeState.FAILED)
MOST = 1000
"""Ranges that are asked for at a time: the first open ones cover every partition before the last of them.

More than that of those that were cut later cover none: then nothing counts as committed."""


@dataclass(frozen=True, kw_only=True)
class UnreadOffsets:
    """Implements :data:`..core.ports.Unread` for a plan; equal for the same plan."""

    plan_id: str
    ranges: int | None = field(compare=False, repr=False)
    """How many the plan was made with: those numbered from there on were cut later, or planned again."""
    window: LogWindow = field(compare=False, repr=False)
    ledger: LedgerReader = field(compare=False, repr=False)

    def __call__(self) -> Mapping[int, int]:
        """Return the first offset of each partition that is not committed."""
        found = self._open(after_seq=-1)
        if len(found) < MOST or self.ranges is None:
            return unread_offsets(self.window, _collect_bounds(found), whole=len(found) < MOST)
        # Asked for in this order: what is cut meanwhile is seen whole, or in pieces, or as both.
        later = self._open(after_seq=max(self.ranges - 1, found[-1].seq))
        if len(later) == MOST:
            return dict(self.window.start)
        planned = [record for record in found if record.seq < self.ranges]
        cut = [*found[len(planned) :], *later]
        return unread_offsets(
            self.window, _collect_bounds(planned), whole=len(planned) < len(found), cut=_collect_bounds(cut)
        )

    def _open(self, *, after_seq: int) -> list[RangeRecord]:
        return self.ledger.ranges(self.plan_id, states=STILL, after_seq=after_seq, limit=MOST)


def unread(plan: Plan | None, ledger: LedgerReader) -> UnreadOffsets | None:
    """Return how far a plan's log has been committed; ``None`` where it reads no log."""
    window = LogWindow.from_window(plan.read.window) if plan is not None else None
    if plan is None or window is None:
        return None
    return UnreadOffsets(plan_id=plan.plan_id, ranges=plan.ranges, window=window, ledger=ledger)


def _collect_bounds(records: Iterable[RangeRecord]) -> list[OffsetBounds]:
    return [record.bounds for record in records if isinstance(record.bounds, OffsetBounds)]


def complete(hydration: Hydration, ledger: LedgerReader) -> bool:
    """Whether every range of the current plan is committed."""
    if hydration.plan is None or hydration.phase is not Phase.STEADY_STATE:
        return False
    return hydration.verified or not ledger.ranges(hydration.plan.plan_id, states=STILL, limit=1)


def read_committed_frontier(hydration: Hydration, ledger: LedgerReader, *, before: Frontier | None) -> Frontier | None:
    """Return how far the sink has committed; ``None`` where that is not known, never 0 for that.

    Of a topic that is known offset by offset, of a log that is replayed window by window. Of a table it is the
    position of the log when a plan was made, from that plan's completion on; while an increment goes in, it is where it
    was ``before``.
    """
    plan = hydration.plan
    log = unread(plan, ledger)
    if log is not None:
        return dict(log().items())
    if plan is None:
        return None
    if plan.stream:
        return _read_shared_frontier(hydration, plan, ledger)
    if plan.replays:
        return at_position(plan, find_replayed_position(plan, ledger))
    if complete(hydration, ledger):
        return None if plan.position is None else _read(plan, plan.position)
    return before if plan.increment else None


def _read_shared_frontier(hydration: Hydration, member: Plan, ledger: LedgerReader) -> Frontier | None:
    """Return how far a log is replayed into a table that shares it; ``None`` where its windows leave the table out."""
    if not complete(hydration, ledger):
        return None
    stream = None
    with suppress(LedgerRefused):
        stream = ledger.hydration(member.stream).plan
    if stream is None or all(table.plan_id != member.plan_id for table in stream.tables):
        return None
    return at_position(stream, find_replayed_position(stream, ledger))


def find_replayed_position(plan: Plan, ledger: LedgerReader) -> LogPosition:
    """Return up to where the windows of a plan are in: they go in one after another."""
    for record in ledger.ranges(plan.plan_id, states=STILL, limit=1):
        if isinstance(record.bounds, LogBounds):
            return record.bounds.start
    window = ReplayWindow.from_window(plan.read.window)
    assert window is not None, "what a plan replays"
    return window.end


def at_position(plan: Plan, position: LogPosition) -> Frontier | None:
    """Return the frontier at a position. A GTID set may be followed by a place in the binlog's files."""
    return from_position(_kind(plan), position.label)


def moves_with_ranges(plan: Plan | None) -> bool:
    """Whether the committed frontier moves with each range, and not only when the plan is complete."""
    return plan is not None and (plan.replays or LogWindow.from_window(plan.read.window) is not None)


def follows(plan: Plan | None) -> bool:
    """Whether later runs bring what comes to the source."""
    return plan is not None and plan.follows


def _read(plan: Plan, position: str) -> Frontier | None:
    if plan.consistency is Consistency.CATCH_UP:
        return at_position(plan, LogPosition.parse(position))
    return from_position(_kind(plan), position)


def _kind(plan: Plan) -> str:
    return plan.read.kind.removesuffix(SUFFIX)
