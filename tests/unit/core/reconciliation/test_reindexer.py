"""A lost or older ledger follows the sink; an older sink is found, named and stopped."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_backpressure.core.admission.permits_and_reservations import Limiter
from airflow_provider_backpressure.core.config import Budget, Consistency, Mode
from airflow_provider_backpressure.core.execution.lane_runner import Hydrator
from airflow_provider_backpressure.core.execution.lane_submission import Outcome, spec_for
from airflow_provider_backpressure.core.gate.hydration_record import Phase, latency
from airflow_provider_backpressure.core.planning.plan_result import Planned, Verdict
from airflow_provider_backpressure.core.planning.planner import Planner
from airflow_provider_backpressure.core.planning.range_splitter import RangeSplitter
from airflow_provider_backpressure.core.progress.rates_and_eta import total_progress
from airflow_provider_backpressure.core.reconciliation.ranges_from_markers import BEYOND, Rebuilt, gaps
from airflow_provider_backpressure.core.snapshot.bounds import KeyBounds, NullBounds, OffsetBounds, cut
from airflow_provider_backpressure.core.snapshot.plan import Snapshot
from airflow_provider_backpressure.core.snapshot.ranges import RangeState
from airflow_provider_backpressure.core.snapshot.topic_offsets import LogWindow, find_missing, pack_pieces
from airflow_provider_backpressure.core.verification.completeness_check import Completion
from airflow_provider_backpressure.core.verification.verifier import Verifier, Verify
from airflow_provider_backpressure.exceptions import (
    LedgerRefused,
    LedgerUnavailable,
    PlanSuperseded,
    SinkRefused,
    SourceRefused,
)
from airflow_provider_backpressure.testing import MemoryLedger, MemoryRunner, MemorySink, MemorySource

ROWS = 100


@dataclass
class Counting(MemorySource):
    """A source that counts what it is asked."""

    asked: Counter[str] = field(default_factory=Counter)

    def snapshot(self, consistency: Consistency | None = None, **asked: Any) -> Snapshot:
        self.asked["snapshot"] += 1
        return super().snapshot(consistency, **asked)

    def read(self, query: str) -> list[int]:
        self.asked["read"] += 1
        found = super().read(query)
        self.asked["rows"] += len(found)
        return found


@dataclass
class Stage:
    """One hydration in memory whose ledger may be lost."""

    mode: Mode = Mode.APPEND
    consistency: Consistency = Consistency.STATIC
    increments: bool = False
    environment: str = "default"
    ledger: MemoryLedger = field(default_factory=MemoryLedger)

    def __post_init__(self) -> None:
        self.source = Counting(keys=range(ROWS), increments=self.increments)
        self.sink = MemorySink()
        self.runner = MemoryRunner(source=self.source, sink=self.sink)

    def planner(self, **changes: Any) -> Planner:
        values = {
            "source": self.source,
            "sink": self.sink,
            "runner": self.runner,
            "ledger": self.ledger,
            "budget": Budget(credits=2, range_rows=10),
            "mode": self.mode,
            "consistency": self.consistency,
            "environment": self.environment,
            "owner": "dag",
            "cluster": "spark",
        }
        return Planner(**{**values, **changes})

    def plan(self, **changes: Any) -> Planned:
        return self.planner(**changes).plan()

    @property
    def hydration(self) -> Any:
        (found,) = self.ledger.hydrations()
        return found

    def run(self, ranges: int | None = None) -> None:
        """Drain the plan, or so many ranges of it; the attempt at the next one breaks then."""
        hydration, done = self.hydration, 0

        def stop() -> None:
            nonlocal done
            done += 1
            if done == ranges:
                raise KeyboardInterrupt

        lane = Hydrator(
            hydration_id=hydration.id,
            plan=hydration.plan,
            lane="lane",
            ledger=self.ledger,
            source=self.source,
            sink=self.sink,
            runner=self.runner,
            limiter=Limiter(ledger=self.ledger, hydration_id=hydration.id, budget=Budget(), memory=self.runner.memory),
            budget=Budget(credits=2, range_rows=10),
            on_commit=stop,
        )
        try:
            assert lane.run().outcome is Outcome.DONE
        except KeyboardInterrupt:
            lane.cancel()

    def filled(self) -> "Stage":
        """Hydrate the whole."""
        self.plan()
        self.run()
        self.ledger.finish(self.hydration.id)
        self.source.asked.clear()
        return self

    def lose_ledger(self) -> None:
        self.ledger = MemoryLedger()

    def end(self) -> None:
        """Drain what is left and go to steady state."""
        self.run()
        assert self.ledger.finish(self.hydration.id).phase is Phase.STEADY_STATE
        assert sorted(self.sink.rows) == list(self.source.keys)


@pytest.mark.statement("T9")
def test_a_lost_ledger_is_rebuilt_without_asking_the_source():
    """T9: after the loss of the ledger its ranges, figures and epoch come back from the markers; no row is read."""
    stage = Stage().filled()
    before = stage.ledger.ranges(stage.hydration.plan.plan_id)
    epoch, plan_id = stage.hydration.plan.epoch, stage.hydration.plan.plan_id
    stage.lose_ledger()
    planned = stage.plan()
    assert (planned.verdict, planned.ranges, planned.plan.plan_id) == (Verdict.RESUMED, 10, plan_id)
    assert "10 of 10 ranges are committed" in planned.note
    assert planned.plan.epoch == epoch + 1 == stage.sink.last_epoch
    after = stage.ledger.ranges(plan_id)
    told = [(each.seq, each.bounds, each.state, each.rows, each.checksum) for each in after]
    assert told == [(each.seq, each.bounds, each.state, each.rows, each.checksum) for each in before]
    assert total_progress(stage.ledger.statistics(stage.hydration.id)).committed == ROWS
    stage.end()
    assert stage.source.asked == Counter()
    assert stage.plan().verdict is Verdict.UNCHANGED


@pytest.mark.statement("T8", "T9")
@pytest.mark.parametrize("done", [1, 3, 9])
def test_ranges_without_a_marker_are_planned_again(done: int):
    """T9: what is committed is not read again, the rest is, in pieces of the same size; T8: that is rehydration."""
    stage = Stage()
    stage.plan()
    stage.run(done)
    committed = len(stage.sink.rows)
    assert 0 < committed < ROWS
    stage.lose_ledger()
    stage.source.asked.clear()
    planned = stage.plan()
    assert planned.verdict is Verdict.RESUMED
    counts = stage.ledger.counts(planned.plan.plan_id)
    assert (counts.committed, counts.planned) == (committed // 10, 10 - committed // 10)
    assert stage.hydration.phase is Phase.REHYDRATION
    stage.source.asked.clear()
    stage.end()
    assert stage.source.asked["rows"] == ROWS - committed


def test_ranges_of_a_table_with_versions_are_planned_again_by_its_key(monkeypatch):
    """T9: they read the version that was planned, which the source still has after others have come."""
    found = MemorySource.snapshot
    version = "1"
    monkeypatch.setattr(MemorySource, "snapshot", lambda *args, **asked: replace(snapshot(*args), version=version))

    def snapshot(source, consistency=None):
        return found(source, consistency)

    stage = Stage()
    stage.plan()
    stage.run(3)
    assert stage.hydration.plan.version == "1"
    version = "2"
    stage.lose_ledger()
    planned = stage.plan()
    counts = stage.ledger.counts(planned.plan.plan_id)
    assert counts.committed >= 3
    assert counts.committed + counts.planned == 10
    stage.end()


def test_holes_are_found_between_committed_ranges_and_again_after_a_second_loss():
    """What is read again is cut again, under numbers that no attempt of before can bear; found by the key's order."""
    stage = Stage().filled()
    plan = stage.hydration.plan
    for seq in (0, 4, 5, 6, 9):
        record = stage.ledger.range(plan.plan_id, seq)
        stage.sink.discard(plan, record.slice_id, record.bounds)
    stage.lose_ledger()
    stage.plan()
    records = stage.ledger.ranges(plan.plan_id)
    planned = [each for each in records if each.state is RangeState.PLANNED]
    assert [each.seq for each in planned] == list(range(BEYOND, BEYOND + 5))
    assert [str(each.bounds) for each in planned] == [
        "id [, 10)",
        "id [40, 50)",
        "id [50, 60)",
        "id [60, 70)",
        "id [90, )",
    ]
    stage.run(2)
    stage.lose_ledger()
    stage.plan()
    stage.end()


