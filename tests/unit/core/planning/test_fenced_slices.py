"""What a sink that fences slices one by one is given of a plan's attempts."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from airflow_provider_backpressure.core.execution.lane_submission import spec_for
from airflow_provider_backpressure.core.planning.preconditions import tell_submitted
from airflow_provider_backpressure.core.snapshot.ranges import RangeState
from airflow_provider_backpressure.core.snapshot.spark_messages import ReadSpec, Slice, WriteSpec
from airflow_provider_backpressure.testing import MemorySink


class FencingSink(MemorySink):
    """Keeps what it is given."""

    def tell_submitted(self, submitted: Callable[[str], Sequence[str] | None]) -> None:
        self.submitted = submitted


def ledger_of(*ranges: Any) -> Any:
    pages = [list(ranges), []]
    return Mock(counts=Mock(return_value=Mock(total=len(ranges))), ranges=lambda *_, **__: pages.pop(0))


def range_of(seq: int, state: RangeState, attempt: int) -> Any:
    return Mock(seq=seq, slice_id=f"{seq}.0", state=state, attempt=attempt)


def test_slices_count_as_submitted_from_their_first_attempt_until_they_are_committed() -> None:
    """One that failed, or was closed with its plan, may still have an attempt that is frozen somewhere."""
    states = (RangeState.COMMITTED, RangeState.ADMITTED, RangeState.FAILED, RangeState.REVOKED)
    ranges = [range_of(seq, state, 1) for seq, state in enumerate(states)]
    sink = FencingSink()
    tell_submitted(sink, ledger_of(*ranges, range_of(9, RangeState.PLANNED, 0)))
    assert sink.submitted("p") == ["1.0", "2.0", "3.0"]


def test_a_ledger_that_does_not_know_the_plan_says_nothing() -> None:
    """The sink then fences whatever the plan may have submitted; other sinks are not asked."""
    sink = FencingSink()
    tell_submitted(sink, ledger_of())
    assert sink.submitted("p") is None
    tell_submitted(MemorySink(), Mock(side_effect=AssertionError))


@pytest.mark.parametrize(("tasks", "pieces"), [(1, []), (3, ["4.0.0", "4.0.1", "4.0.2"])])
def test_a_range_is_cut_for_the_tasks_that_read_it_and_committed_as_one(tasks: int, pieces: list[str]) -> None:
    """The slice has the bounds of the whole range: the pieces are of this attempt alone."""
    source = Mock()
    source.slice.side_effect = lambda read, bounds, slice_id: Slice(slice_id=slice_id, query=bounds, bounds={})
    source.cut.side_effect = lambda read, bounds, parts: [f"piece {number}" for number in range(parts)]
    read = ReadSpec(kind="postgres", conn_id="c", columns=())
    names = dict.fromkeys(("kind", "conn_id", "target", "mode", "plan_table", "commit_table", "fence"), "")
    write = WriteSpec(**names, columns=(), key=(), tasks=tasks)
    plan = Mock(read=read, write=write, epoch=1, plan_id="p", path="frame", survives=False, tables=(), replays=False)
    record = Mock(hydration_id="h", seq=4, attempt=1, tag="t", slice_id="4.0", bounds="whole", planned_rows=9)
    record.planned_bytes = 9
    spec = spec_for(plan, record, source)
    assert [piece.slice_id for piece in spec.pieces] == pieces
    assert [(piece.slice_id, piece.query) for piece in spec.slices] == [("4.0", "whole")]
    assert replace(spec, pieces=()).slices == spec.slices
