"""The lane's loop over the in-memory ports: admission, commit, retry, recovery, a closed gate."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

from airflow_provider_backpressure.core.config import Mode
from airflow_provider_backpressure.core.execution.lane_runner import Hydrator
from airflow_provider_backpressure.core.execution.lane_submission import Outcome
from airflow_provider_backpressure.core.gate.cluster_queue import Change
from airflow_provider_backpressure.core.gate.hydration_record import Permit, Phase, Refusal
from airflow_provider_backpressure.core.gate.signals import MemoryReading
from airflow_provider_backpressure.core.planning.plan_result import Verdict
from airflow_provider_backpressure.core.progress.bottleneck import Level, find_level
from airflow_provider_backpressure.core.progress.rates_and_eta import total_progress
from airflow_provider_backpressure.core.snapshot.ranges import RangeState
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, Transform
from airflow_provider_backpressure.core.stage_metrics import Stage, State
from airflow_provider_backpressure.core.verification.verifier import Verifier, Verify
from airflow_provider_backpressure.exceptions import (
    LedgerRefused,
    OutOfMemory,
    PlanSuperseded,
    RangeFailed,
    RunnerRefused,
    SinkRefused,
    SinkUnavailable,
    SourceRefused,
    SourceUnavailable,
    WorkerLost,
)
from airflow_provider_backpressure.testing import ManualClock, MemoryRunner
from tests.support.bench import Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()


def during_waits(lane: Hydrator, act: Callable[[], object]) -> None:
    """Call ``act`` each time the lane looks around while jobs are in flight."""
    renew = lane._renew
    lane._renew = lambda: (renew(), act())[0]


def test_everything_arrives_once_and_in_bounded_flight(bench):
    """Ten ranges, three credits: all rows once, statistics equal to the total, phase by the formula."""
    result = bench.lane().run()
    assert result.outcome is Outcome.DONE
    assert result.committed == 10
    assert sorted(bench.sink.rows) == list(range(100))
    progress = total_progress(bench.ledger.statistics(bench.id))
    assert (progress.committed, progress.total, progress.percent) == (100, 100, 100.0)
    assert bench.ledger.finish(bench.id).phase is Phase.STEADY_STATE


@pytest.mark.statement("T1", "T2")
def test_the_commit_opens_the_gate_the_submission_does_not(bench):
    """T1, T2: with a sink that commits nothing exactly W jobs are submitted; each commit admits exactly one more."""
    bench.runner.held = True
    lane, seen = bench.lane(), []

    def look() -> None:
        gate = bench.ledger.gate(bench.id)
        assert gate.in_flight <= 3
        seen.append((len(bench.runner.submitted), bench.ledger.counts(bench.plan_id).committed))
        if len(seen) > 5:
            bench.runner.complete(1)

    during_waits(lane, look)
    lane.run()
    assert seen[:6] == [(3, 0)] * 6
    assert all(submitted - committed <= 3 for submitted, committed in seen)
    assert len(bench.runner.submitted) == 10
    assert sorted(bench.sink.rows) == list(range(100))


@pytest.mark.statement("W4")
def test_a_lane_whose_time_is_over_settles_what_is_in_flight_and_pauses(bench):
    """W4: it begins one range at least; a later life continues."""
    first = bench.lane(until=0.0).run()
    assert (first.outcome, first.committed) == (Outcome.PAUSED, 1)
    assert bench.ledger.gate(bench.id).in_flight == 0
    assert bench.lane(until=10.0**9).run().outcome is Outcome.DONE
    assert sorted(bench.sink.rows) == list(range(100))


def test_a_range_that_has_failed_is_tried_again_before_a_lane_pauses(bench):
    """Each life counts attempts from the start: a range that always fails would never be given up."""
    bench.runner.failures[0] = [RangeFailed("poison")] * 3
    with pytest.raises(RangeFailed, match="Range 0 failed 3 times"):
        bench.lane(until=0.0).run()


def test_an_attempt_that_fails_is_retried_and_nothing_doubles(bench):
    """A transient failure is tried again under the next attempt number."""
    bench.runner.failures[4] = [RangeFailed("the executor was lost")]
    bench.lane().run()
    assert sorted(bench.sink.rows) == list(range(100))
    assert bench.ledger.range(bench.plan_id, 4).attempt == 2


def test_a_range_that_uses_up_its_attempts_stops_the_lane_and_a_retry_goes_on(bench):
    """The others in flight are settled first; the task's retry plans the failed one again."""
    bench.runner.failures[0] = [RangeFailed("poison")] * 3
    with pytest.raises(RangeFailed, match="Range 0 failed 3 times; the last time: poison"):
        bench.lane().run()
    assert bench.ledger.gate(bench.id).in_flight == 0
    assert bench.ledger.range(bench.plan_id, 0).state is RangeState.FAILED
    with pytest.raises(LedgerRefused):
        bench.ledger.finish(bench.id)
    bench.lane().run()
    assert sorted(bench.sink.rows) == list(range(100))


