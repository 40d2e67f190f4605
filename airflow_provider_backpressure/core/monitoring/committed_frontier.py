"""The committed frontier of a hydration: how far in the source's own log the sink is."""

from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.frontier import Frontier
from airflow_provider_backpressure.core.gate.hydration import Hydration
from airflow_provider_backpressure.core.monitoring.uncommitted_offsets import STILL, unread
from airflow_provider_backpressure.core.phases import Phase
from airflow_provider_backpressure.core.planning.change_windows import SUFFIX
from airflow_provider_backpressure.core.ports.ledger import LedgerReader
from airflow_provider_backpressure.core.progress.source_position import from_position
from airflow_provider_backpressure.core.snapshot.bounds import LogBounds
from airflow_provider_backpressure.core.snapshot.log_position import LogPosition
from airflow_provider_backpressure.core.snapshot.offsets import LogWindow
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.replay_window import ReplayWindow


def complete(hydration: Hydration, ledger: LedgerReader) -> bool:
    """Whether every range of the current plan is committed."""
    if hydration.plan is None or hydration.phase is not Phase.STEADY_STATE:
        return False
    return not hydration.plan.increment or not ledger.ranges(hydration.plan.plan_id, states=STILL, limit=1)


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
    if plan.replays:
        return at_position(plan, find_replayed_position(plan, ledger))
    if complete(hydration, ledger):
        return None if plan.position is None else _read(plan, plan.position)
    return before if plan.increment else None


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
    return plan is not None and (plan.read.window is not None or plan.consistency is Consistency.CATCH_UP)


def _read(plan: Plan, position: str) -> Frontier | None:
    if plan.consistency is Consistency.CATCH_UP:
        return at_position(plan, LogPosition.parse(position))
    return from_position(_kind(plan), position)


def _kind(plan: Plan) -> str:
    return plan.read.kind.removesuffix(SUFFIX)
