"""Which transactions a snapshot sees, and why ranges and windows take turns by that."""

from collections.abc import Iterator

import pytest

from airflow_provider_backpressure.core.snapshot.transaction_snapshot import (
    LoggedTransaction,
    TransactionSnapshot,
    find_window_end,
    may_begin_read,
)
from tests.support.interleaving import Interleaving, Rule, place

SCHEDULES = 1000


def runs(rule: Rule) -> Iterator[Interleaving]:
    return (Interleaving(seed=seed, rule=rule).run() for seed in range(SCHEDULES))


def test_a_snapshot_does_not_see_what_runs_nor_what_began_behind_it() -> None:
    """Numbers of transactions in the log run in a circle of 32 bits, those of snapshots do not."""
    assert TransactionSnapshot.parse("7:10:7").list_unseen([5, 7, 9, 10, 11]) == [7, 10, 11]
    last, end = 2**32 - 1, 2**32 + 5
    assert TransactionSnapshot.parse(f"{last}:{end}:{last}").list_unseen([last - 1, last, 3, 4, 5]) == [last, 5]
    assert TransactionSnapshot.parse(f"{last}:{last}:").list_unseen([last - 1, last, 0, 3]) == [last, 0, 3]


def test_a_snapshot_includes_another_one_if_it_sees_all_that_the_other_one_sees() -> None:
    older, newer = TransactionSnapshot.parse("7:10:7"), TransactionSnapshot.parse("7:12:7,11")
    assert newer.includes(older)
    assert older.includes(older)
    assert not older.includes(newer)
    assert not TransactionSnapshot.parse("8:12:8").includes(older)
    assert may_begin_read(newer, older)
    assert not may_begin_read(older, newer)


def test_a_window_ends_before_what_some_snapshot_does_not_see() -> None:
    log = [LoggedTransaction(number=number, commit=place(at)) for number, at in ((5, 10), (9, 20), (7, 30))]
    snapshots = [TransactionSnapshot.parse("7:10:7"), TransactionSnapshot.parse("12:12:")]
    assert find_window_end(log, snapshots, upto=place(40)) == place(30)
    assert find_window_end(log, snapshots[1:], upto=place(40)) == place(40)
    assert find_window_end(log, snapshots, upto=place(25)) == place(25)
    assert find_window_end(log, [*snapshots, TransactionSnapshot(end=6)], upto=place(40)) == place(20)


@pytest.mark.statement("W4")
def test_ranges_and_windows_in_any_order_leave_the_target_right() -> None:
    """W4: rows may change meanwhile, and attempts may commit late."""
    found = list(runs(Rule()))
    assert sum(each.wrong for each in found) == 0
    assert sum(each.asked for each in found) > SCHEDULES / 2
    assert sum(each.between for each in found) > SCHEDULES / 2


@pytest.mark.statement("W4")
@pytest.mark.parametrize(
    "rule",
    [
        Rule(checks_begin=False),
        Rule(ends_windows=False),
        Rule(counts_zombies=False),
        Rule(by_positions=True),
    ],
    ids=lambda rule: next(name for name, value in vars(rule).items() if value != getattr(Rule(), name)),
)
def test_no_part_of_the_rule_can_be_left_out(rule: Rule) -> None:
    """W4: each part prevents something that happens."""
    assert any(each.wrong for each in runs(rule))


@pytest.mark.statement("W4")
def test_the_target_refuses_an_attempt_that_was_thought_dead() -> None:
    """W4: its check alone is enough, where nobody else knows that the attempt lives."""
    found = list(runs(Rule(counts_zombies=False, checks_commit=True)))
    assert sum(each.wrong for each in found) == 0
    assert sum(each.refused for each in found) > SCHEDULES / 10


@pytest.mark.statement("W4")
def test_ranges_and_windows_in_turns_leave_the_target_right() -> None:
    """W4: as the product does it, by epochs. Attempts that were given up commit at any later time, or would."""
    found = list(runs(Rule(in_turns=True, checks_begin=False)))
    assert sum(each.wrong for each in found) == 0
    assert sum(each.asked for each in found) > SCHEDULES / 2
    assert sum(each.between for each in found) > SCHEDULES / 2
    assert sum(each.refused for each in found) > SCHEDULES / 10


@pytest.mark.statement("W4")
@pytest.mark.parametrize("left_out", ["fences", "waits"])
def test_turns_need_a_fence_and_a_wait(left_out: str) -> None:
    """W4: a range that was begun before a window, or that does not see it yet, would take back what it has brought."""
    rule = Rule(**{"in_turns": True, "checks_begin": False, left_out: False})
    assert any(each.wrong for each in runs(rule))
