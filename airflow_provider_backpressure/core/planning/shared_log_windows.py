"""What a stream replays: windows of a log that several tables share, and which of its tables they are for.

A stream is a hydration of its own. Its first plan has no window and no table: it says from where the log is kept. Each
later one begins where the one before ended, and names the tables that it is replayed into, each by its plan.

A table is in a plan if it was in the plan before, or has joined the log since: its position, from which on the log
shows all its changes, has reached the end of that plan. Every other table lacks changes, and is planned again.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from airflow_provider_backpressure.core.config import Budget, Consistency, Mode
from airflow_provider_backpressure.core.gate.hydration_record import Hydration
from airflow_provider_backpressure.core.planning.catch_up_windows import (
    SUFFIX,
    Stand,
    find_released_position,
    open_shared_log,
    server_of,
    stand,
    windows_from,
)
from airflow_provider_backpressure.core.planning.plan_result import Planned, Verdict
from airflow_provider_backpressure.core.planning.preconditions import tell_submitted
from airflow_provider_backpressure.core.ports import ChecksPosition, Runner, Source
from airflow_provider_backpressure.core.ports.ledger import Ledger, count_leased
from airflow_provider_backpressure.core.ports.sink import ReplaysApart, Sink
from airflow_provider_backpressure.core.reconciliation.reindexer import Reindexer
from airflow_provider_backpressure.core.snapshot.bounds import LogPosition
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.replay_window import ReplayWindow, goal, number_windows
from airflow_provider_backpressure.core.snapshot.spark_messages import COPY, StreamTable
from airflow_provider_backpressure.core.snapshot.table_alterations import check_kept
from airflow_provider_backpressure.core.verification.completeness_check import Completion
from airflow_provider_backpressure.exceptions import (
    RESTART,
    BackpressureError,
    LedgerRefused,
    LedgerUnavailable,
    LogLost,
    PlanSuperseded,
    SinkRefused,
    Terminal,
)


@dataclass(frozen=True, kw_only=True)
class Member:
    """A table that shares the log, with the ports of its own hydration."""

    hydration: Hydration
    source: Source
    sink: Sink
    reading: bool = False
    """Whether ranges of it are still to be read, under an epoch that :meth:`StreamPlanner.fence` has given it."""

    @property
    def plan(self) -> Plan:
        """Its plan; ``LedgerRefused`` where it has none."""
        if self.hydration.plan is None:
            raise LedgerRefused(f"There is no plan yet for {self.hydration.sink_identity}.")
        return self.hydration.plan


@dataclass(frozen=True, kw_only=True)
class StreamPlanned:
    """What a stream is to do, and the tables that it does not do it for."""

    planned: Planned | None
    """``None`` where nothing was written to the log."""
    left_out: dict[str, BackpressureError] = field(default_factory=dict)
    """Why a table is left out from here on, by the id of its hydration: it lacks changes, and is to be planned again.
    """


@dataclass(frozen=True, kw_only=True)
class StreamPlanner:
    """Plans a stream: one slot, one publication and one position for several tables."""

    stream: str
    """The id of its hydration, which each table's plan names too: by it the stream is found where a ledger is lost."""
    source: Source
    """The log."""
    sink: Sink
    """Where its windows are fenced and marked."""
    runner: Runner
    ledger: Ledger
    budget: Budget
    environment: str = "default"
    owner: str
    cluster: str

    def register(self) -> Hydration:
        """Return the stream's hydration, made where it is missing."""
        found = self.ledger.register(
            environment=self.environment,
            source_identity=self.source.identity,
            sink_identity=self.sink.identity,
            owner=self.owner,
            cluster=self.cluster,
            credits=self.budget.credits,
            sink_server=server_of(self.sink.identity),
            connections=self.budget.sink_connections,
            hydration_id=self.stream,
        )
        if found.id != self.stream:
            raise LedgerRefused(
                f"{self.source.identity} into {self.sink.identity} is not where the log was planned for its tables: a "
                "connection leads to another address by now. Let the plan_snapshot task run again."
            )
        return found

    def begin(self, *, restarted_by: str = "") -> Plan:
        """Let the source keep a log from now on, also where it has kept one before, and return the stream's first plan.

        Every table of before lacks changes then, and is to be planned again. ``restarted_by``: the run that asks.
        """
        hydration = self.register()
        self._check_unleased(hydration)
        position = self.source.log(self.stream).begin()
        snapshot = self.source.snapshot(Consistency.CATCH_UP, counted=False)
        row = self.sink.held()
        draft = Plan(
            plan_id=uuid.uuid4().hex,
            epoch=0,
            source_identity=self.source.identity,
            sink_identity=self.sink.identity,
            consistency=Consistency.CATCH_UP,
            mode=Mode.UPSERT,
            frontier={},
            fingerprint="",
            total=0,
            total_exact=True,
            path=COPY,
            read=self.source.read_spec(snapshot),
            write=self.sink.fit((), mode=Mode.UPSERT, key=()),
            position=str(position),
            environment=self.environment,
            restarted_by=restarted_by or hydration.restarted_by,
            hydration_id=self.stream,
            held_by=row.plan_id if row else "",
            held_epoch=row.epoch if row else 0,
        )
        self.ledger.save_plan(self.stream, draft, ())
        return self._take_target(draft)

    def follow(self, members: Sequence[Member]) -> StreamPlanned:
        """Plan the windows that follow, for these tables, or continue with those that are open.

        ``members``: all tables that are to stay in the stream. One that is not among them, or is returned as left out,
        is written no more. ``LedgerRefused`` while one of them has ranges to be read: the windows would pass its
        position. ``LogLost`` and ``SnapshotLost`` where the log is lost for all tables: :meth:`begin` again.
        """
        hydration = self._reindex(self.register())
        plan = hydration.plan
        if plan is None:
            raise LedgerRefused(f"The log of {self.source.identity} is not kept yet: plan its tables first.")
        if not plan.epoch:
            plan = self._take_target(plan)
        self._check_members(members)
        counts = self.ledger.counts(plan.plan_id)
        if not counts.open:
            Completion(plan=plan, ledger=self.ledger, sink=self.sink).check()
            return self._plan(plan, stand(plan, self.sink.markers(plan.plan_id).values()), members)
        if not self._is_current(plan, members):
            return self._plan(plan, self._end(hydration, plan), members)
        _, left_out = self._select(plan, stand(plan, ()), members)
        note = f"{counts.committed} of {counts.total} windows are committed already"
        planned = Planned(verdict=Verdict.RESUMED, hydration=hydration, plan=plan, ranges=counts.total, note=note)
        return StreamPlanned(planned=planned, left_out=left_out)

    def fence(self, member: Member) -> Plan:
        """Return a table's plan with a new epoch: no attempt that was made before is let in any more.

        Before windows go in between its ranges. A range that was begun before them may not see what they bring, and
        one that is begun after them sees it all: each window has waited for that.
        """
        plan = member.plan
        tell_submitted(member.sink, self.ledger)
        epoch = member.sink.renew(plan.plan_id)
        if epoch is None:
            raise PlanSuperseded(f"Plan {plan.plan_id} no longer holds {plan.write.fence}.")
        plan = replace(plan, epoch=epoch)
        self.ledger.take_over(member.hydration.id, plan)
        return plan

    def find_left_out(self, members: Sequence[Member]) -> dict[str, BackpressureError]:
        """Return why tables lack changes, by the ids of their hydrations: each is to be planned again."""
        plan = self.find_plan()
        if plan is None:
            return {}
        inside, left_out = self._select(plan, stand(plan, ()), members)
        for member in inside:
            try:
                open_shared_log(member.source, self.stream).check(LogPosition.parse(member.plan.position or ""))
            except LogLost as error:
                left_out[member.hydration.id] = error
        return left_out

    def find_plan(self) -> Plan | None:
        """Return the stream's plan, also where only the sink knows it by now; ``None`` where there is none."""
        return self._reindex(self.register()).plan

    def check_kept(self) -> None:
        """Raise ``LogLost`` or ``SnapshotLost`` where the source does not keep the log any more."""
        log = self.source.log(self.stream)
        log.guard(replaying=True)
        plan = self.find_plan()
        if plan is not None and isinstance(log, ChecksPosition):
            log.check(stand(plan, ()).end)

    def find_stand(self) -> tuple[Plan, Stand]:
        """Return the stream's plan, and how far it brings its tables."""
        plan = self.ledger.hydration(self.stream).plan
        if plan is None:
            raise LedgerRefused(f"The log of {self.source.identity} is not kept yet: plan its tables first.")
        return plan, stand(plan, self.sink.markers(plan.plan_id).values())

    def _reindex(self, hydration: Hydration) -> Hydration:
        """Let a ledger that was lost, or is older than the sink, follow the sink."""
        reindexer = Reindexer(
            source=self.source, sink=self.sink, runner=self.runner, ledger=self.ledger, environment=self.environment
        )
        followed = reindexer.follow(hydration, who=self.owner)
        return hydration if followed is None else self.ledger.hydration(hydration.id)

    def _plan(self, plan: Plan, found: Stand, members: Sequence[Member]) -> StreamPlanned:
        log = self.source.log(self.stream)
        if plan.replays:
            log.release(found.end)
        candidates, left_out = self._select(plan, found, members)
        inside: list[Member] = []
        for member in candidates:
            try:
                read_at = [marker.read_at for marker in member.sink.markers(member.plan.plan_id).values()]
            except Terminal as error:
                # What a target says of itself, as that it was restored, is no reason for the others to wait.
                left_out[member.hydration.id] = error
                continue
            inside.append(member)
            found = replace(found, goal=goal(found.goal, read_at))
        hydrating = not found.reached or any(member.reading for member in inside)
        drafted = windows_from(found, plan, log, budget=self.budget, hydrating=hydrating)
        if drafted is None:
            return StreamPlanned(planned=None, left_out=left_out)
        draft, windows = drafted
        # Behind the end of the windows: what changes from here on is in none of them.
        tables: list[StreamTable] = []
        for member in inside:
            try:
                tables.append(self._table(plan, member))
            except Terminal as error:
                left_out[member.hydration.id] = error
        if not tables:
            # Nothing is written, so the log stays where it is until a table joins.
            return StreamPlanned(planned=None, left_out=left_out)
        row = self.sink.held()
        draft = replace(
            draft,
            builds_on=plan.plan_id,
            tables=tuple(tables),
            held_by=plan.plan_id if row else "",
            held_epoch=row.epoch if row else 0,
        )
        ranges = self.ledger.save_plan(self.stream, draft, number_windows(windows))
        plan = self._take_target(draft)
        planned = Planned(
            verdict=Verdict.PLANNED,
            hydration=self.ledger.hydration(self.stream),
            plan=plan,
            ranges=ranges,
            note=f"{ranges} windows of the log for {len(tables)} tables, {draft.total:,} {draft.unit} in all",
        )
        return StreamPlanned(planned=planned, left_out=left_out)

    def _check_members(self, members: Sequence[Member]) -> None:
        place = self.sink.fit((), mode=Mode.UPSERT, key=()).plan_table
        for member in members:
            plan = member.plan
            if plan.stream != self.stream:
                raise LedgerRefused(f"{plan.sink_identity} does not share the log of {self.source.identity}.")
            if plan.write.plan_table != place:
                raise SinkRefused(
                    f"The plan of {plan.write.fence} is in {plan.write.plan_table}, and those of the tables that share "
                    f"its log are in {place}: give all of them one system_schema."
                )
            left = self.ledger.counts(plan.plan_id).open
            if (left and not member.reading) or not plan.epoch:
                raise LedgerRefused(
                    f"{left} ranges of {plan.sink_identity} are not read yet, and windows of the log would pass the "
                    "position from which on its changes are shown: let its hydrate_ranges task run first."
                )

    def _select(
        self, plan: Plan, found: Stand, members: Sequence[Member]
    ) -> tuple[list[Member], dict[str, BackpressureError]]:
        """Return the tables of which the log lacks nothing, and an error for each other one."""
        before = {table.plan_id for table in plan.tables}
        inside: list[Member] = []
        left_out: dict[str, BackpressureError] = {}
        for member in members:
            position = LogPosition.parse(member.plan.position or "")
            if member.plan.plan_id in before or position.has_reached(found.end):
                inside.append(member)
            else:
                left_out[member.hydration.id] = LogLost(
                    f"The log that {member.plan.source_identity} shares was replayed without it up to "
                    f"{found.end.label}: it is to be read again."
                )
        return inside, left_out

    def _table(self, plan: Plan, member: Member) -> StreamTable:
        """Return how a window is replayed into a table; raise where the log does not show all its changes."""
        log, own = open_shared_log(member.source, self.stream), member.plan
        log.check(LogPosition.parse(own.position or ""))
        if member.sink.epoch(own.plan_id) != own.epoch:
            raise PlanSuperseded(f"Plan {own.plan_id} no longer holds {own.write.fence}.")
        member.sink.check_history()
        earlier = next((table.read for table in plan.tables if table.plan_id == own.plan_id), own.read)
        now = log.storage(earlier)
        if earlier.storage is not None and now is not None:
            check_kept(earlier.storage, now, [column.name for column in own.read.columns], plan_id=own.plan_id)
        read = replace(
            own.read,
            kind=own.read.kind.removesuffix(SUFFIX) + SUFFIX,
            tells_position=False,
            storage=None if now is None else now.mark_changed_since(earlier.storage),
            parts=(),
        )
        return StreamTable(
            plan_id=own.plan_id,
            epoch=own.epoch,
            query=log.query,
            read=read,
            write=replace(own.write, ordered=True),
            reading=member.reading,
            since=own.position or "",
        )

    def _is_current(self, plan: Plan, members: Sequence[Member]) -> bool:
        """Whether the open windows are for some of these tables, and no other plan has taken one of those since."""
        wanted = {(member.plan.plan_id, member.plan.epoch) for member in members}
        return all((table.plan_id, table.epoch) in wanted for table in plan.tables)

    def _end(self, hydration: Hydration, plan: Plan) -> Stand:
        """Keep every attempt of open windows out, and return how far they are in."""
        self._check_unleased(hydration)
        tell_submitted(self.sink, self.ledger)
        if self.sink.renew(plan.plan_id) is None:
            raise PlanSuperseded(f"Plan {plan.plan_id} no longer holds {plan.write.fence}.")
        markers = [marker for marker in self.sink.markers(plan.plan_id).values() if not marker.revoked]
        window = ReplayWindow.from_window(plan.read.window)
        assert window is not None, "the first plan has no range that could be open"
        return Stand(
            end=find_released_position(markers) or window.start,
            goal=goal(window.goal, [marker.read_at for marker in markers]),
        )

    def _check_unleased(self, hydration: Hydration) -> None:
        held = count_leased(self.ledger, hydration.id)
        if held:
            raise LedgerUnavailable(
                f"{held} windows of {self.source.identity} are in flight: ask again when they are over."
            )

    def _take_target(self, plan: Plan) -> Plan:
        """Return the plan with the epoch under which its windows are written; every older one is refused then."""
        self.sink.prepare(plan.write)
        plan = replace(plan, ranges=self.ledger.counts(plan.plan_id).total)
        tell_submitted(self.sink, self.ledger)
        plan = replace(plan, epoch=self.sink.begin(plan))
        self.ledger.take_over(self.stream, plan)
        return plan


