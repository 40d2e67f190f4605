"""The log that tables of one task share: which tables these are, and the hydration that replays it into them."""

import json
import uuid
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from airflow_provider_backpressure import settings
from airflow_provider_backpressure.base_operator import failure_of, lane_name
from airflow_provider_backpressure.core.admission.gate_watcher import Watch
from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.gate.hydration_record import Hydration, Phase
from airflow_provider_backpressure.core.monitoring.source_observer import nobodys_error
from airflow_provider_backpressure.core.planning.catch_up_windows import Stand, open_shared_log, stand
from airflow_provider_backpressure.core.planning.shared_log_windows import (
    Member,
    StreamPlanned,
    StreamPlanner,
)
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.shared_log_table_errors import find_refused
from airflow_provider_backpressure.exceptions import (
    BackpressureError,
    InvalidDeclaration,
    LedgerUnavailable,
    SinkRefused,
    SnapshotLost,
    Terminal,
)
from airflow_provider_backpressure.hooks.hydration_session import Declaration, HydrationSession
from airflow_provider_backpressure.hooks.recorded_declaration import from_plain, open_recorded_source, to_json
from airflow_provider_backpressure.operators.moved_connections import (
    check_continues,
    check_own_rows,
    is_moved,
    move,
)
from airflow_provider_backpressure.operators.several_tables import PlannedTables, TablePair, TableSet
from airflow_provider_backpressure.triggers import AdmissionTrigger

MOST_ASKED = 20
"""Most targets that are asked whether they share a log, where the ledger knows none of them."""


@dataclass(frozen=True, kw_only=True)
class StreamSession(HydrationSession):
    """The hydration of a log that tables share, with its ports open."""

    stream: "TableStream"

    def stream_planner(self) -> StreamPlanner:
        """Return what plans its windows."""
        return StreamPlanner(
            stream=self.stream.id,
            source=self.source,
            sink=self.sink,
            runner=self.runner,
            ledger=self.ledger,
            budget=self.budget,
            environment=self.environment,
            owner=self.declaration.owner,
            cluster=self.declaration.spark_conn_id,
        )

    def take_target(self) -> None:
        """Plan the windows that come next, or continue with those that are open for these tables.

        Where ranges are left open windows are planned again: what a task that was killed has left of them is settled
        first.
        """
        if self.stream.reading:
            self.hydrator(lane=lane_name(self.stream.tables.context), inline_wait=0.0).recover()
        found = self.plan_windows()
        if found.planned is None and self.stream.left_out and self.stream.has_open_windows():
            # They are for none of the tables any more.
            raise next(iter(self.stream.left_out.values()))

    def plan_windows(self) -> StreamPlanned:
        """Plan the windows that come next; why tables are left out of them is kept."""
        with self.stream.open_members() as members:
            found = self.stream_planner().follow([*members.values()])
        pairs = {member.hydration.id: pair for pair, member in members.items()}
        self.stream.left_out.update({pairs[id_]: error for id_, error in found.left_out.items()})
        return found

    def follow(self) -> bool:
        """Plan the windows that follow, until every table is as its source was at one moment.

        Between ranges nothing follows: those are read next.
        """
        if self.stream.between:
            return False
        _, found = self.stream_planner().find_stand()
        return not found.reached and self.plan_windows().planned is not None

    def check_own_log(self, lost: SnapshotLost) -> None:
        """Raise ``lost``: all tables are to be read again with the log."""
        raise lost


