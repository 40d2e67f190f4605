"""What a ledger tells of each change of a gate: numbered without a gap, after the commit, and enough to follow it."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_backpressure.core.gate.cluster_queue import Change, Shared
from airflow_provider_backpressure.core.gate.credit_limits import GradedLimit
from airflow_provider_backpressure.core.gate.gate_event import Diff, decode, encode
from airflow_provider_backpressure.core.gate.hydration_record import GateState
from airflow_provider_backpressure.core.gate.signals import Decision
from airflow_provider_backpressure.core.push.hub import Switch, is_on, turn
from airflow_provider_backpressure.core.push.wait_queue import GateCopy
from airflow_provider_backpressure.core.snapshot.ranges import RangeState
from airflow_provider_backpressure.exceptions import LedgerRefused
from airflow_provider_backpressure.ledger.repository import SqlLedger
from airflow_provider_backpressure.testing import MemoryLedger
from tests.conformance.ledger.support import admit, commit, planned, register, replan, take

TOLD = ("phase", "credits", "slots", "in_flight", "commit_seconds", "range_memory_bytes", "paused_by", "paused_why")
"""Fields of the gate's state that diffs keep up."""


class Broken(GradedLimit):
    """Fails within the transaction of a commit."""

    def after(self, credits: int, pressure: float, maximum: int) -> int:
        return 1 // 0


class Follower:
    """Follows one ledger by what it tells, as another process does."""

    def __init__(self) -> None:
        self.diffs: list[Diff] = []
        self.copies: dict[str, GateCopy] = {}

    def publish(self, ledger, hydration_id: str, diff: Diff) -> None:
        # Committed: another connection sees it, and whoever tells has no lock left.
        assert ledger.gate(hydration_id).number >= diff.number
        diff = decode(encode(replace(diff, origin="there")))
        self.diffs.append(diff)
        if hydration_id in self.copies:
            assert self.copies[hydration_id].hear(diff)

    def follow(self, ledger, hydration_id: str) -> None:
        gate = self.copies[hydration_id] = GateCopy()
        gate.saw(ledger.gate(hydration_id), gate.mark())


@pytest.fixture
def follower() -> Follower:
    return Follower()


@pytest.fixture
def telling(subject, follower) -> Iterator[object]:
    """The ledger under test, which tells the follower."""
    if isinstance(subject.ledger, MemoryLedger):
        yield MemoryLedger(publish=follower.publish)
        return
    ledger = SqlLedger(subject.url, publish=follower.publish)
    yield ledger
    ledger.close()


def essence(state: GateState | None) -> dict:
    assert state is not None
    found = {name: getattr(state, name) for name in TOLD}
    found["commit_seconds"] = pytest.approx(state.commit_seconds) if state.commit_seconds else state.commit_seconds
    return found


@pytest.mark.statement("P3", "P6")
@pytest.mark.parametrize("seed", range(3))
def test_whoever_hears_every_diff_has_the_gate_as_it_is(telling, follower, seed):
    """P3, P6: after any sequence of steps a gate that only heard equals what is read."""
    dice = random.Random(seed)
    hydration_id, plan_id = planned(telling, 12, credits=3)
    follower.follow(telling, hydration_id)
    steps = [
        lambda: admit(telling, hydration_id),
        lambda: admit(telling, hydration_id, memory_bytes=5, session_id=""),
        lambda: any_of(RangeState.ADMITTED, lambda one: commit(telling, plan_id, one.seq, attempt=one.attempt)),
        lambda: any_of(
            RangeState.ADMITTED,
            lambda one: commit(
                telling,
                plan_id,
                one.seq,
                attempt=one.attempt,
                limit=GradedLimit(),
                pressure=dice.choice([0.1, 0.8, 1.5]),
                memory_bytes=dice.randint(1, 100),
            ),
        ),
        lambda: any_of(
            RangeState.ADMITTED,
            lambda one: telling.release(plan_id, one.seq, attempt=one.attempt, error="e", fail=dice.random() < 0.5),
        ),
        lambda: any_of(RangeState.PLANNED, lambda one: commit(telling, plan_id, one.seq)),
        lambda: any_of(RangeState.FAILED, lambda one: telling.skip(plan_id, one.seq, who="ada", why="w")),
        lambda: any_of(RangeState.COMMITTED, lambda one: telling.reopen(plan_id, one.seq, who="ada")),
        lambda: telling.retry_failed(plan_id),
        lambda: telling.pause(hydration_id, who="ada", why=dice.choice([None, 'a "reason" \\ ä'])),
        lambda: telling.resume(hydration_id, who="ada"),
        lambda: telling.resume(hydration_id, who="ada"),
        lambda: telling.steer(hydration_id, Change(credits=dice.randint(0, 5)), who="ada"),
        lambda: telling.resize(hydration_id, dice.randint(1, 3)),
        lambda: register(telling, credits=dice.randint(1, 4)),
        lambda: telling.renew(hydration_id, lane="lane", lease_seconds=60),
        lambda: telling.record_decision(hydration_id, Decision(open=True, pressure=0.0, signals=())),
    ]

    def any_of(state, act):
        found = telling.ranges(plan_id, states=[state])
        if found:
            act(dice.choice(found))

    for _ in range(60):
        dice.choice(steps)()
        assert essence(telling.gate(hydration_id)) == essence(follower.copies[hydration_id].state)
        assert follower.copies[hydration_id].number == telling.gate(hydration_id).number
    numbers = [diff.number for diff in follower.diffs]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) > 20


