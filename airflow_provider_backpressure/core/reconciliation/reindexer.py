"""Reindexing: a ledger that was lost, or is older than the sink, follows the sink again. Reads no row of the source."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_provider_backpressure.core.config import Consistency, Mode, NewColumn
from airflow_provider_backpressure.core.gate.hydration_record import Hydration, Phase, RangeCounts
from airflow_provider_backpressure.core.ports import Runner, Source
from airflow_provider_backpressure.core.ports.ledger import Ledger, count_leased, every_range, list_submitted
from airflow_provider_backpressure.core.ports.sink import FencesSlices, PlanRow, Sink
from airflow_provider_backpressure.core.reconciliation.last_writes import LastWrites
from airflow_provider_backpressure.core.reconciliation.ranges_from_markers import Rebuilt
from airflow_provider_backpressure.core.reconciliation.restore_detection import Comparison, Finding, Standing
from airflow_provider_backpressure.core.snapshot.plan import Plan, Snapshot, check_increment
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord, RangeState, slice_id
from airflow_provider_backpressure.core.snapshot.schema_change import keep_planned_columns
from airflow_provider_backpressure.exceptions import RESTART, LedgerRefused, LedgerUnavailable, PlanSuperseded

log = logging.getLogger(__name__)

OPEN = (RangeState.PLANNED, RangeState.ADMITTED, RangeState.FAILED)
"""States of a range that the ledger does not have as committed, and that may be so in the sink."""


@dataclass(frozen=True, kw_only=True)
class Followed:
    """What a ledger knows again."""

    plan: Plan
    ranges: int
    committed: int
    mixed: bool
    """Whether ranges are open whose snapshot is gone: they cannot be read beside those that are committed."""


@dataclass(frozen=True, kw_only=True)
class Reindexer:
    """Compares ledger and sink of one hydration, and lets the ledger follow."""

    source: Source
    sink: Sink
    runner: Runner
    ledger: Ledger
    environment: str

    def compare(self, hydration: Hydration) -> Finding:
        """Return how they compare; ask the sink two questions, and the source none."""
        return self._comparison(hydration)[0]

    def follow(
        self,
        hydration: Hydration,
        *,
        who: str,
        accept: bool = False,
        within_plan: bool = False,
        counts: RangeCounts | None = None,
    ) -> Followed | None:
        """Let the ledger follow the sink; ``None`` where they agree.

        ``accept``: also where the ledger knows more. ``within_plan``: only where both are at the same plan. ``counts``:
        of the hydration's plan, where the ledger was asked for them already.
        ``LedgerRefused`` where the ledger knows more and that is not accepted, and where the sink's plan row is of
        another hydration or does not hold the whole plan.
        """
        finding, row = self._comparison(hydration, counts)
        same_plan = row is not None and hydration.plan is not None and row.plan_id == hydration.plan.plan_id
        if finding.standing is Standing.AGREED or (within_plan and not same_plan):
            return None
        if finding.standing is Standing.SINK_BEHIND and not accept:
            raise LedgerRefused(finding.sentence)
        checked_row = self._check(row)
        plan = self._find_complete(hydration, checked_row) if finding.standing is Standing.LEDGER_BEHIND else None
        if plan is not None:
            # A new epoch would make the other ledger the older one in turn, and neither would plan what is new.
            log.info("%s. The ledger has all of it already.", finding.sentence)
            self.ledger.take_over(hydration.id, replace(plan, epoch=checked_row.epoch))
            return None
        self._check_log(hydration, checked_row)
        return self._rebuild(hydration, checked_row, who=who, why=finding.sentence)

    def _comparison(self, hydration: Hydration, counts: RangeCounts | None = None) -> tuple[Finding, PlanRow | None]:
        plan = hydration.plan
        if counts is None:
            counts = self.ledger.counts(plan.plan_id) if plan else RangeCounts()
        row, unsettled, unknown = self.sink.held(), 0, False
        mirrored = plan is not None and plan.mirrored_since and row is not None and row.plan_id == plan.plan_id
        confirmed = 0
        if plan is not None and mirrored:
            # Both of one list: a range that is confirmed meanwhile would make one number larger, and not the other.
            records = list(every_range(self.ledger, plan.plan_id, [RangeState.COMMITTED]))
            counts, confirmed = replace(counts, committed=len(records)), self._count_confirmed(plan, records)
        if plan is not None and row is not None and row.plan_id == plan.plan_id and counts.open:
            tried = self._list_tried(plan)
            if tried:
                # Asked for in this order: whatever is committed meanwhile makes the row's number larger, and no other
                # one. Where nothing is tried that is open, all that the row counts was committed in the ledger by then.
                unsettled = self._count_unsettled(plan, tried)
                row = self.sink.held()
            most = counts.committed - confirmed + unsettled
            unknown = row is not None and row.committed > most and self._unknown(plan)
        comparison = Comparison(
            target=self.sink.identity,
            plan=plan,
            counts=counts,
            row=row,
            unsettled=unsettled,
            confirmed=confirmed,
            finished=hydration.phase is Phase.STEADY_STATE,
            unknown=unknown,
            source_identity=self.source.identity,
            environment=self.environment,
        )
        return comparison.find(), row

    def _find_complete(self, hydration: Hydration, row: PlanRow) -> Plan | None:
        """Return the sink's plan where the ledger has all of it as verified, and nothing was written since.

        Another ledger has followed the sink by then, such as a copy of this one.
        """
        plan = hydration.plan
        if plan is None or plan.plan_id != row.plan_id or plan.mode is Mode.MIRROR:
            return None
        counts, hydrated = self.ledger.counts(plan.plan_id), hydration.phase is Phase.STEADY_STATE
        if not (hydrated and hydration.verified) or counts.open or counts.committed != row.committed:
            return None
        written = any(marker.epoch > plan.epoch for marker in self.sink.markers(plan.plan_id).values())
        return None if written else plan

    def _list_tried(self, plan: Plan) -> dict[str, RangeRecord]:
        """Return the ranges that were tried and are open in the ledger, by their slices."""
        return {record.slice_id: record for record in every_range(self.ledger, plan.plan_id, OPEN) if record.attempt}

    def _count_unsettled(self, plan: Plan, tried: Mapping[str, RangeRecord]) -> int:
        """Count those that are committed in the sink."""
        found = self.sink.markers(plan.plan_id, list(tried))
        return sum(not marker.revoked and marker.has_bounds(tried[each].bounds) for each, marker in found.items())

    def _count_confirmed(self, plan: Plan, committed: Sequence[RangeRecord]) -> int:
        """Count those of the ranges that the ledger has as committed because they did not change."""
        writes, markers = LastWrites(plan, self.sink), self.sink.markers(plan.plan_id)
        return sum(each.slice_id not in markers and writes.proves(each) is not None for each in committed)

    def _unknown(self, plan: Plan) -> bool:
        """Whether a marker is of no range in the ledger. It has each range before anything of it can be committed."""
        markers = self.sink.markers(plan.plan_id)
        for record in every_range(self.ledger, plan.plan_id):
            marker = markers.get(record.slice_id)
            if marker is not None and marker.has_bounds(record.bounds):
                del markers[record.slice_id]
        return bool(markers)

    def _check(self, row: PlanRow | None) -> PlanRow:
        if row is None:
            raise LedgerRefused(f"{self.sink.identity} holds no plan that could be followed: {RESTART}.")
        if row.source_identity != self.source.identity:
            raise LedgerRefused(f"{self.sink.identity} is held by a plan of {row.source_identity}: {RESTART}.")
        if row.plan is None:
            raise LedgerRefused(
                f"Plan {row.plan_id} was begun by a release that did not keep the whole plan in {self.sink.identity}, "
                f"so it cannot be rebuilt: {RESTART}."
            )
        return row

    def _check_log(self, hydration: Hydration, row: PlanRow) -> None:
        """Raise ``LedgerRefused`` where a log would have to be replayed on from a place that nobody knows any more."""
        plan = row.plan
        if plan is None or plan.consistency is not Consistency.CATCH_UP:
            return
        if hydration.plan is None and plan.hydration_id != hydration.id:
            raise LedgerRefused(
                f"{self.sink.identity} follows the log of {self.source.identity} under the id of a hydration that the "
                f"ledger has lost, so its place in the log is not known any more: {RESTART}."
            )

    def _rebuild(self, hydration: Hydration, row: PlanRow, *, who: str, why: str) -> Followed:
        assert row.plan is not None, "checked"
        held = count_leased(self.ledger, hydration.id)
        if held:
            # Before anything is fenced off: their lanes may be at work, and this comparison be of two moments.
            raise LedgerUnavailable(
                f"{held} ranges of {self.sink.identity} are in flight: ask again when they are over."
            )
        snapshot = None if self._rebuilt(hydration, row.plan).complete() else self._snapshot(row.plan)
        known = list(every_range(self.ledger, row.plan_id, None))
        for record in known:
            if record.state is RangeState.ADMITTED and record.session_id and record.tag:
                self.runner.interrupt(record.session_id, record.tag)
        if isinstance(self.sink, FencesSlices):
            planned = {slice_id(seq) for seq in range(row.plan.ranges or 0)} | {each.slice_id for each in known}
            slices = sorted(planned | self._rebuilt(hydration, row.plan).list_later())
            self.sink.tell_submitted(
                lambda plan_id: slices if plan_id == row.plan_id else list_submitted(self.ledger, plan_id)
            )
        # From here on no attempt of before can commit: what has a marker now is all that will have had one.
        epoch = self.sink.renew(row.plan_id)
        if epoch is None:
            raise PlanSuperseded(f"Another plan has just taken {self.sink.identity}: ask again.")
        # Ranges that did not change have no marker of the plan: they are staged, since nobody knows their bounds now.
        plan = replace(row.plan, epoch=epoch, sink_identity=self.sink.identity, mirrored_since=0, is_rebuilt=True)
        if snapshot is not None:
            # Connections may bear other names by now.
            plan = replace(plan, read=replace(plan.read, conn_id=self.source.read_spec(snapshot).conn_id))
        records = self._records(self._rebuilt(hydration, plan), known, snapshot)
        self.ledger.restore(hydration.id, plan, records, who=who, why=why)
        committed = sum(record.state is RangeState.COMMITTED for record in records)
        log.info("%s. The ledger follows: %s of %s ranges are committed.", why, committed, len(records))
        blocks = snapshot is not None and not snapshot.split
        mixed = plan.consistency is Consistency.SNAPSHOT and (
            blocks or committed < len(records) or not self._is_of_one_moment(plan)
        )
        return Followed(plan=plan, ranges=len(records), committed=committed, mixed=mixed)

    def _rebuilt(self, hydration: Hydration, plan: Plan) -> Rebuilt:
        return Rebuilt(hydration_id=hydration.id, plan=plan, markers=self.sink.markers(plan.plan_id))

    def _is_of_one_moment(self, plan: Plan) -> bool:
        """Whether all ranges that have a marker were read in one snapshot, or found to be the same in the last one."""
        if not plan.survives:
            return True
        epochs = {marker.epoch for marker in self.sink.markers(plan.plan_id).values() if not marker.revoked}
        return len(epochs) < 2 or self.sink.mirror(plan.write).find_confirmation(plan.plan_id) >= max(epochs)

    def _records(self, rebuilt: Rebuilt, known: list[RangeRecord], snapshot: Snapshot | None) -> list[RangeRecord]:
        records = rebuilt.known(known) if known else None
        if records is not None:
            return records
        if rebuilt.plan.replays:
            return rebuilt.windows(self.source.log(rebuilt.hydration_id))
        if snapshot is None or (not snapshot.split and rebuilt.plan.consistency is Consistency.SNAPSHOT):
            return rebuilt.list_committed()
        return rebuilt.rebuild_all(self.source, snapshot)

    def _snapshot(self, plan: Plan) -> Snapshot:
        """Return what there is to be cut, as the plan has it; ``SourceRefused`` where the columns are others by now."""
        rising = plan.increment and not plan.replays
        if rising:
            check_increment(plan, self.source.increment_column)
        after = plan.read.window.after if plan.read.window and rising else plan.version or None
        found = self.source.snapshot(None if rising else plan.consistency, after=after, counted=False)
        return replace(keep_planned_columns(found, plan, NewColumn.ADD), window=plan.read.window)