@dataclass(kw_only=True)
class TableStream:
    """The tables of a task that share a log, and the hydration that replays it into all of them."""

    tables: TableSet
    id: str
    """Of the hydration."""
    pairs: Sequence[TablePair]
    """Tables that share the log, also those that have no plan yet."""
    left_out: dict[TablePair, BackpressureError] = field(default_factory=dict)
    """Why tables are in no window from here on."""
    parked: dict[TablePair, Exception] = field(default_factory=dict)
    """Why windows could not be replayed into tables, which are left out from here on."""
    reading: Mapping[TablePair, int] = field(default_factory=dict)
    """Tables with ranges left that windows are replayed into, with the epoch that :meth:`fence` has given each."""
    between: bool = False
    """Whether ranges are read behind the windows that are planned next."""
    again: dict[TablePair, str] = field(default_factory=dict)
    """Why tables are to be read again."""

    @property
    def declared(self) -> Declaration:
        """Return what it does, as a hydration."""
        declared = self.tables.declare(self.pairs[0])
        source: Any = declared.source
        sink: Any = declared.sink
        tables = [pair.table for pair in self.pairs]
        return replace(
            declared, source=source.declare_stream(self.id, tables), sink=sink.declare_stream(self.id), run=""
        )

    @contextmanager
    def open(self) -> Iterator[StreamSession]:
        """Open it."""
        with self.tables.shared.open(self.declared, partial(StreamSession, stream=self)) as opened:
            assert isinstance(opened, StreamSession), "made so"
            yield opened

    @contextmanager
    def open_members(self) -> Iterator[dict[TablePair, Member]]:
        """Open the tables that can be in a window: they are read as a whole, or have the epoch of :meth:`fence`.

        ``LedgerUnavailable`` where another task reads one, or its ranges were opened again: it would be left out.
        """
        with self._open_all(dict(self._find_ready())) as members:
            yield members

    def _find_ready(self) -> Iterator[tuple[TablePair, Hydration]]:
        counts = self.tables.shared.ledger.counts
        for pair, one in self.find_members().items():
            if one.plan is None or not one.plan.epoch or pair in self.parked:
                continue
            if counts(one.plan.plan_id).open:
                if pair in self.left_out:
                    continue
                if self.reading.get(pair) != one.plan.epoch:
                    raise LedgerUnavailable(f"Ranges of {pair.table} are read by another task, or were opened again.")
            yield pair, one

    def find_unread(self) -> dict[TablePair, Hydration]:
        """Return the members of which ranges are still to be read."""
        counts = self.tables.shared.ledger.counts
        members = self.find_members()
        return {pair: one for pair, one in members.items() if one.plan and counts(one.plan.plan_id).open}

    def fence(self, *, between: bool) -> dict[str, int]:
        """Refuse every attempt of before at the ranges that tables have left, so that windows may go in between them.

        ``between``: whether ranges are read behind the windows. Returns the epochs under which ranges are read from now
        on, by the ids of the hydrations. A table that is refused for good is left out. ``LedgerUnavailable`` where
        another run has the log by now.
        """
        self.reading, self.between = {}, between
        if (own := self.find_hydration()) is not None:
            self.tables.hold(own)
        known = self._find_open()
        if not known:
            return {}
        fenced: dict[TablePair, Plan] = {}
        with self.open() as stream:
            for pair, one in known.items():
                # One by one: each has a connection of its own.
                with self.leave_out_refused(pair):
                    if one.plan is not None and not one.plan.epoch:
                        # A task was killed between ledger and target.
                        with self.tables.open(pair) as opened:
                            opened.take_target()
                    taken = self.tables.shared.ledger.hydration(one.id)
                    with self._open_all({pair: taken}) as members:
                        fenced[pair] = stream.stream_planner().fence(members[pair])
        self.reading = {pair: plan.epoch for pair, plan in fenced.items()}
        return {known[pair].id: plan.epoch for pair, plan in fenced.items()}

    def _find_open(self) -> dict[TablePair, Hydration]:
        """Return the members that have ranges left, and can be in a window."""
        gone = {*self.left_out, *self.parked}
        return {pair: one for pair, one in self.find_unread().items() if pair not in gone}

    @contextmanager
    def leave_out_refused(self, pair: TablePair) -> Iterator[None]:
        """Leave a table out that is refused for good, and let the others continue."""
        try:
            yield
        except Terminal as error:
            self.left_out[pair] = error
            self.tables.task.log.error("%s is left out, and the others continue: %s", pair.table, error)

    def find_members(self) -> dict[TablePair, Hydration]:
        """Return the hydrations that have joined the log, as they are now."""
        known = self.tables.find(self.pairs)
        return {pair: one for pair, one in known.items() if one.plan is not None and one.plan.stream == self.id}

    def has_windows(self) -> bool:
        """Whether windows of the log were planned: some may be open."""
        found = self.find_hydration()
        return found is not None and found.plan is not None and found.plan.replays

    def find_replayed(self) -> str:
        """Return the position to which windows were replayed, or are planned; empty where there is none yet."""
        found = self.find_hydration()
        plan = found.plan if found is not None else None
        return str(stand(plan, ()).end) if plan is not None and plan.replays else ""

    def has_open_windows(self) -> bool:
        """Whether windows are planned that are not in: another lane may have one in flight."""
        found = self.find_hydration()
        plan = found.plan if found is not None else None
        return plan is not None and bool(self.tables.shared.ledger.counts(plan.plan_id).open)

    def find_hydration(self) -> Hydration | None:
        """Return the stream's own hydration, if the ledger has it."""
        return next((one for one in self.tables.hydrations() if one.id == self.id), None)

    def prepare(self, *, run: str = "", restart: bool = False) -> None:
        """Let the source keep the log, and find the tables that lack changes of it: they are to be read again.

        ``run``: the name of the run that plans, which asks for a log that begins again once, where ``restart`` is set.
        """
        self._check_schema()
        with self.open() as opened:
            planner = opened.stream_planner()
            self._follow_connections(opened, restart=restart)
            hydration = planner.register()
            self.tables.hold(hydration)
            if run:
                # By the planning task's name the log is found again.
                opened.ledger.keep_declaration(self.id, to_json(opened.declaration))
            members = self.find_members()
            # Looked at first: a target that was restored or emptied is no plan's any more, and this is the way out.
            begins = restart and (hydration.plan is None or hydration.plan.restarted_by != run)
            plan = None if begins else planner.find_plan()
            if plan is None or not (members or plan.replays):
                planner.begin(restarted_by=run if restart else "")
            else:
                try:
                    planner.check_kept()
                except SnapshotLost as error:
                    self.tables.task.log.warning("%s", error)
                    planner.begin()
            with self._open_all(members) as every:
                left_out = planner.find_left_out([*every.values()])
            self.again = {pair: str(left_out[one.id]) for pair, one in members.items() if one.id in left_out}

    def _follow_connections(self, opened: StreamSession, *, restart: bool) -> None:
        """Let the log and its tables move to where the connections lead by now. The log is the last."""
        own = self.find_hydration()
        if own is not None and is_moved(opened, own):
            if not restart:
                check_continues(opened, own)
            for pair, one in self.find_members().items():
                with self.tables.shared.open(self.tables.declare(pair)) as table:
                    if restart:
                        check_own_rows(table, one)
                    move(table, one)
            move(opened, own, restart=restart)

    def plan_next(self) -> bool:
        """Plan the windows that come next, unless tables are still to be read; whether anything is to be done."""
        members = self.find_members()
        counts = self.tables.shared.ledger.counts
        if any(one.plan is not None and counts(one.plan.plan_id).open for one in members.values()):
            return True
        if not members:
            return False
        with self.open() as opened:
            planned = opened.plan_windows().planned
            self._release_gone()
            stream = opened.ledger.hydration(self.id)
        unfinished = [one for one in (stream, *members.values()) if one.phase is not Phase.STEADY_STATE]
        return planned is not None or bool(unfinished)

    def find_stand(self) -> tuple[Plan, Stand]:
        """Return the plan of the windows, and how far it brings the tables; raise where windows are open."""
        with self.open() as opened:
            plan, found = opened.stream_planner().find_stand()
            opened.completion(plan).check()
            return plan, found

    def finish(self, plan: Plan, found: Stand, *, failed: Collection[TablePair]) -> None:
        """End the hydration of the log where all tables that it is replayed into are consistent.

        ``failed``: those that are not, as their verification says.
        """
        lacking, inside = {*failed, *self.find_unread()}, {table.plan_id for table in plan.tables}
        members = self.find_members()
        left = [pair for pair in lacking & members.keys() if (own := members[pair].plan) and own.plan_id in inside]
        if found.reached and not left:
            with self.open() as opened:
                opened.sink.complete(plan)
                opened.ledger.finish(self.id, plan_id=plan.plan_id)

    def let_go(self) -> None:
        """Let other runs have the log and its tables."""
        ledger, run = self.tables.shared.ledger, self.tables.context["ti"].run_id
        for id_ in (self.id, *(one.id for one in self.find_members().values())):
            ledger.let_go(id_, run=run)
        with self.open() as opened, nobodys_error("Earlier plans are not removed now"):
            hydration, plan = opened.hydration()
            opened.observation(hydration.id).observer.settle()
            opened.prune(hydration.id, plan)

    def park(self, error: Exception) -> bool:
        """Leave the table out that an error of a window is about; ``False`` where it is about all of them, or the last.

        It lacks changes from the plan on that is made without it: so it is found, and read again as a whole. Without
        another table no such plan is made: a later run continues with the windows.
        """
        hydration = self.find_hydration()
        plan = hydration.plan if hydration is not None else None
        table = find_refused(error, plan.tables) if plan is not None else None
        if plan is None or table is None or len(plan.tables) == 1:
            return False
        for pair, one in self.find_members().items():
            if one.plan is not None and one.plan.plan_id == table.plan_id and pair not in self.parked:
                self.parked[pair] = error
                self.tables.task.log.error("%s is left out, and the others continue: %s", pair.table, error)
                with nobodys_error("Why the table is left out is not kept"):
                    self.tables.shared.ledger.keep_failure(one.id, failure_of(error))
                return True
        return False

    def make_trigger(self, *, remind_after: float | None) -> AdmissionTrigger:
        """Return what waits at the gate of its windows."""
        tables = self.tables
        return tables.task.make_trigger(
            hydration_id=self.id,
            budget=tables.declared.budget.fit(tables.shared.runner.overhead_seconds),
            watch=Watch.GATE,
            source=self.declared.source,
            remind_after=remind_after,
        )

    def keep_failure(self, error: Exception | None) -> None:
        """Keep why the log cannot be replayed with its own hydration, or that it can be."""
        with nobodys_error("Why the log is not replayed is not kept"):
            self.tables.shared.ledger.keep_failure(self.id, None if error is None else failure_of(error))

    @contextmanager
    def _open_all(self, known: Mapping[TablePair, Hydration]) -> Iterator[dict[TablePair, Member]]:
        with ExitStack() as stack:
            members = {}
            for pair, hydration in known.items():
                opened = stack.enter_context(self.tables.shared.open(self.tables.declare(pair)))
                members[pair] = Member(
                    hydration=hydration, source=opened.source, sink=opened.sink, reading=pair in self.reading
                )
            yield members

    def _check_schema(self) -> None:
        """Raise ``SinkRefused`` where the plan tables of the targets are in several schemas."""
        sinks: list[Any] = [self.tables.declare(pair).sink for pair in self.pairs]
        schemas = {sink.find_system_schema() for sink in sinks}
        if len(schemas) > 1:
            raise SinkRefused(
                f"Tables that share a log have their plans in one schema, and these in {', '.join(sorted(schemas))}: "
                'give the sink a system_schema="..." of its own.'
            )

    def _release_gone(self) -> None:
        """Take tables out of the publication that the task does not have any more."""
        there = {one.id for one in self.find_members().values()}
        for hydration in self.tables.hydrations():
            if hydration.plan is None or hydration.plan.stream != self.id or hydration.id in there:
                continue
            words = f"{hydration.source_identity} stays in the publication"
            with nobodys_error(words), open_recorded_source(hydration) as source:
                open_shared_log(source, self.id).drop()
                self.tables.task.log.info("%s is followed no more.", hydration.source_identity)