def test_a_range_that_takes_too_much_memory_is_cut_until_it_fits(bench):
    """Each half is a range of its own; nobody waits for the whole, whose late attempts the sink refuses."""
    bench.runner.failures[0] = [OutOfMemory("java.lang.OutOfMemoryError")]
    bench.runner.failures[10] = [OutOfMemory("java.lang.OutOfMemoryError")]
    bench.lane().run()
    assert sorted(bench.sink.rows) == list(range(100))
    revoked = bench.ledger.ranges(bench.plan_id, states=[RangeState.REVOKED])
    assert [(record.seq, record.error) for record in revoked] == [
        (0, "cut into the ranges 10 to 11"),
        (10, "cut into the ranges 12 to 13"),
    ]
    assert all(bench.sink.markers(bench.plan_id)[record.slice_id].revoked for record in revoked)
    assert bench.states() == {RangeState.REVOKED: 2, RangeState.COMMITTED: 12}


def test_a_range_whose_worker_is_lost_is_tried_again_and_then_cut(bench):
    """Once may be anybody's kill; the kernel, short of memory, would do it at every try."""
    bench.runner.failures[0] = [WorkerLost("the worker exited unexpectedly")]
    bench.runner.failures[1] = [WorkerLost("the worker exited unexpectedly")] * 2
    bench.lane().run()
    assert sorted(bench.sink.rows) == list(range(100))
    assert bench.ledger.range(bench.plan_id, 0).state is RangeState.COMMITTED
    assert bench.ledger.range(bench.plan_id, 0).attempt == 2
    assert [record.seq for record in bench.ledger.ranges(bench.plan_id, states=[RangeState.REVOKED])] == [1]


def test_a_cut_that_a_killed_lane_has_begun_is_done_by_the_next(bench):
    """The sink refuses the range and the ledger does not know: nobody could ever bring it under its number."""
    held = bench.ledger.admit(bench.id, lane="killed", session_id="s", lease_seconds=60, memory_bytes=0).range
    bench.ledger.release(bench.plan_id, 0, attempt=1, error="killed")
    assert bench.sink.revoke(bench.planned.plan, held.slice_id, held.bounds)
    bench.lane().run()
    assert sorted(bench.sink.rows) == list(range(100))
    assert bench.states() == {RangeState.REVOKED: 1, RangeState.COMMITTED: 11}


def test_a_range_stays_whole_where_the_source_does_not_answer_a_question_about_it(bench, monkeypatch):
    """Its credit is not lost by that."""

    def away(read, bounds, *, parts):
        raise SourceUnavailable("the source is away")

    monkeypatch.setattr(bench.source, "cut", away)
    bench.ledger.steer(bench.id, Change(range_rows=4), who="ada")
    bench.lane().run()
    assert bench.states() == {RangeState.COMMITTED: 10}