@pytest.mark.statement("P3")
def test_plans_and_phases_are_told(telling, follower):
    """P3: from the first plan to the end, and a range of an older plan that is found committed."""
    hydration_id = register(telling, credits=2)
    follower.follow(telling, hydration_id)
    first = replan(telling, hydration_id, 2)
    held = take(telling, hydration_id)
    second = replan(telling, hydration_id, 1)
    assert commit(telling, first, held.seq)
    assert essence(telling.gate(hydration_id)) == essence(follower.copies[hydration_id].state)
    assert commit(telling, second, take(telling, hydration_id).seq)
    telling.finish(hydration_id)
    assert essence(telling.gate(hydration_id)) == essence(follower.copies[hydration_id].state)
    telling.forget(hydration_id)


@pytest.mark.statement("P3")
def test_what_changes_nothing_is_not_told(telling, follower):
    """P3: a reservation that is taken up, a commit that is known, a release of another's attempt, and refusals."""
    hydration_id, plan_id = planned(telling, 3, credits=1)
    reserved = take(telling, hydration_id, session_id="", lane="mine")
    before = len(follower.diffs)
    take(telling, hydration_id, seq=reserved.seq, lane="mine")
    assert admit(telling, hydration_id) is None
    assert not telling.release(plan_id, reserved.seq, attempt=7, error="e")
    assert len(follower.diffs) == before
    assert commit(telling, plan_id, reserved.seq)
    assert not commit(telling, plan_id, reserved.seq)
    with pytest.raises(LedgerRefused):
        telling.finish(hydration_id)
    assert [diff.seq for diff in follower.diffs[before:]] == [reserved.seq]


@pytest.mark.statement("P9")
def test_what_was_undone_is_not_told(tmp_path: Path, follower):
    """P9: told after the commit, so nothing that failed is told."""
    from airflow_provider_backpressure.ledger.migration import migrate

    url = f"sqlite:///{tmp_path / 'undone.db'}"
    migrate(url)
    ledger = SqlLedger(url, publish=follower.publish)
    hydration_id, plan_id = planned(ledger, 1)
    told = len(follower.diffs)
    with pytest.raises(ZeroDivisionError):
        commit(ledger, plan_id, 0, limit=Broken())
    assert len(follower.diffs) == told
    assert ledger.gate(hydration_id).number == told
    ledger.close()


@pytest.mark.statement("P8")
def test_the_switches_are_in_the_ledger_and_leave_a_trace(subject):
    """P8: each alone, for every process, with who and why."""
    ledger, other = subject.ledger, subject.another()
    assert is_on(ledger, Switch.PUBLISH)
    assert is_on(ledger, Switch.SUBSCRIBE)
    turn(ledger, Switch.PUBLISH, on=False, who="ada", why="noise")
    assert not is_on(other, Switch.PUBLISH)
    assert is_on(other, Switch.SUBSCRIBE)
    turn(ledger, Switch.PUBLISH, on=True, who="ada")
    assert is_on(other, Switch.PUBLISH)
    act = other.controls()[-1]
    assert (act.who, act.why, act.values) == ("ada", "noise", {"kind": Shared.PUSH.value, "name": "publish", "most": 0})


@pytest.mark.statement("P10")
def test_what_processes_have_counted_is_kept(subject):
    """P10: the latest of each."""
    ledger = subject.ledger
    assert ledger.push_counts() == []
    for process, counts in (("a", '{"published": 1}'), ("b", '{"published": 5}'), ("a", '{"published": 2}')):
        ledger.keep_push(process, counts)
    assert sorted(subject.another().push_counts()) == ['{"published": 2}', '{"published": 5}']