def find_stream(
    tables: TableSet, every: Sequence[TablePair], known: Mapping[TablePair, Hydration], *, restart: bool
) -> TableStream | None:
    """Return the log that tables of a planning task share; ``None`` where each has a log of its own, or none.

    A table that was planned with a log of its own keeps it until it is read again as a whole (``restart``).
    """
    declared = tables.declared
    wanted = declared.consistency or declared.source.consistencies[0]
    if wanted != Consistency.CATCH_UP:
        return None
    if not (hasattr(declared.source, "declare_stream") and hasattr(declared.sink, "declare_stream")):
        return None
    pairs = [pair for pair in every if restart or not has_own_log(known.get(pair))]
    return TableStream(tables=tables, id=_choose_id(tables, pairs, known), pairs=pairs) if pairs else None


def as_stream(tables: TableSet, planned: PlannedTables) -> TableStream | None:
    """Return the log that planned tables share; ``None`` where none do."""
    return TableStream(tables=tables, id=planned.stream, pairs=planned.sharing) if planned.stream else None


def has_own_log(hydration: Hydration | None) -> bool:
    """Whether a hydration replays a log of its own."""
    plan = hydration.plan if hydration is not None else None
    return plan is not None and plan.consistency is Consistency.CATCH_UP and not plan.stream