@pytest.mark.parametrize("children", [(), (0,), (0, 1)])
def test_a_range_that_was_cut_is_read_where_its_parts_are_missing(children: tuple[int, ...]):
    """The revoked marker of the whole covers nothing; those of its parts do."""
    stage = Stage()
    planned = stage.plan()
    knife = RangeSplitter(plan=planned.plan, ledger=stage.ledger, source=stage.source, sink=stage.sink)
    record = stage.ledger.admit(planned.hydration.id, lane="lane", session_id="s", lease_seconds=60).range
    assert knife.cut(record, 2, tried=True)
    stage.run()
    for index in {0, 1} - set(children):
        part = stage.ledger.range(planned.plan.plan_id, 10 + index)
        stage.sink.discard(planned.plan, part.slice_id, part.bounds)
    stage.lose_ledger()
    stage.source.asked.clear()
    stage.plan()
    stage.end()
    assert stage.source.asked["rows"] >= 5 * (2 - len(children))
    if len(children) == 2:
        assert stage.source.asked == Counter()


def test_an_older_ledger_that_knows_nothing_of_a_cut_takes_nothing_for_settled():
    """It has the range as planned, and the sink refuses it: its parts are told by the markers, the rest is read."""
    stage = Stage()
    planned = stage.plan()
    backup = stage.ledger.ranges(planned.plan.plan_id)
    knife = RangeSplitter(plan=planned.plan, ledger=stage.ledger, source=stage.source, sink=stage.sink)
    record = stage.ledger.admit(planned.hydration.id, lane="lane", session_id="s", lease_seconds=60).range
    assert knife.cut(record, 2, tried=True)
    stage.run(4)
    stage.ledger = MemoryLedger()
    hydration = stage.planner().register()
    backup = [replace(each, hydration_id=hydration.id) for each in backup]
    stage.ledger.restore(hydration.id, planned.plan, backup, who="test", why="as a backup has it")
    stage.plan()
    stage.end()


