"""What a window of a log that tables share brings to one of them: what that table lacks of it, by its own notes."""

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from airflow_provider_backpressure.connectors.lake.markers import Attempt, Holder, Mark
from airflow_provider_backpressure.connectors.lake.spark.commit_notes import (
    LogState,
    name_window,
    note_of_mark,
    note_of_plan,
)
from airflow_provider_backpressure.connectors.lake.tasks import spark_write_shared_log
from airflow_provider_backpressure.connectors.lake.tasks.spark_write_shared_log import SharedWindow
from airflow_provider_backpressure.core.endpoints import NOWHERE
from airflow_provider_backpressure.core.snapshot.bounds import LogBounds, LogPosition
from airflow_provider_backpressure.core.snapshot.gtid_set import GtidSet
from airflow_provider_backpressure.core.snapshot.spark_messages import RangeSpec, Slice, StreamTable
from airflow_provider_backpressure.exceptions import SinkRefused
from tests.support.lake_plans import make_followed_plan

ONE, OTHER = "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"
PLAN = make_followed_plan("p", ranges=1)


def at(*gtids: str) -> LogPosition:
    found = GtidSet.parse(",".join(gtids))
    return LogPosition(at=found.count, text=str(found))


BEGUN, HELD = at(f"{ONE}:1-5"), at(f"{ONE}:1-20")
"""Where the table's plan has begun, and up to where the table has the log."""


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> list[StreamTable]:
    """Return the tables for which a window is read, of which the first one has the log up to ``HELD``."""
    bounds = LogBounds(stream="s", start=at(f"{ONE}:1-10"), end=HELD)
    slice_id = name_window(bounds.start)
    attempt = Attempt(plan_id="p", epoch=1, slice_id=slice_id, attempt=1, bounds=bounds.to_json())
    mark = note_of_mark(Mark.made(attempt, rows=3, bytes=1, checksum="c", files=()))
    state = LogState.read((note_of_plan(Holder.create(PLAN, 1), settled=True), mark), {})
    table = Mock(state=lambda: state)
    table.name = "lake.raw.t"
    monkeypatch.setattr(spark_write_shared_log, "open_table", lambda *_: table)
    found: list[StreamTable] = []

    def stage(self: SharedWindow, parts: Any) -> Any:
        found.extend(part.stream for part in parts)
        raise InterruptedError

    monkeypatch.setattr(SharedWindow, "_stage", stage)
    return found


def make_window(start: LogPosition, end: LogPosition) -> SharedWindow:
    write = replace(PLAN.write, plan_table=json.dumps({"format": "delta"}))
    bounds = LogBounds(stream="s", start=start, end=end).to_json()
    spec = RangeSpec(
        hydration_id="h",
        plan_id="windows",
        epoch=1,
        seq=0,
        attempt=1,
        tag="t",
        path="replay",
        read=PLAN.read,
        write=write,
        slices=(Slice(slice_id="0.0", bounds=bounds, query=""),),
        tables=(StreamTable(plan_id="p", epoch=1, query="", read=PLAN.read, write=write, since=str(BEGUN)),),
    )
    return SharedWindow(session=Mock(), spec=spec, source=NOWHERE, profile=None, tag="t")


@pytest.mark.statement("W2", "X1")
def test_a_table_gets_what_it_lacks_of_a_window_and_keeps_where_its_log_began(staged: list[StreamTable]) -> None:
    """W2, X1: the log's reader needs both: it looks for transactions that were prepared since the table's plan."""
    with suppress(InterruptedError):
        make_window(at(f"{ONE}:1-10"), at(f"{ONE}:1-30")).apply()
    assert [(each.start, each.since) for each in staged] == [(str(HELD), str(BEGUN))]


@pytest.mark.statement("W2", "X1")
def test_a_table_that_has_a_window_is_passed_over(staged: list[StreamTable]) -> None:
    """W2, X1: also where it has more than that."""
    for end in (HELD, at(f"{ONE}:1-15")):
        ((table, _),) = make_window(at(f"{ONE}:1-10"), end).apply()
        assert table.name == "lake.raw.t"
    assert staged == []


@pytest.mark.statement("W7", "X3")
@pytest.mark.parametrize("end", [at(f"{ONE}:1-12", f"{OTHER}:1-8"), at(f"{ONE}:1-12", f"{OTHER}:1-80")])
def test_a_table_with_transactions_that_its_source_has_lost_is_refused(
    staged: list[StreamTable], end: LogPosition
) -> None:
    """W7, X3: another server has as many transactions, or more, and others: a fail-over has lost some."""
    with pytest.raises(SinkRefused, match=r"of which the source lacks a part now"):
        make_window(at(f"{ONE}:1-10"), end).apply()
    with pytest.raises(SinkRefused, match=r"up to \S+ only, and the window begins at"):
        make_window(at(f"{ONE}:1-22"), at(f"{ONE}:1-30")).apply()
    assert staged == []