def _choose_id(tables: TableSet, pairs: Sequence[TablePair], known: Mapping[TablePair, Hydration]) -> str:
    """Return the id of the stream that most of the tables have, or one that the task has begun, or a new one."""
    every = tables.hydrations()
    plans = [known[pair].plan for pair in pairs if pair in known]
    used = Counter(plan.stream for plan in plans if plan is not None and plan.stream)
    mine = {one.id for one in known.values()}
    others = {one.plan.stream for one in every if one.plan is not None and one.id not in mine}
    begun = [one.id for one in every if _is_begun_by(one, tables.declared)]
    for stream, _ in used.most_common():
        if stream in begun or stream not in others:
            return stream
    if begun:
        return begun[0]
    asked = None if known else _find_in_targets(tables, pairs)
    return asked or uuid.uuid4().hex


def _is_begun_by(hydration: Hydration, declared: Declaration) -> bool:
    """Whether this task has begun a hydration as the log of its tables."""
    if hydration.declaration is None:
        return False
    # What cannot be read by this version is not known to be this task's.
    with suppress(InvalidDeclaration):
        kept: Declaration = from_plain(json.loads(hydration.declaration))
        places = (declared.source.conn_id, declared.sink.conn_id)
        same = kept.task_id == declared.task_id and (kept.source.conn_id, kept.sink.conn_id) == places
        return same and hasattr(kept.source, "members")
    return False


def _find_in_targets(tables: TableSet, pairs: Sequence[TablePair]) -> str | None:
    """Return the stream that targets name: a ledger that was lost does not know it."""
    for pair in pairs[:MOST_ASKED]:
        with tables.shared.open(tables.declare(pair)) as opened, suppress(BackpressureError):
            row = opened.sink.held()
            plan = row.plan if row is not None else None
            ours = plan is not None and plan.source_identity == opened.source.identity
            if plan is not None and ours and plan.environment == settings.environment() and plan.stream:
                return plan.stream
    return None