def test_a_range_that_cannot_be_cut_now_is_tried_again(bench, monkeypatch):
    """The sink is away when it is to refuse the range: the others in flight are settled all the same."""

    def away(plan, slice_id, bounds):
        raise SinkUnavailable("the sink is away")

    monkeypatch.setattr(bench.sink, "revoke", away)
    bench.runner.failures[0] = [OutOfMemory("java.lang.OutOfMemoryError")]
    bench.lane().run()
    assert sorted(bench.sink.rows) == list(range(100))
    assert bench.ledger.range(bench.plan_id, 0).attempt == 2


def test_one_row_that_takes_too_much_memory_fails_as_any_range_does():
    """There is nothing left to cut."""
    bench = Bench(rows=2, range_rows=1)
    bench.runner.failures[0] = [OutOfMemory("java.lang.OutOfMemoryError")] * 3
    with pytest.raises(RangeFailed, match="Range 0 failed 3 times"):
        bench.lane().run()


def test_a_person_s_smaller_ranges_are_cut_from_what_is_left(bench):
    """What is in flight stays as it is; every range that is admitted from then on holds what was asked for."""
    lane = bench.lane()
    lane.run_one(bench.ledger.admit(bench.id, lane="lane", session_id="s", lease_seconds=60, memory_bytes=0).range)
    bench.ledger.steer(bench.id, Change(range_rows=4), who="ada")
    bench.lane("next").run()
    assert sorted(bench.sink.rows) == list(range(100))
    sizes = [marker.rows for marker in bench.sink.markers(bench.plan_id).values() if not marker.revoked]
    assert sorted(sizes) == [2] * 9 + [4] * 18 + [10]


def test_a_terminal_error_is_not_tried_again(bench):
    """A superseded plan stops at once."""
    bench.runner.failures[0] = [PlanSuperseded("a newer plan holds the target")]
    with pytest.raises(PlanSuperseded):
        bench.lane().run()
    assert bench.ledger.range(bench.plan_id, 0).attempt == 1


def test_a_commit_whose_answer_was_lost_counts_by_the_sinks_marker(bench):
    """The job reports failure after its commit: the marker wins and the range is not read again."""
    carry_out = bench.runner._carry_out

    def lose_the_answer(spec, future):
        if spec.seq == 2 and spec.attempt == 1:
            for piece in spec.slices:
                bench.sink.commit(spec, piece, bench.source.read(piece.query))
            future.set_exception(RangeFailed("connection reset"))
        else:
            carry_out(spec, future)

    bench.runner._carry_out = lose_the_answer
    bench.lane().run()
    assert sorted(bench.sink.rows) == list(range(100))
    assert bench.ledger.range(bench.plan_id, 2).attempt == 1


@pytest.mark.parametrize("committed", [True, False], ids=["after the sink's commit", "before the sink's commit"])
def test_a_killed_lane_is_resumed_by_its_next_life(bench, committed):
    """X2 in small: what was in flight is ended by tag and settled by the markers, not blindly read again."""
    bench.runner.held = True
    lane = bench.lane()

    def die():
        raise SystemExit

    during_waits(lane, die)
    with pytest.raises(SystemExit):
        lane.run()
    in_flight = bench.ledger.ranges(bench.plan_id, states=[RangeState.ADMITTED])
    assert len(in_flight) == 3
    if committed:
        bench.runner.complete()
    bench.runner.held = False
    before = len(bench.runner.submitted)
    bench.lane().run()
    assert sorted(bench.sink.rows) == list(range(100))
    assert set(bench.runner.interrupted) == {record.tag for record in in_flight}
    assert {record.slice_id for record in in_flight} <= set(bench.sink.ended)
    assert len(bench.runner.submitted) - before == (7 if committed else 10)


def test_a_lane_that_fell_silent_is_reaped_by_another_once_its_lease_is_over(bench):
    """A credit is a lease: it comes back, but only after the attempt has been ended and the marker read."""
    permit = bench.ledger.admit(bench.id, lane="silent", session_id="gone", lease_seconds=0)
    assert isinstance(permit, Permit)
    bench.lane().run()
    assert sorted(bench.sink.rows) == list(range(100))
    assert permit.range.tag in bench.runner.interrupted


