"""The queue per Spark cluster: H1 to H8 at the ledger, where all who ask see one order."""

import itertools
import random
from dataclasses import replace
from datetime import timedelta

import pytest
import sqlalchemy as sa

from airflow_provider_backpressure.core.gate.cluster_queue import Change, Shared
from airflow_provider_backpressure.core.gate.credit_limits import FixedLimit
from airflow_provider_backpressure.core.snapshot.spark_messages import Window
from airflow_provider_backpressure.ledger import models
from airflow_provider_backpressure.ledger.database import normalize_url
from tests.conformance.ledger.support import admit, commit, cut, in_threads, make_plan, register, replan, take
from tests.support.waiting import until

CLUSTER = "spark_default"


def sources(ledger, number, *, cluster=CLUSTER, at_once=None):
    """Register so many hydrations on a cluster, each with a plan of two ranges."""
    if at_once is not None:
        ledger.share(Shared.HYDRATIONS, cluster, at_once, who="test")
    made = [register(ledger, source_identity=f"{cluster} {index}", cluster=cluster) for index in range(number)]
    for hydration_id in made:
        ledger.save_plan(hydration_id, make_plan(), cut(2))
    return made


def ask(ledger, hydration_id, **values):
    return ledger.enqueue(hydration_id, run="run", **values)


def tokens(ledger, cluster=CLUSTER):
    return [entry.hydration_id for entry in ledger.queue(cluster) if entry.running]


def complete(ledger, hydration_id):
    """Commit every range and end the hydration."""
    plan_id = ledger.hydration(hydration_id).plan.plan_id
    while (permit := admit(ledger, hydration_id)) is not None:
        commit(ledger, plan_id, permit.range.seq, limit=FixedLimit())
    return ledger.finish(hydration_id)


@pytest.mark.statement("H1", "H2")
def test_so_many_go_at_once_and_the_others_in_the_order_in_which_they_were_ready(ledger):
    """H1, H2: four unless somebody says otherwise, and first come, first served."""
    every = sources(ledger, 7)
    granted = [ask(ledger, one).granted for one in every]
    assert granted == [True] * 4 + [False] * 3
    assert [ledger.gate(one).place.position for one in every[4:]] == [1, 2, 3]
    assert admit(ledger, every[4]) is None
    complete(ledger, every[2])
    assert [ask(ledger, one).granted for one in (every[6], every[5], every[4])] == [False, False, True]
    assert len(tokens(ledger)) == 4


@pytest.mark.statement("H2")
def test_who_comes_later_is_behind_whatever_the_clock_says(on_tables):
    """H2: two may ask within a millisecond, the smallest step of SQLite's clock, or a clock is set back."""
    ledger = on_tables.ledger
    every = sources(ledger, 8, at_once=1)
    ask(ledger, every[0]), ask(ledger, every[1])
    engine = sa.create_engine(normalize_url(on_tables.url), poolclass=sa.NullPool)
    with engine.begin() as connection:
        soon = ledger.queue(CLUSTER)[0].ready_at + timedelta(hours=1)
        connection.execute(sa.update(models.queue).values(ready_at=soon))
    for one in every[2:]:
        ask(ledger, one)
    assert [entry.hydration_id for entry in ledger.queue(CLUSTER)] == every


@pytest.mark.statement("H2")
def test_a_higher_priority_goes_first(ledger):
    """H2: by priority, and within one by who was ready first."""
    every = sources(ledger, 4, at_once=1)
    for one in every:
        ask(ledger, one)
    ledger.steer(every[3], Change(priority=5), who="ada")
    ledger.steer(every[1], Change(priority=-1), who="ada")
    assert [entry.hydration_id for entry in ledger.queue(CLUSTER)] == [every[0], every[3], every[2], every[1]]
    complete(ledger, every[0])
    assert [ask(ledger, one).granted for one in (every[1], every[2], every[3])] == [False, False, True]


@pytest.mark.statement("H3")
def test_the_concurrency_is_changed_while_they_wait(ledger):
    """H3: raised by one, exactly one more goes; lowered, none is stopped and none begins."""
    every = sources(ledger, 4, at_once=1)
    assert [ask(ledger, one).granted for one in every] == [True, False, False, False]
    ledger.share(Shared.HYDRATIONS, CLUSTER, 2, who="ada")
    assert [ask(ledger, one).granted for one in reversed(every)] == [False, False, True, True]
    ledger.share(Shared.HYDRATIONS, CLUSTER, 1, who="ada")
    take(ledger, every[0]), take(ledger, every[1])
    assert sorted(tokens(ledger)) == sorted(every[:2])
    assert not ask(ledger, every[2]).granted


