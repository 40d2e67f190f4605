"""What follows a plan under ``catch_up``: the next windows of the log, until the target has caught up."""

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, replace

from airflow_provider_backpressure.core.config import Budget, Consistency
from airflow_provider_backpressure.core.connector_kinds import LARGE_WINDOWS
from airflow_provider_backpressure.core.ports import ChangeLog, SharedTableLog, SharesLog, Source
from airflow_provider_backpressure.core.ports.sink import Marker, Sink
from airflow_provider_backpressure.core.snapshot.bounds import LogBounds, LogPosition, bounds_from_json
from airflow_provider_backpressure.core.snapshot.plan import (
    Plan,
)
from airflow_provider_backpressure.core.snapshot.replay_window import ReplayWindow, goal
from airflow_provider_backpressure.core.snapshot.spark_messages import (
    REPLAY,
)
from airflow_provider_backpressure.core.snapshot.table_alterations import check_kept
from airflow_provider_backpressure.exceptions import (
    RESTART,
    LedgerRefused,
    SourceRefused,
    SourceUnavailable,
)

SUFFIX = "_log"
"""What the kind of a source gets behind it where its log is read."""


@dataclass(frozen=True, kw_only=True)
class Stand:
    """How far a plan brings its target, all of its ranges being committed."""

    end: LogPosition
    """Where its last window ends; of a plan of ranges where the log was kept from."""
    goal: LogPosition
    """The position to reach: the latest one at which any row of the target was read."""

    @property
    def reached(self) -> bool:
        """Whether the target is the source as it was at the end."""
        return self.end.has_reached(self.goal)


def open_log(source: Source, hydration_id: str, plan: Plan | None) -> ChangeLog:
    """Return the log that a plan is about: the hydration's own, or the table's part of one that tables share."""
    if plan is not None and plan.stream:
        return open_shared_log(source, plan.stream)
    return source.log(hydration_id)


def open_shared_log(source: Source, stream: str) -> SharedTableLog:
    """Return a table's part of a log; ``SourceRefused`` where no log of such a source can be shared."""
    if not isinstance(source, SharesLog):
        raise SourceRefused(f"The log of {source.identity} cannot be shared with other tables.")
    return source.get_shared_log(stream)


def stand(plan: Plan, markers: Iterable[Marker]) -> Stand:
    """Return how far a plan brings its target. ``markers``: those of the plan."""
    window, told = ReplayWindow.from_window(plan.read.window), [marker.read_at for marker in markers]
    if window is not None:
        return Stand(end=window.end, goal=goal(window.goal, told))
    start = LogPosition.parse(plan.position or "")
    check_read_at(plan, start, told)
    return Stand(end=start, goal=goal(start, told))


def check_read_at(plan: Plan, start: LogPosition, read_at: Iterable[str]) -> None:
    """Raise ``SourceRefused`` where ranges were read from a server that had not come to the start of the log.

    Their rows lack changes that no window brings. Bytes of a log are those of one server, which is never behind.
    """
    if start.transactions is None:
        return
    behind = [text for text in sorted(set(read_at)) if text and not LogPosition.parse(text).has_reached(start)]
    if behind:
        raise SourceRefused(
            f"Ranges of {plan.source_identity} were read from a server that had only "
            f"{LogPosition.parse(behind[0]).label}, and the log is replayed from {start.label} on: the address "
            f"leads to several servers. Let it lead to one server, and {RESTART}."
        )


def check_caught_up(plan: Plan, sink: Sink) -> None:
    """Raise ``LedgerRefused`` where the log is still to be replayed before the target is as the source was."""
    if plan.consistency is not Consistency.CATCH_UP:
        return
    found = stand(plan, sink.markers(plan.plan_id).values())
    if not found.reached:
        raise LedgerRefused(
            f"The log was replayed into {plan.write.fence} up to {found.end.label}, and it is consistent from "
            f"{found.goal.label} on: let its hydrate_ranges task run first."
        )


def find_released_position(markers: Iterable[Marker]) -> LogPosition | None:
    """Return up to where the sink has committed the log, by its markers; ``None`` where there is none of a window."""
    bounds = (bounds_from_json(dict(marker.bounds)) for marker in markers if not marker.revoked)
    return max((each.end for each in bounds if isinstance(each, LogBounds)), default=None)


def next_windows(
    plan: Plan, log: ChangeLog, markers: Iterable[Marker], *, budget: Budget, hydrating: bool
) -> tuple[Plan, list[LogBounds]] | None:
    """Return the plan that follows one whose ranges are all committed; ``None`` where nothing was written since."""
    return windows_from(stand(plan, markers), plan, log, budget=budget, hydrating=hydrating)


def windows_from(
    found: Stand, plan: Plan, log: ChangeLog, *, budget: Budget, hydrating: bool
) -> tuple[Plan, list[LogBounds]] | None:
    """Return the plan of the windows behind a position; ``None`` where nothing was written since. ``plan``: before."""
    large = plan.write.kind in LARGE_WINDOWS
    windows = log.windows(found.end, bytes=budget.range_bytes, goal=found.goal, large=large)
    if not windows:
        if not found.reached:
            raise SourceUnavailable(
                f"The source's log does not reach {found.goal.label} yet, where its rows were read."
            )
        return None
    before, end = plan.read.window, windows[-1].end
    window = ReplayWindow(
        stream=log.stream,
        start=found.end,
        end=end,
        goal=found.goal,
        first=before is None,
        hydrating=hydrating,
        unit=log.unit,
    )
    following = replace(
        plan,
        plan_id=uuid.uuid4().hex,
        epoch=0,
        frontier={log.stream: end.at},
        total=end.at - found.end.at,
        total_exact=True,
        path=REPLAY,
        read=replace(
            plan.read,
            kind=plan.read.kind.removesuffix(SUFFIX) + SUFFIX,
            window=window.window(before.upto if before else plan.position),
            tells_position=False,
            added=(),
        ),
        write=replace(plan.write, ordered=True),
        clears=None,
    )
    return following, windows


def server_of(identity: str) -> str:
    """Return what a target shares with others: the address before its database, bucket or folder."""
    scheme, _, rest = identity.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"


def find_replaced_log(plan: Plan | None, wanted: Consistency) -> str | None:
    """Return the plan whose rows a plan that catches up begins without: those deleted since would stay for ever."""
    return plan.plan_id if plan is not None and plan.consistency is wanted is Consistency.CATCH_UP else None


def find_compared_end(plan: Plan) -> str | None:
    """Return the end of a plan's offsets: the source compares its log with them, and refuses another log."""
    window = plan.read.window
    return window.upto if plan.consistency is Consistency.OFFSETS and window is not None else None


def with_storage(plan: Plan, draft: Plan, log: ChangeLog) -> Plan:
    """Return the plan of windows with how the table is stored; refuse changes of rows that are not in the log.

    By the table as it is once the windows' end is known: what comes later is found before the next windows. A plan
    without windows needs no check: every statement that alters a table moves the log on.
    """
    before, now = plan.read.storage, log.storage(plan.read)
    if before is not None and now is not None:
        check_kept(before, now, [column.name for column in plan.read.columns], plan_id=plan.plan_id)
    return replace(draft, read=replace(draft.read, storage=None if now is None else now.mark_changed_since(before)))
