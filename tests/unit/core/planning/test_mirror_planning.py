"""Runs under ``mirror`` over the in-memory ports: which ranges are planned, compared, confirmed and refused."""

from dataclasses import dataclass, field, replace

import pytest

from airflow_provider_backpressure.core.admission.permits_and_reservations import Limiter
from airflow_provider_backpressure.core.config import Budget, Consistency, Mode, Refresh
from airflow_provider_backpressure.core.execution.lane_runner import Hydrator
from airflow_provider_backpressure.core.gate.hydration_record import RangeCounts
from airflow_provider_backpressure.core.planning.plan_result import Planned, Verdict
from airflow_provider_backpressure.core.planning.planner import Planner
from airflow_provider_backpressure.core.planning.range_repair import repair
from airflow_provider_backpressure.core.snapshot.bounds import KeyBounds
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.ranges import RangeState
from airflow_provider_backpressure.core.snapshot.spark_messages import Transform
from airflow_provider_backpressure.core.verification.completeness_check import Completion
from airflow_provider_backpressure.core.verification.verifier import Verifier, Verify
from airflow_provider_backpressure.exceptions import (
    InvalidDeclaration,
    RangeFailed,
    SinkRefused,
    SourceRefused,
    VerificationFailed,
)
from airflow_provider_backpressure.operators.plan import as_refresh
from airflow_provider_backpressure.testing import MemoryLedger, MemoryRunner, MemorySink, MemorySource


@dataclass(kw_only=True)
class Mirror:
    """Runs of one hydration."""

    source: MemorySource = field(default_factory=lambda: MemorySource(keys=list(range(100))))
    sink: MemorySink = field(default_factory=MemorySink)
    ledger: MemoryLedger = field(default_factory=MemoryLedger)
    budget: Budget = field(default_factory=lambda: Budget(range_rows=20))
    transform: Transform | None = None

    def __post_init__(self) -> None:
        self.runner = MemoryRunner(source=self.source, sink=self.sink)

    def planner(self, run: str, *, allow_deletes: bool = False) -> Planner:
        return Planner(
            source=self.source,
            sink=self.sink,
            runner=self.runner,
            ledger=self.ledger,
            budget=self.budget,
            mode=Mode.MIRROR,
            transform=self.transform,
            owner="dag",
            cluster="spark",
            run=run,
            refresh=Refresh.EACH_RUN,
            allow_deletes=allow_deletes,
        )

    def drain(self, planned: Planned, plan: Plan | None = None) -> None:
        Hydrator(
            hydration_id=planned.hydration.id,
            plan=plan or self.plan(planned),
            lane="lane",
            ledger=self.ledger,
            source=self.source,
            sink=self.sink,
            runner=self.runner,
            limiter=Limiter(
                ledger=self.ledger,
                hydration_id=planned.hydration.id,
                budget=self.budget,
                memory=self.runner.memory,
            ),
            budget=self.budget,
            share=2,
        ).run()

    def plan(self, planned: Planned) -> Plan:
        plan = self.ledger.hydration(planned.hydration.id).plan
        assert plan is not None
        return plan

    def finish(self, planned: Planned) -> None:
        plan = self.plan(planned)
        Completion(plan=plan, ledger=self.ledger, sink=self.sink).check()
        verifier = Verifier(plan=plan, source=self.source, sink=self.sink, runner=self.runner)
        assert verifier.verify(self.ledger.ranges(plan.plan_id), Verify.FULL).mismatches == ()
        self.ledger.finish(planned.hydration.id)

    def run(self, name: str, *, allow_deletes: bool = False) -> list[str]:
        """Let a run do everything, and return the slices that were written."""
        planned = self.planner(name, allow_deletes=allow_deletes).plan()
        self.drain(planned)
        self.finish(planned)
        assert sorted(self.sink.rows) == list(self.source.keys)
        return sorted(self.sink.markers(self.plan(planned).plan_id))


def test_ranges_that_did_not_change_are_confirmed_and_not_written() -> None:
    mirror = Mirror()
    assert len(mirror.run("first")) == 5
    assert mirror.run("second") == []
    mirror.source.keys = [key for key in range(100) if key != 50]
    assert mirror.run("third") == ["2.0"]
    assert mirror.run("fourth") == []
    assert list(mirror.sink.confirmed.values()) == [0, 100, 80, 99]


def test_what_changed_in_the_run_before_is_staged_without_being_hashed_first() -> None:
    """Not after the first run, in which every range is written whether it has changed or not."""
    mirror = Mirror()
    staged = []
    for number in range(4):
        mirror.source.keys = [key for key in range(100) if key != 10 * number]
        mirror.run(f"run {number}")
        specs = mirror.runner.submitted[-5:]
        staged.append([spec.last_write and spec.last_write.staged for spec in specs])
    assert staged == [
        [None] * 5,
        [False] * 5,
        [True] + [False] * 4,
        [True] + [False] * 4,
    ]