@pytest.mark.statement("P11")
def test_a_closed_gate_gives_the_lane_back_with_all_reasons(bench):
    """P11: with nothing in flight the lane waits inline for a bounded time and then stops, saying why."""
    bench.ledger.pause(bench.id, who="ada", why="maintenance")
    clock = ManualClock()
    result = bench.lane(clock=clock).run()
    assert result.outcome is Outcome.CLOSED
    assert result.decision is not None
    assert "paused by ada: maintenance" in result.decision.reasons
    assert clock.now == pytest.approx(30.0)
    assert bench.runner.submitted == []


@pytest.mark.statement("H1")
@pytest.mark.parametrize("paused", [False, True])
def test_a_lane_without_a_credit_leaves_the_turn_to_the_other_lanes(paused):
    """H1: between two ranges of theirs nothing is in flight. Where nobody may go on, the turn is others'."""
    bench = Bench(credits=1)
    other = bench.ledger.admit(bench.id, lane="other", session_id="s", lease_seconds=10**6).range
    if paused:
        bench.ledger.pause(bench.id, who="ada")
    lane = bench.lane()
    lane._record_flow = lambda: bench.ledger.release(other.plan_id, other.seq, attempt=1, error="again")
    assert lane.run().outcome is Outcome.CLOSED
    assert [entry.running for entry in bench.ledger.queue("spark")] == ([] if paused else [True])


def test_a_gate_that_opens_during_the_inline_wait_needs_no_deferral(bench):
    """A short pause costs no worker slot change."""
    bench.ledger.pause(bench.id, who="ada")
    clock = ManualClock()
    clock.on_sleep = lambda _: bench.ledger.resume(bench.id, who="ada") if clock.now > 5 else None
    assert bench.lane(clock=clock).run().outcome is Outcome.DONE


@pytest.mark.statement("T6")
def test_executor_memory_at_the_high_mark_admits_nothing(bench):
    """T6: the live reading is the second line; below the low mark the lane goes on."""
    bench.runner.reading = MemoryReading(used_bytes=81, limit_bytes=100, age_seconds=0)
    result = bench.lane().run()
    assert result.outcome is Outcome.CLOSED
    assert any("executor memory 81%" in reason for reason in result.decision.reasons)
    bench.runner.reading = MemoryReading(used_bytes=70, limit_bytes=100, age_seconds=0)
    assert bench.lane().run().outcome is Outcome.CLOSED
    bench.runner.reading = MemoryReading(used_bytes=59, limit_bytes=100, age_seconds=0)
    assert bench.lane().run().outcome is Outcome.DONE


def test_two_lanes_share_the_credits_and_double_nothing(bench):
    """What one lane holds the other does not get."""
    bench.runner.held = True
    first, second = bench.lane("first", share=2), bench.lane("second", share=2)
    first._admit()
    second._admit()
    assert len(bench.runner.submitted) == 3
    bench.runner.held = False
    bench.runner.complete()
    for lane in (first, second):
        lane._await_jobs()
        lane.run()
    assert sorted(bench.sink.rows) == list(range(100))


def test_a_sink_that_is_away_keeps_the_credit_out_until_it_can_say(bench):
    """Nobody guesses: without the marker's word the range stays in flight, and the next life resolves it."""
    lane = bench.lane()
    markers = bench.sink.markers
    bench.sink.markers = lambda *_: (_ for _ in ()).throw(SinkUnavailable("the sink does not answer"))
    with pytest.raises(SinkUnavailable):
        lane.run()
    assert bench.ledger.gate(bench.id).in_flight == 3
    bench.sink.markers = markers
    bench.lane().run()
    assert sorted(bench.sink.rows) == list(range(100))


def test_cancelling_gives_every_credit_back(bench):
    """Marked failed or cleared: jobs are ended by tag, credits return."""
    bench.runner.held = True
    lane = bench.lane()
    lane._admit()
    lane.cancel()
    assert bench.ledger.gate(bench.id).in_flight == 0
    assert len(bench.runner.interrupted) == 3
    assert bench.states() == {RangeState.PLANNED: 10}