def test_attempts_of_before_the_loss_are_refused():
    """An attempt that outlived the ledger comes too late: the epoch was raised before the markers were read."""
    stage = Stage()
    planned = stage.plan()
    stage.run(3)
    stage.runner.held = True
    stage.ledger.admit(planned.hydration.id, lane="zombie", session_id="s", lease_seconds=1000)
    zombie = replace(stage.runner.submitted[0], seq=9)
    piece = replace(zombie.slices[0], slice_id="9.0")
    stage.runner.held = False
    stage.lose_ledger()
    stage.plan()
    with pytest.raises(PlanSuperseded):
        stage.sink.commit(zombie, piece, [1, 2, 3])
    stage.end()


def test_nothing_is_fenced_off_while_a_lane_is_at_work():
    """What looked like an older ledger may be of two moments: its lanes go on, and nobody raises the epoch."""
    stage = Stage()
    planned = stage.plan()
    backup = stage.ledger.ranges(planned.plan.plan_id)
    stage.run(3)
    stage.ledger.restore(planned.hydration.id, planned.plan, backup, who="test", why="as a backup has it")
    stage.ledger.admit(planned.hydration.id, lane="lane", session_id="s", lease_seconds=60)
    epoch = stage.sink.held().epoch
    with pytest.raises(LedgerUnavailable, match=r"1 ranges of .* are in flight"):
        stage.plan()
    assert stage.sink.held().epoch == epoch


