"""The planner: everything that is checked and written down before the first row moves."""

import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from airflow_provider_backpressure.core.config import Consistency, Log, Mode, NewColumn, Refresh
from airflow_provider_backpressure.core.gate.hydration_record import Hydration, Phase, RangeCounts
from airflow_provider_backpressure.core.planning.catch_up_windows import (
    find_compared_end,
    find_released_position,
    find_replaced_log,
    next_windows,
    open_log,
    stand,
    with_storage,
)
from airflow_provider_backpressure.core.planning.mirror_planning import (
    find_rewrite_key,
    list_ranges,
    renew_brake,
    with_brake,
    with_chain,
)
from airflow_provider_backpressure.core.planning.plan_result import Planned, Preview, Verdict
from airflow_provider_backpressure.core.planning.preconditions import (
    check_consistency,
    check_empty,
    check_followed,
    check_held,
    check_open_plan,
    check_same_database,
    check_same_key,
    check_same_table,
    describe_change,
    tell_submitted,
    warn_other_source,
)
from airflow_provider_backpressure.core.planning.previewer import Previewer
from airflow_provider_backpressure.core.planning.range_size import measure_plan, next_rows
from airflow_provider_backpressure.core.planning.topic_key_order import put_in_order
from airflow_provider_backpressure.core.ports import ChangeLog, ChecksPosition
from airflow_provider_backpressure.core.reconciliation.reindexer import Reindexer
from airflow_provider_backpressure.core.snapshot.plan import (
    Plan,
    Snapshot,
    check_increment,
    check_order,
    fingerprint,
    shorten,
    warn_coarse,
)
from airflow_provider_backpressure.core.snapshot.ranges import PlannedRange
from airflow_provider_backpressure.core.snapshot.replay_window import number_windows
from airflow_provider_backpressure.core.snapshot.schema_change import SchemaChange
from airflow_provider_backpressure.core.snapshot.spark_messages import keep_zone
from airflow_provider_backpressure.core.snapshot.table_alterations import check_added
from airflow_provider_backpressure.core.verification.completeness_check import Completion
from airflow_provider_backpressure.exceptions import BackpressureError, LedgerUnavailable, SnapshotLost