def test_an_empty_source_is_hydrated_at_once():
    """No ranges, 100 %, steady state."""
    bench = Bench(rows=0)
    assert bench.planned.ranges == 0
    assert bench.lane().run().outcome is Outcome.DONE
    assert bench.ledger.finish(bench.id).phase is Phase.STEADY_STATE
    assert total_progress(bench.ledger.statistics(bench.id)).percent == 100.0


def test_a_second_run_resumes_or_finds_nothing_to_do(bench):
    """The plan of the first run goes on; once complete, the source is only compared."""
    assert bench.planned.verdict is Verdict.PLANNED
    assert bench.plan(restart=False).verdict is Verdict.RESUMED
    bench.lane().run()
    bench.ledger.finish(bench.id)
    assert bench.plan(restart=False).verdict is Verdict.UNCHANGED
    bench.source.keys = list(range(101))
    moved = bench.plan(restart=False)
    assert moved.verdict is Verdict.MOVED
    assert "101 rows" in moved.note


def test_a_restart_fences_the_old_plan(bench):
    """A late attempt of the old plan is refused by the sink itself."""
    old = bench.lane()
    bench.plan(restart=True)
    with pytest.raises(PlanSuperseded):
        old.run()
    assert bench.states() == {RangeState.PLANNED: 10}, "the old plan's lane spoils no range of the new one"
    assert bench.runner.submitted == []
    bench.lane().run()
    assert sorted(bench.sink.rows) == list(range(100))


def test_a_lane_whose_plan_is_replaced_settles_what_it_has_in_flight(bench):
    """Its credits are back before it stops, and the next range is the new plan's own lane's."""
    bench.runner.held = True
    old = bench.lane(share=1)
    old._admit()
    bench.plan(restart=True)
    bench.runner.complete()
    with pytest.raises(PlanSuperseded):
        old.run_one(bench.ledger.admit(bench.id, lane="lane", session_id="s", lease_seconds=60).range)
    assert bench.ledger.gate(bench.id).in_flight == 0
    assert bench.states() == {RangeState.PLANNED: 10}


@pytest.mark.statement("X5")
def test_what_cannot_work_is_refused_before_a_row_moves(bench):
    """X5: rows already there, a type that does not fit, a changed schema, missing drivers, a second owner."""
    bench.sink.rows.append(1)
    with pytest.raises(SinkRefused, match=r"already holds rows, .* use mode='replace'"):
        bench.plan(restart=True)
    bench.sink.rows.clear()
    with pytest.raises(LedgerRefused, match="dag"):
        bench.planner(owner="another_dag").plan()
    runner = replace(bench.runner, modules={"numpy": "2", "psycopg": None, "pyarrow": "15", "xxhash": None})
    with pytest.raises(RunnerRefused, match="psycopg, xxhash"):
        bench.planner(runner=runner).plan()
    bench.source.columns = (Column(name="id", type="text"),)
    with pytest.raises(SourceRefused, match="column id was bigint and is text"):
        bench.plan(restart=False)
    with pytest.raises(SinkRefused, match="takes bigint columns only"):
        bench.plan(restart=True)
    bench.source.columns = (Column(name="other", type="bigint"),)
    with pytest.raises(SourceRefused, match="column id is gone"):
        bench.plan(restart=False)
    assert bench.runner.submitted == []


def test_verification_names_the_range_that_differs(bench):
    """Count and checksum per range; a lost and a changed row are found where they are."""
    bench.lane().run()
    verifier = Verifier(plan=bench.planned.plan, source=bench.source, sink=bench.sink, runner=bench.runner)
    ranges = bench.ledger.ranges(bench.plan_id)
    report = verifier.verify(ranges, Verify.FULL)
    assert report.equal
    assert (report.rows, report.ranges) == (100, 10)
    bench.sink.rows.remove(15)
    bench.sink.rows[bench.sink.rows.index(42)] = 43
    report = verifier.verify(ranges, Verify.TARGET)
    assert [mismatch.seq for mismatch in report.mismatches] == [1, 4]
    assert "holds 9 rows, 10 were committed" in report.mismatches[0].sentence
    assert "checksum" in report.mismatches[1].sentence
    bench.source.keys = list(range(99))
    assert any("source holds 9 rows" in each.sentence for each in verifier.verify(ranges, Verify.FULL).mismatches)