def test_a_plan_that_follows_makes_no_target_anew(monkeypatch):
    """Planner, lane and verification ask for the target's history; a plan that was not begun yet asks before it."""
    stage = Stage(increments=True).filled()
    stage.source.keys = range(ROWS + 50)
    monkeypatch.setattr(stage.sink, "prepare", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        stage.plan()
    assert not stage.hydration.plan.epoch
    monkeypatch.setattr(stage.sink, "check_history", Mock(side_effect=SinkRefused("it was dropped")))
    monkeypatch.setattr(stage.sink, "prepare", Mock(side_effect=AssertionError("made again")))
    with pytest.raises(SinkRefused, match="it was dropped"):
        stage.plan()


@pytest.mark.parametrize("increments", [False, True])
def test_no_plan_follows_on_a_target_that_was_set_back(monkeypatch, increments):
    """Marks and ledger agree, and the rows are gone; completion refuses it too."""
    stage = Stage(increments=increments).filled()
    plan = stage.hydration.plan
    monkeypatch.setattr(stage.sink, "check_history", Mock(side_effect=SinkRefused("it was set back")))
    with pytest.raises(SinkRefused, match="it was set back"):
        stage.plan()
    with pytest.raises(SinkRefused, match="it was set back"):
        Completion(plan=plan, ledger=stage.ledger, sink=stage.sink).check()
    verifier = Verifier(plan=plan, source=stage.source, sink=stage.sink, runner=stage.runner)
    with pytest.raises(SinkRefused, match="it was set back"):
        verifier.verify(stage.ledger.ranges(plan.plan_id), Verify.TARGET)


def test_an_older_ledger_of_an_earlier_plan_follows():
    """The ledger is at the first window, the sink at the second: it goes on behind the second."""
    stage = Stage(increments=True).filled()
    older = stage.ledger
    plan = stage.hydration.plan
    records = older.ranges(plan.plan_id)
    stage.source.keys = range(ROWS + 50)
    assert stage.plan().plan.increment
    stage.run()
    stage.ledger.finish(stage.hydration.id)
    second = stage.hydration.plan
    stage.ledger = MemoryLedger()
    hydration = stage.planner().register()
    records = [replace(each, hydration_id=hydration.id) for each in records]
    stage.ledger.restore(hydration.id, plan, records, who="test", why="as a backup has it")
    stage.ledger.finish(hydration.id)
    stage.source.keys = range(ROWS + 60)
    stage.source.asked.clear()
    planned = stage.plan()
    assert planned.plan.plan_id == second.plan_id
    assert stage.source.asked == Counter()
    stage.run()
    stage.ledger.finish(stage.hydration.id)
    assert stage.plan().verdict is Verdict.PLANNED
    stage.end()


def test_an_older_ledger_of_the_same_plan_follows_with_its_own_ranges():
    """Ranges that the sink has and the ledger does not are taken over; the others keep their bounds."""
    stage = Stage()
    planned = stage.plan()
    backup = stage.ledger.ranges(planned.plan.plan_id)
    stage.run(5)
    stage.ledger = MemoryLedger()
    hydration = stage.planner().register()
    backup = [replace(each, hydration_id=hydration.id) for each in backup]
    stage.ledger.restore(hydration.id, planned.plan, backup, who="test", why="as a backup has it")
    stage.source.asked.clear()
    found = stage.plan()
    assert (found.verdict, stage.ledger.counts(planned.plan.plan_id).committed >= 5) == (Verdict.RESUMED, True)
    assert [each.bounds for each in stage.ledger.ranges(planned.plan.plan_id)] == [each.bounds for each in backup]
    stage.end()
    (act,) = [each for each in stage.ledger.controls(hydration.id) if each.who == "dag"]
    assert (act.action, "the ledger was restored" in (act.why or "")) == ("reindex", True)


def older_sink(stage: Stage) -> MemorySink:
    """Return the sink as a backup from the middle has it."""
    return replace(
        stage.sink, rows=list(stage.sink.rows), _markers=dict(stage.sink._markers), plan=stage.sink.plan, beside={}
    )


@pytest.mark.parametrize("accept", [False, True])
def test_an_older_sink_is_named_and_stopped(accept: bool):
    """Its commits are below what the ledger has seen: nothing goes on by itself; accepted, the rest is read again."""
    stage = Stage()
    planned = stage.plan()
    stage.run(4)
    backup = older_sink(stage)
    there = len(backup.rows)
    stage.run()
    stage.ledger.finish(stage.hydration.id)
    stage.sink = stage.runner.sink = backup
    with pytest.raises(
        LedgerRefused, match=rf"has {there // 10} of the 10 ranges .* restored from an older .*--accept"
    ):
        stage.plan()
    if not accept:
        return
    found = stage.planner().reindex(stage.hydration, who="ada", accept=True)
    assert found is not None
    assert stage.ledger.counts(planned.plan.plan_id).committed == there // 10
    assert stage.hydration.phase is Phase.REHYDRATION
    stage.source.asked.clear()
    stage.end()
    assert stage.source.asked["rows"] == ROWS - there


def test_a_late_attempt_does_not_hide_that_the_sink_is_older():
    """It commits after the backup was put back: as many ranges are committed as before, and they are others."""
    stage = Stage()
    plan = stage.plan().plan
    backup = older_sink(stage)
    stage.run(1)
    permit = stage.ledger.admit(stage.hydration.id, lane="gone", session_id="s", lease_seconds=60)
    assert permit is not None
    spec = spec_for(plan, permit.range, stage.source)
    stage.sink = stage.runner.sink = backup
    stage.sink.commit(spec, spec.slices[0], stage.source.read(spec.slices[0].query))
    counts = stage.ledger.counts(plan.plan_id)
    assert len(stage.sink.markers(plan.plan_id)) == counts.committed == 1
    with pytest.raises(LedgerRefused, match=r"has 0 of the 1 ranges .* restored from an older"):
        stage.plan()
    stage.ledger.release(plan.plan_id, permit.range.seq, attempt=1, error="its lane ended")
    assert stage.planner().reindex(stage.hydration, who="ada", accept=True) is not None
    stage.end()


def test_a_late_attempt_alone_is_no_older_sink():
    """It has committed what the ledger holds for open, in flight or given back: the lane settles that by the marker."""
    stage = Stage()
    plan = stage.plan().plan
    stage.run(1)
    for seq in range(2):
        permit = stage.ledger.admit(stage.hydration.id, lane="gone", session_id="s", lease_seconds=60)
        assert permit is not None
        spec = spec_for(plan, permit.range, stage.source)
        if seq:
            stage.ledger.release(plan.plan_id, permit.range.seq, attempt=1, error="its lane ended")
        stage.sink.commit(spec, spec.slices[0], stage.source.read(spec.slices[0].query))
        assert stage.plan().verdict is Verdict.RESUMED


def test_a_sink_of_an_earlier_plan_is_named_and_can_be_accepted():
    """The ledger is at the second window, the sink at the first: accepted, the second is read again."""
    stage = Stage(increments=True).filled()
    backup = older_sink(stage)
    stage.source.keys = range(ROWS + 50)
    stage.plan()
    stage.run()
    stage.ledger.finish(stage.hydration.id)
    stage.sink = stage.runner.sink = backup
    with pytest.raises(LedgerRefused, match="the target was restored from an older backup"):
        stage.plan()
    assert stage.planner().reindex(stage.hydration, who="ada", accept=True) is not None
    stage.run()
    stage.ledger.finish(stage.hydration.id)
    assert stage.plan().plan.increment
    stage.end()


def test_an_emptied_sink_is_named():
    """There is nothing to take its word for."""
    stage = Stage().filled()
    stage.sink = stage.runner.sink = MemorySink()
    with pytest.raises(LedgerRefused, match="holds no plan any more: it was restored, emptied or created again"):
        stage.plan()
    with pytest.raises(LedgerRefused, match="holds no plan that could be followed"):
        stage.planner().reindex(stage.hydration, who="ada", accept=True)
    assert stage.planner().plan(restart=True).verdict is Verdict.PLANNED


@pytest.mark.parametrize("change", ["source", "environment", "release"])
def test_what_is_not_of_this_hydration_is_not_followed(change: str):
    """Another source, another environment, a row of an earlier release: then a plan is made again, or refused."""
    stage = Stage().filled()
    stage.lose_ledger()
    if change == "source":
        stage.source.identity = "memory://other"
    elif change == "environment":
        stage.environment = "staging"
    else:
        known = stage.sink.held
        stage.sink.held = lambda: replace(known(), plan=None)  # type: ignore[method-assign]
    with pytest.raises(Exception, match="already holds rows"):
        stage.plan()


def test_a_target_taken_by_another_source_is_named():
    """Two hydrations into one target: the first learns of it by name."""
    stage = Stage().filled()
    other = Stage()
    other.source.identity, other.sink, other.mode = "memory://other", stage.sink, Mode.REPLACE
    other.runner = MemoryRunner(source=other.source, sink=stage.sink)
    other.plan()
    with pytest.raises(LedgerRefused, match=r"was taken by plan .* of memory://other in environment default"):
        stage.plan()


def test_a_plan_in_a_snapshot_that_is_gone_is_closed():
    """Its ranges are not mixed with those of another moment: the whole is read again, and the log says why."""
    stage = Stage(consistency=Consistency.SNAPSHOT)
    first = stage.plan()
    stage.run(3)
    stage.lose_ledger()
    planned = stage.plan()
    assert planned.plan.plan_id != first.plan.plan_id
    assert "in a snapshot that is gone" in planned.note
    assert stage.hydration.phase is Phase.REHYDRATION
    stage.end()


def test_columns_that_have_changed_stop_it_before_anything_is_fenced():
    """A range that is read now would have other columns than those that are committed."""
    stage = Stage()
    stage.plan()
    stage.run(3)
    epoch = stage.sink.last_epoch
    stage.lose_ledger()
    stage.source.columns = (*stage.source.columns, replace(stage.source.columns[0], name="more"))
    with pytest.raises(SourceRefused, match="more, which may not be NULL, was added"):
        stage.plan()
    assert stage.sink.last_epoch == epoch


def test_nothing_is_taken_from_under_a_lane_that_lives():
    """A range in flight under a lease that runs: it can be asked again later."""
    stage = Stage()
    planned = stage.plan()
    stage.run(3)
    stage.ledger.admit(planned.hydration.id, lane="other", session_id="s", lease_seconds=1000)
    stage.sink.renew(planned.plan.plan_id)
    with pytest.raises(LedgerUnavailable, match=r"1 ranges .* are in flight"):
        stage.plan()


@pytest.mark.statement("T8")
def test_phases_and_their_times():
    """T8: hydration, steady_state, rehydration, steady_state; the time of the last is unknown until it ends."""
    stage = Stage().filled()
    hydration_id = stage.hydration.id
    stage.planner().plan(restart=False)
    stage.sink.rows.clear()
    stage.planner().plan(restart=True)
    assert latency(stage.ledger.spans(hydration_id), Phase.REHYDRATION) is None
    stage.end()
    spans = stage.ledger.spans(hydration_id)
    assert [span.phase for span in spans] == [
        Phase.HYDRATION,
        Phase.STEADY_STATE,
        Phase.REHYDRATION,
        Phase.STEADY_STATE,
    ]
    assert [span.seconds is None for span in spans] == [False, False, False, True]
    assert latency(spans, Phase.REHYDRATION) == spans[2].seconds


def key(start: int | None, end: int | None) -> KeyBounds:
    return KeyBounds.of_column(
        column="id", start=None if start is None else str(start), end=None if end is None else str(end)
    )


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.randoms())
def test_gaps_and_what_is_there_cover_the_key_once(there: list[bool], random: Any):
    """Whatever is missing, and in whatever order the others are found: they and the gaps make up the whole."""
    ends = [None, *range(9, 8 + len(there)), None]
    pieces = [key(ends[at], ends[at + 1]) for at in range(len(there))]
    committed = [piece for piece, is_there in zip(pieces, there, strict=True) if is_there]
    random.shuffle(committed)
    stage = Stage()
    found = gaps(stage.source, stage.plan().plan, ("id",), committed)
    borders = [(None if one.start is None else int(one.start[0]), one.end) for one in [*found, *committed]]
    borders.sort(key=lambda border: -1 if border[0] is None else border[0])
    assert borders[0][0] is None
    assert borders[-1][1] is None
    for (_, end), (start, _) in pairwise(borders):
        assert end == (str(start),)
    assert len(found) == sum(not now and then for now, then in pairwise([*there, True]))


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=4),
    st.integers(1, 7),
    st.data(),
)
def test_missing_offsets_and_committed_ones_cover_a_window_once(sizes: Sequence[int], most: int, data: Any):
    """Whatever is missing of a log: every offset is in one range."""
    window = LogWindow(
        topic="t", topic_id="i", start=dict.fromkeys(range(len(sizes)), 5), end={p: 5 + s for p, s in enumerate(sizes)}
    )
    ranges = list(pack_pieces(window.pieces(), offsets=most))
    kept = [each for each in ranges if data.draw(st.booleans())]
    anew = list(pack_pieces(find_missing(window, kept), offsets=most))
    offsets = Counter(
        (partition, at)
        for bounds in [*kept, *anew]
        for partition, start, end in bounds.pieces
        for at in range(start, end)
    )
    assert offsets == Counter((p, at) for p, start, end in window.pieces() for at in range(start, end))
    assert all(bounds.offsets <= most for bounds in anew)


