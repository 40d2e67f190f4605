"""What the notes in a table's log say together: who holds it, what is committed, what must still be fenced."""

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_backpressure.connectors.lake.markers import Attempt, Holder, Mark
from airflow_provider_backpressure.connectors.lake.spark.commit_notes import (
    COMPACTED,
    MARKS,
    PLAN,
    LogState,
    Note,
    list_slices,
    note_of_clearing,
    note_of_fence,
    note_of_mark,
    note_of_plan,
    note_of_settling,
    pack_state,
)
from airflow_provider_backpressure.core.snapshot.bounds import LogBounds, LogPosition, OffsetBounds
from airflow_provider_backpressure.core.snapshot.topic_offsets import LogWindow
from tests.support.lake_plans import make_followed_plan


def holder(plan_id: str, epoch: int, *, began: int | None = None) -> Holder:
    return Holder(plan_id=plan_id, epoch=epoch, about={"began": began or epoch})


def attempt(slice_id: str = "0.0", *, plan_id: str = "p1", epoch: int = 1, number: int = 1) -> Attempt:
    return Attempt(plan_id=plan_id, epoch=epoch, slice_id=slice_id, attempt=number, bounds={"kind": "key"})


def mark(slice_id: str = "0.0", **values: Any) -> Mark:
    return Mark.made(attempt(slice_id, **values), rows=10, bytes=80, checksum="values-xxh3:0", files=())


def test_a_note_is_read_back_and_another_writer_s_text_is_none() -> None:
    """Other writers put texts of their own into the same place of a commit."""
    written = mark()
    note = Note.from_json(note_of_mark(written).to_json())
    assert note is not None
    assert LogState.read([note], {}).find("p1", "0.0") == written
    assert [Note.from_json(text) for text in ("", "nightly", "[1]", '{"job": 7}')] == [None] * 4


@pytest.mark.statement("X1")
def test_attempts_at_a_slice_share_a_token_within_an_epoch_and_with_its_fence() -> None:
    """X1: the table takes one commit for each token, so either one attempt is in, or the fence, and never two."""
    first, second = mark(number=1), mark(number=2)
    assert first.nonce != second.nonce
    assert note_of_mark(first).token == note_of_mark(second).token == note_of_fence("p1", "0.0", 1).token
    others = [mark(epoch=2), mark("1.0"), mark(plan_id="p2")]
    assert note_of_mark(first).token not in {note_of_mark(each).token for each in others}


def test_the_latest_epoch_holds_the_table_in_whatever_order_notes_are_found() -> None:
    """A property may be newer or older than what the log still has."""
    notes = [note_of_plan(holder("p2", 2), settled=False), note_of_plan(holder("p1", 1), settled=True)]
    assert LogState.read(notes, {}).holder == holder("p2", 2)
    kept = pack_state(LogState.read([note_of_plan(holder("p3", 3), settled=True)], {}), "p3")
    assert LogState.read(notes, kept).holder == holder("p3", 3)


def test_every_epoch_since_the_last_settled_one_is_fenced() -> None:
    """A planner may be killed between taking the table and fencing: the next one finds what it has left undone."""
    one, two, three = holder("p1", 1), holder("p2", 2), holder("p3", 3)
    notes = [note_of_plan(one, settled=True), note_of_plan(two, settled=False), note_of_plan(three, settled=False)]
    assert LogState.read(notes, {}).unsettled == [one, two]
    assert LogState.read([*notes, note_of_settling(three)], {}).unsettled == []
    later = [*notes[:2], note_of_settling(two), notes[2]]
    assert LogState.read(later, {}).unsettled == [two], "what was settled with the second epoch needs no second fence"


def test_a_plan_renewed_fences_its_own_earlier_epoch() -> None:
    """The attempts of a lane's earlier life read in another snapshot."""
    notes = [note_of_plan(holder("p1", 1), settled=True), note_of_plan(holder("p1", 2), settled=False)]
    assert LogState.read(notes, {}).unsettled == [holder("p1", 1)]


def test_a_slice_is_committed_by_an_attempt_of_any_epoch() -> None:
    """An epoch is renewed while ranges are committed; they are not read again."""
    state = LogState.read([note_of_mark(mark(epoch=1)), note_of_mark(mark("1.0", epoch=2))], {})
    assert {key: each.epoch for key, each in state.marks_of("p1").items()} == {"0.0": 1, "1.0": 2}
    assert state.find("p1", "2.0") is None