def test_rows_that_an_upsert_leaves_are_named_where_the_target_is_compared_as_a_whole(bench):
    """A transform may have moved rows between ranges, so that none can be named."""
    bench.lane().run()
    plan = replace(bench.planned.plan, mode=Mode.UPSERT, transform=Transform(sql="SELECT id FROM source"))
    verifier = Verifier(plan=plan, source=bench.source, sink=bench.sink, runner=bench.runner)
    assert verifier.verify(bench.ledger.ranges(bench.plan_id), Verify.TARGET).equal
    bench.sink.rows.append(1000)
    (found,) = verifier.verify(bench.ledger.ranges(bench.plan_id), Verify.TARGET).mismatches
    assert found.sentence.startswith("the target holds 101 rows, 100 were committed; upsert leaves rows in the target")


def test_rows_that_upsert_leaves_are_told_apart_from_lost_ones(bench):
    """They were deleted from the source since; the sentence says how to be rid of them."""
    bench.lane().run()
    plan = replace(bench.planned.plan, mode=Mode.UPSERT)
    verifier = Verifier(plan=plan, source=bench.source, sink=bench.sink, runner=bench.runner)
    bench.sink.rows.append(42)
    bench.sink.rows.remove(15)
    surplus, lost = sorted(
        verifier.verify(bench.ledger.ranges(bench.plan_id), Verify.TARGET).mismatches, key=lambda each: -each.seq
    )
    assert "no longer in the source: delete them" in surplus.sentence
    assert "no longer" not in lost.sentence


@pytest.mark.parametrize(("overhead", "together"), [(0.15, 2), (15.0, 10)])
def test_a_runner_whose_jobs_cost_seconds_is_asked_for_many_checksums_at_once(bench, overhead, together):
    """So that it can do them by one job; another gets two at a time."""

    class Counting(MemoryRunner):
        def checksum(self, spec):
            future = super().checksum(spec)
            asked.append(spec)
            done = future.result
            future.result = lambda: (seen.append(len(asked)), done())[1]
            return future

    asked, seen = [], []
    bench.lane().run()
    runner = Counting(source=bench.source, sink=bench.sink, overhead_seconds=overhead)
    verifier = Verifier(plan=bench.planned.plan, source=bench.source, sink=bench.sink, runner=runner)
    assert verifier.verify(bench.ledger.ranges(bench.plan_id), Verify.TARGET).equal
    assert seen[0] == together


def test_a_replacement_is_seen_when_it_is_published_and_not_before(bench):
    """The old rows stay until the swap; a late swap of an older plan is refused, and a second one changes nothing."""
    bench.sink.rows[:] = [7, 7, 7]
    planner = bench.planner(mode=Mode.REPLACE)
    old = planner.plan(restart=True).plan
    bench.planned = planner.plan(restart=True)
    bench.plan_id = bench.planned.plan.plan_id
    bench.lane().run()
    assert bench.sink.rows == [7, 7, 7]
    verifier = Verifier(plan=bench.planned.plan, source=bench.source, sink=bench.sink, runner=bench.runner)
    for _ in range(2):
        assert verifier.verify(bench.ledger.ranges(bench.plan_id), Verify.FULL).equal
        bench.sink.complete(bench.planned.plan)
        bench.sink.publish(bench.planned.plan)
        assert sorted(bench.sink.rows) == list(range(100))
    with pytest.raises(PlanSuperseded):
        bench.sink.publish(old)


def test_a_refusal_is_a_value(bench):
    """Nothing left to admit is told apart from a closed gate."""
    limiter = bench.lane().limiter
    for _ in range(3):
        assert isinstance(limiter.acquire(lane="x", session_id="s"), Permit)
    refusal = limiter.acquire(lane="x", session_id="s")
    assert isinstance(refusal, Refusal)
    assert refusal.decision.reasons == ("3 of 3 credits in flight",)
    assert not refusal.exhausted