def test_rows_without_a_key_are_a_range_again():
    """A split column that is not unique: what has NULL there is no part of any piece of the key."""
    stage = Stage().filled()
    plan = stage.hydration.plan
    markers = stage.sink.markers(plan.plan_id)
    some = {name: marker for name, marker in markers.items() if name != "9.0"}
    snapshot = replace(stage.source.snapshot(), unique=False)
    records = Rebuilt(hydration_id="h", plan=plan, markers=some).rebuild_all(stage.source, snapshot)
    assert [(each.seq, type(each.bounds)) for each in records[-2:]] == [(BEYOND, KeyBounds), (BEYOND + 1, NullBounds)]


@pytest.mark.parametrize(("boundaries", "marked"), [*product([[], [("50",)]], [False, True])])
def test_rows_without_a_key_are_listed_once(boundaries: list[tuple[str]], marked: bool) -> None:
    """Where no range of the key is committed, cutting it gives the rows without one too."""
    stage = Stage().filled()
    plan, nulls = stage.hydration.plan, NullBounds(column="id")
    some = stage.sink.markers(plan.plan_id)["9.0"]
    markers = {"9.0": replace(some, bounds=nulls.to_json())} if marked else {}

    def find_pieces(read: object, bounds: KeyBounds, *, parts: int) -> list[Any]:
        return [*cut(bounds, boundaries), nulls] if boundaries else [bounds]

    rebuilt = Rebuilt(hydration_id="h", plan=plan, markers=markers)
    source = Mock(cut=find_pieces, in_order=stage.source.in_order)
    snapshot = replace(stage.source.snapshot(), unique=False)
    if marked and not boundaries:
        with pytest.raises(LedgerRefused, match="only the rows without id are committed"):
            rebuilt.rebuild_all(source, snapshot)
        return
    found = [record.bounds for record in rebuilt.rebuild_all(source, snapshot)]
    assert found.count(nulls) == (1 if boundaries else 0), "one piece that is all of the key holds them"
    assert len(found) == (3 if boundaries else 1)