def test_every_range_is_staged_where_no_result_comes_back() -> None:
    """As from drivers in cluster mode: nothing would say that a range was found unchanged."""
    mirror = Mirror()
    mirror.runner.returns_results = False
    assert len(mirror.run("first")) == 5
    assert len(mirror.run("second")) == 5
    assert {spec.last_write for spec in mirror.runner.submitted} == {None}


def test_what_grew_is_split_and_the_outermost_ranges_stay_open() -> None:
    mirror = Mirror()
    mirror.run("first")
    mirror.source.keys = list(range(-40, 200))
    assert set(mirror.run("second")) == {"0.0", *(f"{seq}.0" for seq in range(5, 10))} | {"4.0"}
    mirror.run("third")
    (found,) = mirror.ledger.hydrations()
    assert found.plan is not None
    bounds = [record.bounds for record in mirror.ledger.ranges(found.plan.plan_id)]
    pieces = [each for each in bounds if isinstance(each, KeyBounds)]
    assert sum(each.start is None for each in pieces) == sum(each.end is None for each in pieces) == 1
    assert len(pieces) == 12


@pytest.mark.parametrize("how", ["files", "restart", "restart of an open plan", "another mode", "forgotten"])
def test_nothing_is_confirmed_where_the_chain_of_plans_is_broken(how: str) -> None:
    mirror = Mirror()
    mirror.run("first")
    if how == "files":
        mirror.sink.files = "others"
    elif how == "forgotten":
        mirror.ledger = MemoryLedger()
        mirror.sink.erase()
    elif how == "another mode":
        planner = replace(mirror.planner("between"), mode=Mode.REPLACE)
        planned = planner.plan()
        mirror.drain(planned)
        mirror.sink.publish(mirror.plan(planned))
        mirror.ledger.finish(planned.hydration.id)
    else:
        if how != "restart":
            mirror.planner("between").plan()
        planned = mirror.planner("restarted").plan(restart=True)
        mirror.drain(planned)
        mirror.finish(planned)
        assert len(mirror.sink.markers(mirror.plan(planned).plan_id)) == 5
        return
    assert len(mirror.run("second")) == 5


def test_a_range_in_quarantine_or_of_a_transform_is_staged_each_time() -> None:
    mirror = Mirror(transform=Transform(sql="SELECT * FROM source"))
    for name in ("first", "second"):
        planned = mirror.planner(name).plan()
        mirror.drain(planned)
        assert len(mirror.sink.markers(mirror.plan(planned).plan_id)) == 5
        mirror.ledger.finish(planned.hydration.id)


def test_a_lane_that_is_retried_continues_with_what_it_confirmed() -> None:
    """Neither the plan nor the lane takes confirmed ranges, which have no marker, for rows that the target lost."""
    mirror = Mirror()
    mirror.run("first")
    planned = mirror.planner("second").plan()
    mirror.runner.failures[3] = [RangeFailed("killed")] * 3
    with pytest.raises(RangeFailed):
        mirror.drain(planned)
    assert mirror.planner("second").reindex(planned.hydration, who="ada", within_plan=True) is None
    again = mirror.planner("second").plan()
    assert again.verdict is Verdict.RESUMED
    mirror.drain(again)
    mirror.finish(again)
    assert mirror.sink.markers(again.plan.plan_id) == {}


def test_a_range_that_is_confirmed_while_ledger_and_sink_are_compared_is_in_both_numbers_or_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mirror = Mirror()
    mirror.run("first")
    mirror.source.keys = [key for key in range(100) if key != 50]
    planned = mirror.planner("second").plan()
    mirror.runner.failures[3] = [RangeFailed("killed")] * 3
    with pytest.raises(RangeFailed):
        mirror.drain(planned)
    mirror.ledger.retry_failed(planned.plan.plan_id)
    counts = mirror.ledger.counts

    def count_then_confirm(plan_id: str) -> RangeCounts:
        found = counts(plan_id)
        monkeypatch.setattr(mirror.ledger, "counts", counts)
        mirror.drain(planned)
        return found

    monkeypatch.setattr(mirror.ledger, "counts", count_then_confirm)
    assert mirror.planner("second").reindex(planned.hydration, who="ada", within_plan=True) is None


def test_after_a_lost_ledger_every_range_is_staged() -> None:
    """The plan in the target may be of a run that is over: of its ranges those that did not change have no marker."""
    mirror = Mirror()
    mirror.run("first")
    mirror.source.keys = [key for key in range(100) if key != 50]
    mirror.run("second")
    mirror.source.keys = [key for key in range(100) if key not in (50, 51)]
    mirror.ledger = MemoryLedger()
    planned = mirror.planner("third").plan()
    assert planned.verdict is Verdict.PLANNED
    assert mirror.plan(planned).mirrored_since == 0
    mirror.drain(planned)
    mirror.finish(planned)
    assert sorted(mirror.sink.rows) == list(mirror.source.keys)
    assert len(mirror.sink.markers(planned.plan.plan_id)) == planned.ranges
    assert mirror.run("fourth") == []