@pytest.mark.statement("H4")
def test_who_is_gone_uses_no_token(ledger):
    """H4: a place and a token end with their lease; a failed one gives back, a hydrated one needs none."""
    every = sources(ledger, 4, at_once=1)
    assert ask(ledger, every[0], lease_seconds=2.0).granted
    assert not ask(ledger, every[1], lease_seconds=2.0).granted
    # Both are gone: the one that asks next gets the token, though it came later.
    until(lambda: ask(ledger, every[2]).granted)
    assert tokens(ledger) == [every[2]]
    ledger.leave(every[2])
    assert tokens(ledger) == []
    assert ask(ledger, every[3]).granted, "the one that gave back holds nobody up"
    assert not ask(ledger, every[2]).granted
    ledger.leave(every[3])
    assert ask(ledger, every[2]).granted
    complete(ledger, every[2])
    assert ask(ledger, every[3]).granted
    assert ask(ledger, every[2]).granted, "hydrated already"
    assert tokens(ledger) == [every[3]]


@pytest.mark.statement("H2", "H4")
def test_who_gave_back_and_asks_again_comes_where_it_stood(ledger):
    """H2, H4: a lane that waits at a closed gate for something else does not lose its rank by that."""
    every = sources(ledger, 3, at_once=1)
    assert [ask(ledger, one).granted for one in every] == [True, False, False]
    ledger.leave(every[0])
    assert ask(ledger, every[1]).granted
    assert not ask(ledger, every[0]).granted
    ledger.leave(every[1])
    assert [ask(ledger, one).granted for one in reversed(every)] == [False, False, True]


@pytest.mark.statement("H4")
def test_a_token_is_not_given_back_while_ranges_are_in_flight(ledger):
    """H4: another lane of the same hydration may still be at work."""
    one, two = sources(ledger, 2, at_once=1)
    take(ledger, one)
    ledger.leave(one)
    assert not ask(ledger, two).granted
    ledger.release(ledger.hydration(one).plan.plan_id, 0, attempt=1, error="ended")
    ledger.leave(one)
    assert ask(ledger, one).granted


@pytest.mark.statement("H5")
def test_increments_and_what_is_hydrated_do_not_queue(ledger):
    """H5: the next window of a hydrated source goes at once, however long others take."""
    one, two = sources(ledger, 2, at_once=1)
    complete(ledger, one)
    ask(ledger, two)
    plan = make_plan()
    window = Window(column="id", after="10", upto="20")
    ledger.save_plan(one, replace(plan, read=replace(plan.read, window=window)), cut(1))
    assert ledger.hydration(one).plan.increment
    take(ledger, one)
    assert tokens(ledger) == [two]


@pytest.mark.statement("H5")
def test_a_range_that_is_read_again_does_not_queue(ledger):
    """H5: of a hydrated source, while another hydrates for as long as it takes, and a third one waits for it."""
    one, two, three = sources(ledger, 3, at_once=1)
    complete(ledger, one)
    assert ask(ledger, two).granted
    held = take(ledger, two)
    assert not ask(ledger, three).granted
    opened_again(ledger, one)
    assert ledger.gate(one).place.granted
    again = take(ledger, one)
    assert (again.seq, again.attempt) == (0, 2)
    assert commit(ledger, again.plan_id, again.seq, attempt=again.attempt)
    assert tokens(ledger) == [two]
    assert not ask(ledger, three).granted
    assert commit(ledger, held.plan_id, held.seq)


@pytest.mark.statement("H7")
def test_clusters_do_not_wait_for_each_other(ledger):
    """H7: each has tokens of its own."""
    here, there = sources(ledger, 2, at_once=1), sources(ledger, 2, cluster="other", at_once=2)
    assert [ask(ledger, one).granted for one in (*here, *there)] == [True, False, True, True]
    assert {entry.cluster for entry in ledger.queue()} == {CLUSTER, "other"}


@pytest.mark.statement("H8")
def test_only_ranges_wait(ledger):
    """H8: plans, statistics, pauses and releases go on without a token."""
    one, two = sources(ledger, 2, at_once=1)
    ask(ledger, one)
    assert not ask(ledger, two).granted
    plan = make_plan()
    assert ledger.save_plan(two, plan, cut(3)) == 3
    ledger.record_read(two, worker="w", in_flight_rows=5)
    ledger.pause(two, who="ada")
    ledger.resume(two, who="ada")
    assert admit(ledger, two) is None