@pytest.mark.parametrize(
    ("now", "words"), [(("code",), "cut by id, .* by code now"), ((), "cut by id, .* by blocks now")]
)
def test_committed_ranges_of_another_key_are_not_completed(now: tuple[str, ...], words: str):
    """A key was added, dropped or named since: the end of a piece of one is no start of a piece of another."""
    stage = Stage().filled()
    plan = stage.hydration.plan
    markers = {name: each for name, each in stage.sink.markers(plan.plan_id).items() if name != "9.0"}
    snapshot = replace(stage.source.snapshot(), split=now)
    with pytest.raises(LedgerRefused, match=words):
        Rebuilt(hydration_id="h", plan=plan, markers=markers).rebuild_all(stage.source, snapshot)


def test_an_ordered_log_goes_on_behind_what_is_in():
    """Ranges that go in one after another keep their order, and the one before is committed."""
    stage = Stage().filled()
    window = LogWindow(topic="t", topic_id="i", start={0: 0}, end={0: 50})
    whole = list(pack_pieces(window.pieces(), offsets=10))
    plan = stage.hydration.plan
    plan = replace(
        plan, read=replace(plan.read, window=window.window(None)), write=replace(plan.write, ordered=True), ranges=5
    )
    (some,) = [marker for name, marker in stage.sink.markers(plan.plan_id).items() if name == "0.0"]
    marked = {"0.0": replace(some, bounds=replace(whole[0], ordered=True).to_json())}
    records = Rebuilt(hydration_id="h", plan=plan, markers=marked).rebuild_all(stage.source, stage.source.snapshot())
    assert [each.seq for each in records] == [0, *range(BEYOND, BEYOND + 4)]
    assert [each.bounds for each in records[1:]] == [
        OffsetBounds(pieces=each.pieces, ordered=True) for each in whole[1:]
    ]