def waiting_at_the_gate(bench, lane):
    """Run a lane on a clock that moves at each look, with a commit at every third; return the time of its gate."""
    bench.runner.held = True
    looks = itertools.count(1)

    def look() -> None:
        lane.clock.now += 1.0
        if next(looks) % 3 == 0:
            bench.runner.complete(1)

    during_waits(lane, look)
    lane.run()
    return bench.ledger.flow(bench.id, seconds=10_000)[Stage.ADMIT]


@pytest.mark.statement("T5")
def test_a_source_with_little_to_give_is_idleness_and_no_pressure():
    """T5: everything that is there is in flight, so nothing waits at the gate."""
    slow = Bench(rows=20, credits=3)
    spent = waiting_at_the_gate(slow, slow.lane())
    assert (spent.share(State.BACKPRESSURED), spent.share(State.IDLE) > 0.9) == (0.0, True)


@pytest.mark.statement("F3", "F4")
def test_what_waits_for_a_credit_is_held_back():
    """F3, F4: until the last range is in flight the gate is held back, and then idle."""
    spent = waiting_at_the_gate(full := Bench(rows=100, credits=3), full.lane())
    assert spent.share(State.BACKPRESSURED) > 0.6
    assert find_level(spent) is Level.HIGH


def test_a_range_that_hangs_is_ended_at_its_deadline_and_tried_again(bench):
    """Its job and its connections are ended before the next attempt; a range that comes in time is left alone."""
    clock, bench.runner.held = ManualClock(), True
    lane = bench.lane(clock=clock, budget=replace(bench.budget, range_timeout=60.0), share=1)
    hanging, first = True, bench.ledger.range(bench.plan_id, 0)

    def act() -> None:
        nonlocal hanging
        clock.sleep(25)
        hanging = hanging and not bench.runner.interrupted
        if not hanging:
            bench.runner.complete()

    during_waits(lane, act)
    lane.run()
    assert sorted(bench.sink.rows) == list(range(100))
    attempts = [record.attempt for record in bench.ledger.ranges(bench.plan_id)]
    assert (first.seq, attempts) == (0, [2] + [1] * 9)
    assert bench.runner.interrupted == [bench.runner.submitted[0].tag]
    assert bench.sink.ended == [bench.runner.submitted[0].slices[0].slice_id]


def test_a_range_that_hangs_each_time_fails_with_its_deadline(bench):
    """The lane does not wait for it while it settles the others."""
    clock, bench.runner.held = ManualClock(), True
    lane = bench.lane(clock=clock, budget=replace(bench.budget, range_timeout=60.0))
    during_waits(lane, lambda: clock.sleep(25))
    words = r"Range \d failed 3 times; the last time: Range \d was not committed within Budget\(range_timeout=60\)\."
    with pytest.raises(RangeFailed, match=words):
        lane.run()
    assert bench.ledger.gate(bench.id).in_flight == 0


@pytest.mark.statement("L3")
def test_a_lane_with_nothing_left_to_submit_asks_once_a_second():
    """Each look is several statements to the ledger, for each of many tables whose only range is in flight."""
    bench = Bench(30, credits=10)
    bench.runner.held = True
    clock, asked = ManualClock(), []
    lane, began = bench.lane(clock=clock), clock.monotonic()
    acquire = lane.limiter.acquire

    def note(**given):
        asked.append(clock.monotonic())
        return acquire(**given)

    def look() -> None:
        clock.sleep(0.1)
        if clock.monotonic() - began > 5:
            bench.runner.held = False
            bench.runner.complete(3)

    lane.limiter.acquire = note
    during_waits(lane, look)
    lane.run()
    assert sorted(bench.sink.rows) == list(range(30))
    waited = [at for at in asked if 0.5 < at - began < 5]
    assert 3 <= len(waited) <= 6, waited