def test_only_a_fence_with_bounds_revokes_its_slice() -> None:
    """One without refuses late attempts of an epoch; the plan's next epoch writes the slice."""
    state = LogState.read([note_of_fence("p1", "0.0", 1), note_of_fence("p1", "1.0", 1, {"kind": "key"})], {})
    assert state.is_fenced(attempt("0.0"))
    assert not state.is_fenced(attempt("0.0", epoch=2))
    assert list(state.list_revoked("p1")) == ["1.0"]


@pytest.mark.statement("X3")
def test_marks_outlive_the_log_in_properties() -> None:
    """X3: Delta forgets entries and Iceberg expires snapshots; SQL quotes a property as it is, and Spark shows it."""
    state = LogState.read([note_of_plan(holder("p1", 1), settled=True), note_of_mark(mark())], {})
    kept = pack_state(state, "p1")
    assert set(kept) == {PLAN, f"{MARKS}p1"}
    assert all(set(value) <= set("0123456789abcdef") for value in kept.values()), "no word that Spark redacts"
    again = LogState.read([], kept)
    assert (again.holder, again.marks_of("p1")) == (state.holder, state.marks_of("p1"))


@pytest.mark.statement("X3")
def test_what_is_expired_is_a_loss_only_while_its_plan_is_written() -> None:
    """X3: Iceberg expires what a commit on top of another one came from, also where it keeps older snapshots."""
    taken = note_of_plan(holder("p1", 1), settled=True)
    lost = [note_of_mark(mark("7.0")), note_of_fence("p1", "8.0", 1)]
    for note in lost:
        assert LogState.read([taken], {}, lost=[note.token]).find_loss() == note.token
    known = LogState.read([taken, note_of_mark(mark())], {}, lost=[note_of_fence("p1", "0.0", 0).token])
    assert known.find_loss() == "", "the slice is in under a later epoch"
    tokens = [note.token for note in lost]
    assert LogState.read([], pack_state(known, "p1"), lost=tokens).find_loss() == ""
    assert LogState.read([note_of_plan(holder("p2", 2), settled=True)], {}, lost=tokens).find_loss() == ""


@pytest.mark.statement("X3")
def test_a_log_that_does_not_go_back_to_where_its_plan_began_is_a_loss() -> None:
    """X3: marks of before a newer epoch may be gone; what a plan cleared may be there again."""
    began, again = (note_of_plan(holder("p1", epoch, began=1), settled=True) for epoch in (1, 2))
    clearing = note_of_clearing("p1")
    assert LogState.read([began, again, clearing], {}).find_loss() == ""
    assert LogState.read([again], {}).find_loss() == began.token
    restored = LogState.read([began, again, clearing], {}, present=[began.token])
    assert restored.find_loss() == clearing.token
    untold = note_of_plan(Holder(plan_id="p1", epoch=4), settled=True)
    assert LogState.read([untold], {}).find_loss() == "", "a note of before does not say where its plan began"


@pytest.mark.statement("X3")
def test_a_table_that_was_rolled_back_is_a_loss_until_the_next_plan_takes_it() -> None:
    """X3: the marks of a plan that has ended are kept in properties, which a rollback leaves as they are."""
    ended = LogState.read([note_of_plan(holder("p1", 1), settled=True), note_of_mark(mark())], {})
    kept = pack_state(ended, "p1")
    assert LogState.read([], kept).find_loss() == ""
    assert LogState.read([], kept, cut_off="17").find_loss() == "17"
    assert LogState.read([note_of_plan(holder("p2", 2), settled=True)], kept, cut_off="17").find_loss() == ""


def test_without_a_ledger_every_slice_of_a_plan_may_have_been_submitted() -> None:
    """Where nobody says what was submitted, as many slices are fenced as the plan has."""
    assert list_slices(holder("p1", 1), ["3.0"]) == ["3.0"]
    assert list_slices(holder("p1", 1), None) == []