def test_a_target_that_others_changed_is_found_by_verification_and_repaired() -> None:
    mirror = Mirror()
    mirror.run("first")
    mirror.sink.rows.remove(50)
    planned = mirror.planner("second").plan()
    mirror.drain(planned)
    plan = mirror.plan(planned)
    Completion(plan=plan, ledger=mirror.ledger, sink=mirror.sink).check()
    verifier = Verifier(plan=plan, source=mirror.source, sink=mirror.sink, runner=mirror.runner)
    (found,) = verifier.verify(mirror.ledger.ranges(plan.plan_id), Verify.TARGET).mismatches
    assert found.seq == 2
    repair(mirror.ledger, mirror.source, mirror.sink, plan, mirror.ledger.range(plan.plan_id, 2), who="ada")
    mirror.drain(planned, plan)
    mirror.finish(planned)
    assert sorted(mirror.sink.rows) == list(range(100))


def test_a_marker_that_the_target_lost_is_no_confirmation() -> None:
    mirror = Mirror()
    mirror.run("first")
    planned = mirror.planner("second").plan()
    mirror.drain(planned)
    mirror.sink._markers = {key: each for key, each in mirror.sink._markers.items() if key[1] != "1.0"}
    with pytest.raises(VerificationFailed, match="the target has no marker of range 1"):
        Completion(plan=mirror.plan(planned), ledger=mirror.ledger, sink=mirror.sink).check()


def test_a_source_that_is_empty_or_much_smaller_stops_the_plan_before_anything_is_written() -> None:
    mirror = Mirror()
    mirror.run("first")
    mirror.source.keys = list(range(70))
    with pytest.raises(
        SourceRefused, match=r"would delete at least 30, more than Budget\(max_deletes=0.2\) allows \(20"
    ):
        mirror.planner("second").plan()
    mirror.source.keys = []
    with pytest.raises(SourceRefused, match="is empty, and mirror would delete all 100 rows of rows: trigger the DAG"):
        mirror.planner("second").plan()
    assert len(mirror.sink.rows) == 100
    mirror.run("second", allow_deletes=True)
    mirror.source.keys = list(range(10))
    assert mirror.run("third") == ["0.0"]


def test_an_empty_source_is_mirrored_into_a_target_with_rows_of_before() -> None:
    mirror = Mirror(source=MemorySource(keys=[]), sink=MemorySink(rows=[1, 2]))
    assert mirror.run("first", allow_deletes=True) == ["0.0"]


def test_the_limit_of_deletes_is_in_the_plan_and_a_run_may_lift_it() -> None:
    mirror = Mirror()
    mirror.run("first")
    planned = mirror.planner("second").plan()
    assert planned.plan.write.most_deleted == 20
    lifted = mirror.planner("second", allow_deletes=True).plan()
    assert (lifted.plan.plan_id, mirror.plan(lifted).write.most_deleted) == (planned.plan.plan_id, None)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"split": ("code",)}, SourceRefused, "it is cut by code, which is no part of the key"),
        ({"split": ()}, SourceRefused, "it is not cut by a key"),
        ({"consistency": Consistency.OFFSETS}, SourceRefused, "its later runs read only what is new"),
    ],
)
def test_a_source_whose_ranges_are_no_ranges_of_the_key_is_refused(
    changes: dict[str, object], error: type[Exception], words: str
) -> None:
    mirror = Mirror()
    made = mirror.source.snapshot
    mirror.source.snapshot = lambda *args, **options: replace(made(*args, **options), **changes)  # type: ignore[method-assign]
    with pytest.raises(error, match=words):
        mirror.planner("first").plan()


def test_a_sink_that_cannot_exchange_a_range_is_refused() -> None:
    mirror = Mirror(sink=MemorySink(modes=(Mode.APPEND, Mode.UPSERT)))
    with pytest.raises(
        SinkRefused, match=r"does not exchange the rows of a range in one transaction\. Use PostgresSink"
    ):
        mirror.planner("first").plan()


def test_a_target_of_another_source_is_refused() -> None:
    mirror = Mirror()
    mirror.run("first")
    mirror.source.identity = "memory://other"
    with pytest.raises(SinkRefused, match=r"is held by plan .* of memory://source: mirror would delete its rows"):
        mirror.planner("second").plan()


def test_a_mirror_reads_again_in_each_run() -> None:
    assert as_refresh(None, continues=False, mode=Mode.MIRROR) is Refresh.EACH_RUN
    for refresh, continues in (("once", False), (None, True)):
        with pytest.raises(InvalidDeclaration, match="compares the whole table in each run"):
            as_refresh(refresh, continues=continues, mode=Mode.MIRROR)


def test_new_ranges_have_the_state_that_the_ledger_gives_them() -> None:
    mirror = Mirror()
    planned = mirror.planner("first").plan()
    assert {record.state for record in mirror.ledger.ranges(planned.plan.plan_id)} == {RangeState.PLANNED}


@pytest.mark.parametrize("share", [-0.1, 1.1, "much"])
def test_a_share_of_deletes_is_a_share(share: object) -> None:
    with pytest.raises(InvalidDeclaration, match="max_deletes must be a share from 0 to 1"):
        Budget(max_deletes=share)  # type: ignore[arg-type]