def check_followed_by(stream: Plan, streamed: Stand, plan: Plan, own: Stand) -> None:
    """Raise ``LedgerRefused`` where a table is not yet as its source was at the end of a stream's plan.

    ``streamed``: how far the stream's plan is; ``own``: what the table's own plan says.
    """
    named = any(table.plan_id == plan.plan_id for table in stream.tables)
    joined = LogPosition.parse(plan.position or "").has_reached(streamed.end)
    if not named and not joined:
        raise LedgerRefused(f"The log is not replayed into {plan.write.fence} any more: plan it again.")
    ahead = [goal for goal in (own.goal, streamed.goal) if not streamed.end.has_reached(goal)]
    if ahead:
        raise LedgerRefused(
            f"The log was replayed into {plan.write.fence} up to {streamed.end.label}, and it is consistent from "
            f"{max(ahead).label} on: let its hydrate_ranges task run first."
        )


def check_member(member: Plan, sink: Sink, stream: tuple[Plan, Stand]) -> None:
    """Raise ``LedgerRefused`` where a table is not yet as its source was at the end of the log's windows.

    ``SinkRefused`` where a table that has commits of its own for them lacks one that it had.
    """
    plan, found = stream
    check_followed_by(plan, found, member, stand(member, sink.markers(member.plan_id).values()))
    if isinstance(sink, ReplaysApart) and not (at := sink.find_frontier(member)).has_reached(found.end):
        raise SinkRefused(
            f"{member.write.fence} has the log up to {at.label} only, and its windows up to {found.end.label} were "
            f"committed: it was restored; {RESTART}."
        )