def window(number: int, plan_id: str = "p1") -> Mark:
    """The mark of a window of changes that was committed at that second."""
    piece = replace(
        attempt(f"{number}.0", plan_id=plan_id),
        bounds=LogBounds(stream="s", start=at(number), end=at(number + 1)).to_json(),
    )
    return replace(
        Mark.made(piece, rows=10, bytes=80, checksum="values-xxh3:0", files=()),
        committed_at=f"2026-01-01T00:00:{number:02}+00:00",
    )


def at(position: int) -> LogPosition:
    return LogPosition(at=position, text=f"0/{position}")


@pytest.mark.statement("K3")
def test_windows_are_counted_over_all_plans_since_the_last_compaction() -> None:
    """K3: ranges are not, though they are marked alike."""
    notes = [note_of_mark(each) for each in (mark(), window(1), window(2), window(3, "p2"))]
    times = [each.committed_at for each in (window(1), window(2), window(3))]
    assert LogState.read(notes, {}).list_uncompacted() == times
    assert LogState.read(notes, {COMPACTED: times[1]}).list_uncompacted() == times[2:]
    kept = pack_state(LogState.read(notes, {}), "p1")
    assert LogState.read(notes[3:], {**kept, COMPACTED: times[0]}).list_uncompacted() == times[1:]


@pytest.mark.statement("K3", "X1")
def test_a_commit_whose_token_is_forgotten_goes_in_only_for_the_plan_that_holds_the_table() -> None:
    """K3, X1: where a slice has no mark under the present epoch, and for a delete before the epoch is settled."""
    taken = [note_of_plan(holder("p1", 1), settled=False), note_of_plan(holder("p2", 2), settled=False)]
    state = LogState.read([*taken, note_of_mark(window(7, "p2"))], {})
    admitted = [mark(plan_id="p2", epoch=2), mark(plan_id="p2", epoch=1), mark(plan_id="p1"), window(7, "p2")]
    assert [state.admits(note_of_mark(each)) for each in admitted] == [True, False, False, False]
    assert [state.admits(note_of_clearing(plan)) for plan in ("p1", "p2")] == [False, True]
    settled = LogState.read([*taken, note_of_settling(holder("p2", 2))], {})
    assert not settled.admits(note_of_clearing("p2")), "a late planner would delete what the plan has written"
    assert not LogState().admits(note_of_mark(mark()))


@pytest.mark.statement("K2", "X1")
def test_positions_of_a_topic_are_where_the_marks_of_a_plan_end() -> None:
    """K2, X1: partitions of which no range is in begin where the plan does; other plans' marks do not count."""
    topic = LogWindow(topic="t", topic_id="i", start={0: 5, 1: 7}, end={0: 90, 1: 90})
    assert LogState().find_positions("p1", topic) == {"t/0": 5, "t/1": 7}

    def records(number: int, *pieces: tuple[int, int, int], plan_id: str = "p1") -> Mark:
        bounds = OffsetBounds(pieces=pieces, ordered=True)
        piece = replace(attempt(f"{number}.0", plan_id=plan_id), bounds=bounds.to_json())
        return Mark.made(piece, rows=1, bytes=8, checksum="values-xxh3:0", files=())

    marks = [records(1, (0, 9, 12)), records(0, (0, 5, 9)), records(0, (1, 7, 60), plan_id="p0")]
    state = LogState.read(map(note_of_mark, marks), {})
    assert state.find_positions("p1", topic) == {"t/0": 12, "t/1": 7}
    assert len(state.list_uncompacted()) == 3, "each of them is one MERGE"


@pytest.mark.statement("K3", "X1")
def test_a_plan_has_ended_when_every_slice_that_it_ever_had_is_in() -> None:
    """K3, X1: then every token of its attempts is taken, and the plan behind it has nothing to fence."""
    plan = make_followed_plan("p1", ranges=2)
    held = note_of_plan(Holder.create(plan, 1), settled=True)
    both = [held, note_of_mark(mark()), note_of_mark(mark("1.0"))]
    assert LogState.read(both, {}).has_ended([])
    assert not LogState.read(both[:2], {}).has_ended([])
    assert not LogState.read(both, {}).has_ended(["2.0"]), "a range that was cut out of another one"
    assert not LogState.read(both, {}).has_ended(None), "nobody knows"
    unsettled = note_of_plan(replace(Holder.create(plan, 1), epoch=2), settled=False)
    assert not LogState.read([*both, unsettled], {}).has_ended([])
    assert not LogState.read([], {}).has_ended([])