@dataclass(frozen=True, kw_only=True)
class Planner(Previewer):
    """Plans one hydration. All checks come first and change nothing; then sink, then ledger are written."""

    run: str = ""
    """Name of the run that plans: it gets one new plan, however often it asks, until that is complete."""
    refresh: Refresh = Refresh.ONCE
    allow_deletes: bool = False
    """Whether this run may delete any number of rows under ``mirror``."""
    has_same_rows: bool = False
    """Whether another database that took the source's place has all rows that were committed, as a person says."""
    stream: str = ""
    """Id of the hydration whose log new plans under ``catch_up`` share with other tables; empty: a log of their own."""
    choose: Callable[[Iterable[PlannedRange]], Iterable[PlannedRange]] = iter
    """What of the snapshot's ranges is planned: all, but for a probe's sample."""

    def plan(self, *, restart: bool = False, again: bool = False, hydration: Hydration | None = None) -> Planned:
        """Plan again, resume what is open, or find nothing to do. ``restart`` asks for a new plan, once in a run.

        A run that plans although its own plan is complete was cleared, or deleted and made again under its name, which
        Airflow does not say: both ask for the work once more. ``again``: what is committed lacks changes, so that it is
        read again. ``hydration``: what the caller has registered by this planner's declaration a moment ago, and read
        since nobody else may plan it.
        """
        hydration = hydration or self.register()
        planner, refreshes = self._with_overrides(hydration), self.refresh is Refresh.EACH_RUN
        asks = not (self.run and hydration.restarted_by == self.run) or self._is_complete(hydration)
        if restart and asks:
            return planner._begin(hydration, planner.preview(), restarted_by=self.run, from_scratch=True)
        followed = planner.reindex(hydration, who=self.owner)
        if followed is not None:
            hydration = followed.hydration
        old = hydration.plan
        if refreshes and asks and old is not None and planner._is_copied_again(old):
            return planner._begin(hydration, planner.preview(), restarted_by=self.run, from_scratch=True)
        if followed is not None:
            return followed
        # No windows of another log are replayed by this task.
        again = again or bool(old is not None and old.stream and old.stream != self.stream)
        if again and old is not None:
            return replace(planner, mode=old.mode, consistency=old.consistency).close(hydration, old)
        # What an earlier run left open is ended first: a source that is too large for one run would never arrive.
        if (plan := hydration.plan) is not None and not (refreshes and asks and self._is_complete(hydration)):
            check_consistency(planner.consistency, plan)
            is_complete = partial(self._is_complete, hydration)
            check_open_plan(plan, mode=self.mode, consistency=planner.consistency, is_complete=is_complete)
            planner = replace(planner, transform=keep_zone(planner.transform, plan.transform))
            return planner._go_on(hydration, planner._limit_deletes(hydration, plan))
        if plan is not None and self.on_new_column is NewColumn.ADD:
            planner._widen(plan, after=None)
        preview = planner.preview()
        if plan is not None:
            change = SchemaChange(before=plan.read.columns, now=preview.snapshot.columns)
            change.check_gone(self.source.identity, plan.plan_id)
        return planner._begin(hydration, preview, restarted_by=self.run if refreshes else "")

    def reindex(
        self,
        hydration: Hydration,
        *,
        who: str,
        accept: bool = False,
        within_plan: bool = False,
        counts: RangeCounts | None = None,
    ) -> Planned | None:
        """Let a ledger that was lost, or is older than the sink, follow the sink; ``None`` where they agree.

        ``within_plan``: only where both are at the same plan, as a lane that continues its own needs it. ``counts``: of
        the hydration's plan, where the caller has them.

        What was committed is not read again, and the source is not asked where all of it was. Raises ``LedgerRefused``
        where the sink is the older one and that is not accepted.
        """
        reindexer = Reindexer(
            source=self.source, sink=self.sink, runner=self.runner, ledger=self.ledger, environment=self.environment
        )
        found = reindexer.follow(hydration, who=who, accept=accept, within_plan=within_plan, counts=counts)
        if found is None:
            return None
        note = f"the ledger was rebuilt from the target: {found.committed} of {found.ranges} ranges are committed"
        if found.mixed:
            planner = replace(self, mode=found.plan.mode, consistency=found.plan.consistency)
            planned = planner.close(self.ledger.hydration(hydration.id), found.plan)
            return replace(
                planned, note=f"{note} in a snapshot that is gone, so the whole is read again; {planned.note}"
            )
        return Planned(
            verdict=Verdict.RESUMED,
            hydration=self.ledger.hydration(hydration.id),
            plan=found.plan,
            ranges=found.ranges,
            note=note,
        )

    def follow(self) -> bool:
        """Plan what follows the plan that was drained, in the same run; ``False`` where nothing does.

        Under ``catch_up`` windows of the log follow the ranges, until the target has caught up.
        """
        hydration = self.ledger.find(
            environment=self.environment, source_identity=self.source.identity, sink_identity=self.sink.identity
        )
        if hydration is None or (plan := hydration.plan) is None or plan.consistency is not Consistency.CATCH_UP:
            return False
        # The windows of a stream are planned for all of its tables.
        if plan.stream or self.ledger.counts(plan.plan_id).open:
            return False
        Completion(plan=plan, ledger=self.ledger, sink=self.sink).check()
        found, log = stand(plan, self.sink.markers(plan.plan_id).values()), self.source.log(hydration.id)
        if found.reached:
            if isinstance(log, ChecksPosition):
                # A server that was restored reaches the same position, and what has no number is not in it.
                log.check(found.end)
            return False
        return self._replay(hydration, plan) is not None

    def close(self, hydration: Hydration, plan: Plan) -> Planned:
        """Close a plan whose snapshot is gone, remove what it wrote as the mode demands, and plan again."""
        return self._begin(hydration, self.preview(), closes=plan)

    def _with_overrides(self, hydration: Hydration) -> "Planner":
        """Return the planner with the size of ranges that a person has set."""
        rows = hydration.range_rows_set
        return replace(self, budget=replace(self.budget, range_rows=rows)) if rows else self

    def _is_complete(self, hydration: Hydration) -> bool:
        """Whether all that was planned is committed and verified."""
        plan, hydrated = hydration.plan, hydration.phase is Phase.STEADY_STATE and hydration.verified
        return plan is not None and hydrated and not self.ledger.counts(plan.plan_id).open

    def _is_copied_again(self, plan: Plan) -> bool:
        """Whether a run copies all again where a plan is rebuilt: it is an earlier run's, and may not be verified.

        Under mirror ranges that did not change leave no marker, and look as if they were open.
        """
        return plan.is_rebuilt and (self.mode is Mode.MIRROR or not self.ledger.counts(plan.plan_id).open)

    def _begin(
        self,
        hydration: Hydration,
        preview: Preview,
        *,
        closes: Plan | None = None,
        restarted_by: str = "",
        from_scratch: bool = False,
        builds_on: str = "",
    ) -> Planned:
        """Plan again: first in the ledger, then in the sink, so that after a kill in between the plan can continue.

        ``from_scratch``: nothing of the plan before is relied on. ``builds_on``: as :class:`..plan.Plan` has it.
        """
        snapshot = preview.snapshot
        catches_up = snapshot.consistency is Consistency.CATCH_UP
        keeps_bad = preview.keeps_bad and self.transform is None
        draft = Plan(
            plan_id=uuid.uuid4().hex,
            epoch=0,
            source_identity=self.source.identity,
            sink_identity=self.sink.identity,
            consistency=snapshot.consistency,
            mode=self.mode,
            frontier=dict(snapshot.frontier),
            fingerprint=fingerprint(snapshot.columns),
            total=snapshot.total,
            total_exact=snapshot.total_exact,
            path=preview.path,
            read=replace(preview.read, keep_bad=keeps_bad, tells_position=catches_up),
            write=preview.write,
            transform=self.transform,
            clears=closes.plan_id if closes else find_replaced_log(hydration.plan, snapshot.consistency),
            position=snapshot.position,
            version=snapshot.version,
            versions=snapshot.versions,
            stream=self.stream if catches_up else "",
            environment=self.environment,
            restarted_by=restarted_by or hydration.restarted_by,
            builds_on=builds_on,
        )
        check_empty(draft, self.sink)
        warn_coarse(snapshot)
        position = self._keep_log(hydration, draft)
        draft = replace(
            self._with_holder(draft, closes),
            position=position,
            read=replace(draft.read, since=position or "" if catches_up else ""),
            hydration_id=hydration.id if catches_up else "",
        )
        draft, reason = find_rewrite_key(draft, snapshot, self.sink, budget=self.budget)
        rows = next_rows(self.budget, snapshot.row_bytes, measure_plan(self.ledger, hydration, self.runner))
        ranges_of = partial(self.source.ranges, snapshot)
        if self.mode is Mode.MIRROR:
            before = hydration.plan if self._is_complete(hydration) and not (closes or from_scratch) else None
            draft = self._with_mirror(draft, before, snapshot, closes=closes)
            draft = replace(draft, builds_on=before.plan_id if before is not None and draft.mirrored_since else "")
            ranges_of = partial(list_ranges, draft, before, snapshot, ledger=self.ledger, source=self.source)
        try:
            cut = self.choose(ranges_of(rows=rows, bytes=self.budget.range_bytes))
            if draft.write.ordered:
                cut = put_in_order(cut, snapshot)
            ranges = self.ledger.save_plan(hydration.id, draft, cut)
        except BackpressureError as error:
            # Where the ledger did not answer it may have the plan all the same.
            if catches_up and not isinstance(error, LedgerUnavailable):
                with suppress(BackpressureError):
                    open_log(self.source, hydration.id, draft).drop()
            raise
        plan = self.take_target(hydration, draft, ranges=ranges)
        return Planned(
            verdict=Verdict.PLANNED,
            hydration=replace(hydration, plan=plan),
            plan=plan,
            ranges=ranges,
            note=f"{ranges} ranges of at most {rows:,} rows by the {plan.path} path{reason}",
        )

    def _with_mirror(self, draft: Plan, before: Plan | None, snapshot: Snapshot, *, closes: Plan | None) -> Plan:
        target, allowed_by = self.sink.mirror(), self.run if self.allow_deletes else ""
        # A lane has no run of its own: it works for the one that has planned last.
        if closes is not None and closes.allowed_by and self.run in ("", closes.allowed_by):
            allowed_by = closes.allowed_by
        draft = replace(draft, allowed_by=allowed_by)
        if not allowed_by:
            draft = with_brake(draft, snapshot, target, self.budget, closes=closes)
        return with_chain(draft, before, self.sink.held(), target.files())

    def _limit_deletes(self, hydration: Hydration, plan: Plan) -> Plan:
        """Return an open plan with the limit of deletes that holds in this run: a permission is for one run."""
        if self.allow_deletes and plan.mode is Mode.MIRROR:
            limited = replace(plan, allowed_by=self.run, write=replace(plan.write, most_deleted=None))
        elif plan.allowed_by not in ("", self.run):
            limited = renew_brake(plan, self.sink.mirror(), self.budget)
        else:
            return plan
        self.ledger.take_over(hydration.id, limited)
        return limited

    def _with_holder(self, draft: Plan, closes: Plan | None = None) -> Plan:
        """Return the plan with the one that holds the target now: it takes the target from that one only.

        ``PlanSuperseded`` where that is not the one that is closed: another hydration has the target by now.
        """
        row = self.sink.held()
        if closes is not None and closes.epoch and row is not None:
            replace(closes, held_by=closes.plan_id).check_turn(row.plan_id)
        if draft.builds_on and row is not None:
            replace(draft, held_by=draft.builds_on).check_turn(row.plan_id)
        warn_other_source(draft, row)
        return replace(draft, held_by=row.plan_id if row else "", held_epoch=row.epoch if row else 0)

    def _keep_log(self, hydration: Hydration, draft: Plan) -> str | None:
        """Let the source keep its log before the first range is read; give up a log that is not replayed any more."""
        before, catches_up = hydration.plan, draft.consistency is Consistency.CATCH_UP
        position = str(open_log(self.source, hydration.id, draft).begin()) if catches_up else draft.position
        kept = before if before is not None and before.consistency is Consistency.CATCH_UP else None
        if kept is not None and not (catches_up and kept.stream == draft.stream):
            open_log(self.source, hydration.id, kept).drop()
        return position

    def take_target(self, hydration: Hydration, plan: Plan, *, ranges: int | None = None) -> Plan:
        """Return the plan with the epoch under which it holds the target; every older plan is refused from then on.

        For a plan that the ledger has and the sink does not know yet (its epoch is 0). ``ranges``: how many it has,
        of one that was made just now, which was checked against the target by then.
        """
        stored = plan
        if plan.increment:
            check_followed(plan, self.sink)
        self.sink.prepare(plan.write)
        if ranges is None:
            check_empty(plan, self.sink)
        files = plan.files or (self.sink.mirror().files() if plan.mode is Mode.MIRROR else "")
        number = self.ledger.counts(plan.plan_id).total if ranges is None else ranges
        plan = replace(plan, ranges=number, files=files)
        tell_submitted(self.sink, self.ledger)
        plan = replace(plan, epoch=self.sink.begin(plan, clear=plan.clears))
        # Until the fence was set, a late attempt of the earlier plan may have committed.
        check_empty(plan, self.sink)
        self.ledger.take_over(hydration.id, plan, before=stored)
        return plan

    def _go_on(self, hydration: Hydration, plan: Plan) -> Planned:
        if not plan.epoch:
            plan = self.take_target(hydration, plan)
        counts = self.ledger.counts(plan.plan_id)
        if plan.consistency is Consistency.CATCH_UP:
            try:
                return self._catch_up(hydration, plan, counts)
            except SnapshotLost as error:
                # Between two runs the log was given up, as is declared; from here on it would lack what changed since.
                anew = replace(self, mode=plan.mode, consistency=plan.consistency).close(hydration, plan)
                return replace(anew, note=f"{error} {anew.note}")
        complete = self._is_complete(hydration)
        if complete and self.source.increments:
            return self._increment(hydration, plan, counts.total)
        after = plan.version or (find_compared_end(plan) if counts.open else None)
        preview = self.preview(plan=plan, counted=complete, after=after)
        check_held(plan, self.sink)
        if plan.consistency is Consistency.STATIC:
            check_same_table(plan, preview.read)
        if not complete:
            plan = self._with_quarantine(hydration, plan, preview)
            verdict, note = Verdict.RESUMED, f"{counts.committed} of {counts.total} ranges are committed already"
            if plan.version and preview.snapshot.version != plan.version:
                note = f"{note}; the source has changed since they were planned"
        elif change := describe_change(plan, preview.snapshot, source=self.source, ledger=self.ledger):
            verdict, note = Verdict.MOVED, change
        else:
            same = (
                "the source holds the same rows" if preview.snapshot.version else "the number of rows has not changed"
            )
            verdict, note = Verdict.UNCHANGED, f"everything is committed and {same}"
        return Planned(verdict=verdict, hydration=hydration, plan=plan, ranges=counts.total, note=note)

    def _with_quarantine(self, hydration: Hydration, plan: Plan, preview: Preview) -> Plan:
        """Return an open plan with the quarantine that is declared now, as after a record that has stopped it."""
        write = replace(plan.write, quarantine=preview.write.quarantine, most_bad=preview.write.most_bad)
        if write.quarantine is None or write == plan.write:
            return plan
        self.sink.prepare(write)
        keeps_bad = preview.keeps_bad and plan.transform is None
        plan = replace(plan, write=write, read=replace(plan.read, keep_bad=keeps_bad))
        tell_submitted(self.sink, self.ledger)
        plan = replace(plan, epoch=self.sink.begin(plan))
        self.ledger.take_over(hydration.id, plan)
        return plan

    def _catch_up(self, hydration: Hydration, plan: Plan, counts: RangeCounts) -> Planned:
        """Continue with open ranges, or plan the windows that follow, or find that nothing was written since."""
        check_same_key(plan, self.preview(plan=plan, counted=False).write)
        check_held(plan, self.sink)
        if not counts.open:
            if plan.stream:
                self._check_not_grown(plan)
            if hydration.phase is Phase.STEADY_STATE:
                found = None if plan.stream else self._replay(hydration, plan)
                if found is not None:
                    return found
                note = "nothing was written to the source's log since it was replayed last"
                if plan.stream:
                    note = "its changes are replayed with those of the tables that share its log"
                return Planned(
                    verdict=Verdict.UNCHANGED, hydration=hydration, plan=plan, ranges=counts.total, note=note
                )
            if self.follow():
                hydration = self.ledger.hydration(hydration.id)
                plan = hydration.plan or plan
                counts = self.ledger.counts(plan.plan_id)
        note = f"{counts.committed} of {counts.total} ranges are committed already"
        return Planned(verdict=Verdict.RESUMED, hydration=hydration, plan=plan, ranges=counts.total, note=note)

    def _check_not_grown(self, plan: Plan) -> None:
        """Refuse a column that was added to a table that shares its log: windows would leave it out for ever."""
        if self.on_new_column is NewColumn.ADD:
            now = self.source.snapshot(plan.consistency, counted=False)
            change = SchemaChange(before=plan.read.columns, now=now.columns)
            change.check_shared(self.source.identity, plan.plan_id)

    def _replay(self, hydration: Hydration, plan: Plan) -> Planned | None:
        """Plan the windows that follow a plan whose ranges are all committed; ``None`` where there are none."""
        log, markers = self.source.log(hydration.id), self.sink.markers(plan.plan_id)
        if (upto := find_released_position(markers.values())) is not None:
            log.release(upto)
        hydrating = hydration.phase is not Phase.STEADY_STATE
        found = next_windows(plan, log, markers.values(), budget=self.budget, hydrating=hydrating)
        if found is None:
            return None
        draft, windows = found
        draft = replace(self._grown(plan, with_storage(plan, draft, log), log), builds_on=plan.plan_id)
        draft = self._with_holder(draft)
        ranges = self.ledger.save_plan(hydration.id, draft, number_windows(windows))
        return Planned(
            verdict=Verdict.PLANNED,
            hydration=self.ledger.hydration(hydration.id),
            plan=self.take_target(hydration, draft, ranges=ranges),
            ranges=ranges,
            note=f"{ranges} windows of the log, {draft.total:,} {draft.unit} in all",
        )

    def _grown(self, plan: Plan, draft: Plan, log: ChangeLog) -> Plan:
        """Return a plan of windows with the source's new columns, which the target is given first.

        By the source as it is once the windows' end is known: what comes later is in none of them.
        """
        if self.on_new_column is not NewColumn.ADD:
            return draft
        now = self.source.snapshot(plan.consistency, counted=False)
        change = SchemaChange(before=plan.read.columns, now=now.columns)
        change.check(self.source.identity, plan.plan_id, self.on_new_column)
        if not change.added:
            return draft
        change.check_logged(now, plan.plan_id)
        added = tuple(column.name for column in change.added)
        storage = draft.read.storage
        if storage is not None and (found := log.storage(plan.read)) is not None:
            check_added(plan.read.storage, found, added, plan_id=plan.plan_id)
            storage = storage.with_columns(column for column in found.columns if column.name in added)
        self.sink.widen(change.added)
        write = self.sink.fit(now.columns, mode=plan.mode, key=self.key or now.key, log=Log.CHANGES)
        return replace(
            draft,
            fingerprint=fingerprint(now.columns),
            read=replace(draft.read, columns=now.columns, added=added, storage=storage),
            write=replace(write, ordered=True),
        )

    def _increment(self, hydration: Hydration, plan: Plan, ranges: int) -> Planned:
        """Plan the rows after the committed window, or find that there are none."""
        check_increment(plan, self.source.increment_column)
        after = plan.read.window.upto if plan.read.window else None
        self._widen(plan, after=after)
        preview = self.preview(after=after)
        check_order(plan, preview.snapshot)
        if self.has_same_rows:
            plan = plan.move_to(preview.read)
            self.ledger.take_over(hydration.id, plan)
        check_same_database(plan, preview.read)
        check_same_table(plan, preview.read)
        check_same_key(plan, preview.write)
        check_held(plan, self.sink)
        window = preview.snapshot.window
        # Where rows are estimated there is a total even of an empty window.
        if window is None or window.upto == after or preview.snapshot.total == 0:
            note = f"nothing is new above {shorten(after)}" if after is not None else "the source is still empty"
            return Planned(verdict=Verdict.UNCHANGED, hydration=hydration, plan=plan, ranges=ranges, note=note)
        return self._begin(hydration, preview, builds_on=plan.plan_id)

    def _widen(self, plan: Plan, *, after: str | None) -> None:
        """Add the source's new columns since the plan to the target, as the policy allows; refuse other changes."""
        now = self.source.snapshot(self.consistency, after=after, counted=False)
        if fingerprint(now.columns) == plan.fingerprint:
            return
        change = SchemaChange(before=plan.read.columns, now=now.columns)
        change.check(self.source.identity, plan.plan_id, self.on_new_column)
        if change.added and self.transform is None:
            if plan.read.holds_deletes:
                # The target is to be equal to a table, whose rows have got the default without a change event.
                change.check_logged(now, plan.plan_id)
            self.sink.widen(change.added)
