"""Which transactions a snapshot sees, and why ranges and windows take turns by that."""

from collections.abc import Iterator

import pytest

from airflow_provider_backpressure.core.snapshot.transaction_snapshot import TransactionSnapshot
from tests.support.interleaving import Interleaving, Rule

SCHEDULES = 1000


def runs(rule: Rule) -> Iterator[Interleaving]:
    return (Interleaving(seed=seed, rule=rule).run() for seed in range(SCHEDULES))


def test_a_snapshot_does_not_see_what_runs_nor_what_began_behind_it() -> None:
    """Numbers of transactions in the log run in a circle of 32 bits, those of snapshots do not."""
    assert TransactionSnapshot.parse("7:10:7").list_unseen([5, 7, 9, 10, 11]) == [7, 10, 11]
    last, end = 2**32 - 1, 2**32 + 5
    assert TransactionSnapshot.parse(f"{last}:{end}:{last}").list_unseen([last - 1, last, 3, 4, 5]) == [last, 5]
    assert TransactionSnapshot.parse(f"{last}:{last}:").list_unseen([last - 1, last, 0, 3]) == [last, 0, 3]


@pytest.mark.statement("W4")
def test_ranges_and_windows_in_turns_leave_the_target_right() -> None:
    """W4: rows may change meanwhile. Attempts that were given up commit at any later time, or would."""
    found = list(runs(Rule()))
    assert sum(each.wrong for each in found) == 0
    assert sum(each.asked for each in found) > SCHEDULES / 2
    assert sum(each.between for each in found) > SCHEDULES / 2
    assert sum(each.refused for each in found) > SCHEDULES / 10


@pytest.mark.statement("W4")
@pytest.mark.parametrize("left_out", ["fences", "waits"])
def test_turns_need_a_fence_and_a_wait(left_out: str) -> None:
    """W4: a range that was begun before a window, or that does not see it yet, would take back what it has brought."""
    assert any(each.wrong for each in runs(Rule(**{left_out: False})))
