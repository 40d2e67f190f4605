"""Marks that prove nothing any more, and those that are the latest over their bounds."""

from itertools import permutations

import pytest

from airflow_provider_backpressure.connectors.lake.markers import Attempt, Holder, Mark
from airflow_provider_backpressure.connectors.lake.spark.commit_notes import (
    LogState,
    Note,
    note_of_confirmation,
    note_of_discard,
    note_of_fence,
    note_of_mark,
    note_of_plan,
    pack_state,
)
from airflow_provider_backpressure.connectors.lake.spark.iceberg import find_last_change

pytestmark = pytest.mark.statement("L2", "X1")

BOUNDS = {"kind": "key", "columns": ["id"], "start": None, "end": ["5"]}
OTHERS = {**BOUNDS, "start": ["5"], "end": None}


def note(
    plan_id: str, epoch: int, *, again: int = 0, slice_id: str = "0.0", bounds: dict[str, object] = BOUNDS
) -> Note:
    mark = Mark(
        plan_id=plan_id,
        slice_id=slice_id,
        epoch=epoch,
        attempt=1,
        nonce=1,
        bounds=bounds,
        rows=1,
        bytes=1,
        checksum="c",
        committed_at="2026-01-01",
        again=again,
    )
    return note_of_mark(mark)


HELD = note_of_plan(Holder(plan_id="p", epoch=3), settled=True)


def test_a_discarded_mark_is_gone_in_whatever_order_the_log_is_read() -> None:
    """L2, X1: with those of earlier plans over its bounds; what was written again counts."""
    earlier, own = note("before", 1), note("p", 3)
    notes = [HELD, earlier, own, note_of_discard("p", "0.0", 3, BOUNDS, 1), note("p", 3, again=1)]
    for order in permutations(notes):
        state = LogState.read(order, {})
        assert {key: mark.again for key, mark in state.marks.items()} == {("p", "0.0"): 1}
    for order in permutations(notes[:-1]):
        assert not LogState.read(order, {}).marks


def test_a_late_attempt_of_before_a_discard_is_not_admitted() -> None:
    """X1: the range's next attempt has a token of its own, so that the table's tokens tell them apart."""
    state = LogState.read([HELD, note_of_discard("p", "0.0", 3, BOUNDS, 1)], {})
    late, next_one = note("p", 3), note("p", 3, again=1)
    assert (state.admits(late), state.admits(next_one)) == (False, True)
    assert late.token != next_one.token
    attempt = Attempt(plan_id="p", epoch=3, slice_id="0.0", attempt=1, bounds=BOUNDS)
    assert not LogState.read([HELD, note_of_fence("p", "0.0", 3), *state_notes()], {}).is_fenced(attempt)
    assert LogState.read([HELD, note_of_fence("p", "0.0", 3, again=1), *state_notes()], {}).is_fenced(attempt)


def state_notes() -> list[Note]:
    return [note_of_discard("p", "0.0", 3, BOUNDS, 1)]


def test_what_a_property_keeps_of_a_mark_that_was_written_again_counts() -> None:
    """L2: the log may have the first mark and its discard, and no longer the second."""
    kept = LogState.read([HELD, note("p", 3, again=1)], {})
    state = LogState.read([note("p", 3), *state_notes()], pack_state(kept, "p"))
    assert state.marks["p", "0.0"].again == 1


def test_the_latest_writes_are_those_of_the_newest_epoch() -> None:
    notes = [
        HELD,
        note("a", 1),
        note("b", 2),
        note("a", 1, slice_id="1.0", bounds=OTHERS),
        note_of_confirmation("p", 3, 9),
    ]
    state = LogState.read(notes, {})
    assert sorted((mark.plan_id, mark.slice_id) for mark in state.list_writes()) == [("a", "1.0"), ("b", "0.0")]
    assert [mark.plan_id for mark in state.list_writes(2)] == ["b"]
    assert (state.confirmed, state.marks_of("p")) == ({"p": 3}, {})


def snapshots(*kinds: str, first: int | None = None) -> dict[str, object]:
    """Rows of the metadata table, numbered from 1; ``ours`` have a token."""
    return {
        str(number): {
            "parent_id": number - 1 if number > 1 else first,
            "operation": "replace" if kind == "replace" else "append",
            "summary": {"wap.id": "backpressure:p:0.0:1"} if kind == "ours" else {},
        }
        for number, kind in enumerate(kinds, start=1)
    }


@pytest.mark.parametrize(
    ("kinds", "first", "chain", "found"),
    [
        (("ours", "ours"), None, "", "none"),
        (("foreign", "ours", "replace"), None, "", "1"),
        (("ours", "foreign", "ours"), None, "none@1@0", "2"),
        (("ours", "replace", "ours"), None, "9@2@0", "9"),
        (("ours", "ours"), 77, "9@1@0", "9"),
        (("ours", "ours"), 77, "9@77@0", "before 2"),
        (("ours", "ours"), 77, "", "before 2"),
    ],
    ids=["ours", "before ours", "behind the chain", "chain", "expired before", "expired behind", "unknown"],
)
def test_the_last_change_of_others_is_found(kinds: tuple[str, ...], first: int | None, chain: str, found: str) -> None:
    """L2: where the log does not go back to it, the answer is one that no other moment gives."""
    rows = snapshots(*kinds, first=first)
    assert find_last_change(str(len(kinds)), chain, rows) == found