def test_a_log_whose_keys_are_in_parts_goes_on_in_each_part_where_it_is() -> None:
    """X1, X7: parts are at different offsets, and what is missing of one is not what is missing of another."""
    stage = Stage().filled()
    window = LogWindow(topic="t", topic_id="i", start={0: 0, 1: 5}, end={0: 30, 1: 8}, parts=2)
    plan = stage.hydration.plan
    plan = replace(
        plan, read=replace(plan.read, window=window.window(None)), write=replace(plan.write, ordered=True), ranges=8
    )
    (some,) = [marker for name, marker in stage.sink.markers(plan.plan_id).items() if name == "0.0"]
    there = [OffsetBounds(pieces=((0, 0, 20),), ordered=True, part=(0, 2))]
    there.append(OffsetBounds(pieces=((0, 0, 10),), ordered=True, part=(1, 2)))
    markers = {f"{seq}.0": replace(some, slice_id=f"{seq}.0", bounds=each.to_json()) for seq, each in enumerate(there)}
    rebuilt = Rebuilt(hydration_id="h", plan=plan, markers=markers)
    assert not rebuilt.complete()
    records = rebuilt.rebuild_all(stage.source, stage.source.snapshot())
    assert [str(each.bounds) for each in records[2:]] == [
        "0 [20, 30), 1 [5, 8) of part 1 of 2",
        "0 [10, 30) of part 2 of 2",
        "1 [5, 8) of part 2 of 2",
    ]
    assert all(each.bounds.ordered for each in records)
    whole = {each.slice_id: replace(some, slice_id=each.slice_id, bounds=each.bounds.to_json()) for each in records}
    assert Rebuilt(hydration_id="h", plan=plan, markers=whole).complete()
    one_part = {name: each for name, each in whole.items() if each.bounds["part"] == [0, 2]}
    assert not Rebuilt(hydration_id="h", plan=plan, markers=one_part).complete()