@pytest.mark.statement("H1", "H6")
def test_many_that_ask_at_once_see_one_order(subject):
    """H1, H6: from several processes' connections at once, never more than the tokens, and none is forgotten."""
    every = sources(subject.ledger, 8, at_once=2)
    most = []

    def run(index):
        ledger = subject.another()
        mine = every[index]
        until(lambda: ask(ledger, mine).granted, timeout=60)
        most.append(len(tokens(ledger)))
        complete(ledger, mine)

    in_threads(8, run)
    assert max(most) <= 2
    assert tokens(subject.ledger) == []


@pytest.mark.statement("H1")
def test_a_range_that_moves_while_another_asks_keeps_the_token(on_server):
    """H1: whichever statement of who asks it comes after, the last range of who runs is planned or in flight."""
    running, asking = sources(on_server.ledger, 2, at_once=1)
    assert ask(on_server.ledger, running).granted
    commit(on_server.ledger, take(on_server.ledger, running).plan_id, 0)
    another = on_server.another()
    held = []

    def admitted():
        held.append(take(on_server.ledger, running))

    def released():
        record = held.pop()
        assert on_server.ledger.release(record.plan_id, record.seq, attempt=record.attempt, error="again")

    def tick(*_):
        nonlocal left
        left -= 1
        if left == 0:
            move()

    ask(another, asking)
    left = 0
    sa.event.listen(another._database.engine, "after_cursor_execute", tick)
    ask(another, asking)
    for number, move in itertools.product(range(1, 1 - left), (admitted, released)):
        left = number
        assert not ask(another, asking).granted, f"{move.__name__} after statement {number}"


def opened_again(ledger, hydration_id):
    assert ledger.reopen(ledger.hydration(hydration_id).plan.plan_id, 0, who="ada")


@pytest.mark.statement("H1")
@pytest.mark.parametrize("act", [opened_again, replan])
def test_who_gets_something_to_do_again_waits_for_its_turn(ledger, act):
    """H1: while it had nothing left another took the token; a repair, or another plan, does not bring a second one."""
    first, second = sources(ledger, 2, at_once=1)
    assert ask(ledger, first).granted
    while (permit := admit(ledger, first)) is not None:
        commit(ledger, permit.range.plan_id, permit.range.seq)
    assert ask(ledger, second).granted
    act(ledger, first)
    assert tokens(ledger) == [second]
    assert admit(ledger, first) is None
    complete(ledger, second)
    assert ask(ledger, first).granted
    assert take(ledger, first).seq == 0


@pytest.mark.statement("H1")
def test_a_token_is_of_the_cluster_where_the_ranges_run(ledger):
    """H1: who is declared on another cluster takes its turn there, and not before its ranges are over here."""
    (one,) = sources(ledger, 1, at_once=1)
    assert ask(ledger, one).granted
    held = take(ledger, one)
    facts = {"source_identity": f"{CLUSTER} 0", "cluster": "other"}
    assert register(ledger, **facts) == one
    assert (tokens(ledger), tokens(ledger, "other")) == ([one], [])
    commit(ledger, held.plan_id, held.seq)
    register(ledger, **facts)
    assert (tokens(ledger), tokens(ledger, "other")) == ([], [])
    assert ask(ledger, one).granted
    assert (tokens(ledger), tokens(ledger, "other")) == ([], [one])


@pytest.mark.statement("H4")
def test_after_a_hundred_random_ends_tokens_and_sources_that_hydrate_agree(ledger):
    """H4: killed, failed, dropped and completed in random order."""
    chance = random.Random(11)
    waiting = sources(ledger, 25, at_once=3)
    alive = set()
    for _ in range(100):
        what = chance.choice(("ask", "ask", "fail", "complete"))
        one = chance.choice(waiting if what == "ask" or not alive else sorted(alive, key=waiting.index))
        if what == "ask" and ask(ledger, one).granted and ledger.hydration(one).hydrated_at is None:
            alive.add(one)
        elif what == "fail" and one in alive:
            ledger.leave(one)
            alive.discard(one)
        elif what == "complete" and one in alive:
            complete(ledger, one)
            alive.discard(one)
        assert set(tokens(ledger)) == alive
        assert len(alive) <= 3
    assert sum(ledger.hydration(one).hydrated_at is not None for one in waiting) > 5
