"""Errors that name one of the tables that share a log."""

from dataclasses import replace

import pytest

from airflow_provider_backpressure.core.snapshot.shared_log_table_errors import find_refused, name_table
from airflow_provider_backpressure.core.snapshot.spark_messages import ReadSpec, StreamTable
from airflow_provider_backpressure.exceptions import RangeFailed, SinkRefused, SinkUnavailable
from tests.conformance.ledger.support import make_plan

READ = ReadSpec(kind="postgres_log", conn_id="shop", columns=())


def table(fence: str) -> StreamTable:
    return StreamTable(plan_id=fence, epoch=1, query="", read=READ, write=replace(make_plan().write, fence=fence))


TABLES = (table("raw.a"), table("raw.ab"))


@pytest.mark.statement("W6")
def test_an_error_for_good_names_its_table_once():
    """W6: its class and its words stay; a name that begins another one is not taken for it."""
    words = r"^The log cannot be replayed into raw\.ab: no room$"
    with pytest.raises(SinkRefused, match=words) as refused, name_table(TABLES[1]), name_table(TABLES[1]):
        raise SinkRefused("no room")
    assert find_refused(refused.value, TABLES) is TABLES[1]
    assert find_refused(refused.value, TABLES[:1]) is None


@pytest.mark.statement("W6")
def test_what_may_pass_names_its_table_once_no_attempt_is_left():
    """W6: a trigger in the way, or a lock: the lane raises what it says of the last attempt, with its cause."""
    with pytest.raises(RangeFailed) as refused, name_table(TABLES[0]):
        raise RangeFailed("A trigger changed 3 more rows.")
    with pytest.raises(SinkUnavailable) as locked, name_table(TABLES[1], names=lambda error: True):
        raise SinkUnavailable("no lock")
    for named, found in ((refused.value, TABLES[0]), (locked.value, TABLES[1])):
        last = RangeFailed(f"Range 0 failed 3 times; the last time: {named}")
        last.__cause__ = named
        assert find_refused(last, TABLES) is found
        assert find_refused(named, TABLES) is None, "another attempt follows"


def test_an_error_of_a_server_or_of_the_log_names_none():
    with pytest.raises(SinkUnavailable, match=r"^gone$") as gone, name_table(TABLES[0]):
        raise SinkUnavailable("gone")
    last = RangeFailed("Range 0 failed 3 times; the last time: gone")
    last.__cause__ = gone.value
    assert find_refused(last, TABLES) is None
    assert find_refused(RangeFailed("Range 0 ended without a commit in the sink."), TABLES) is None
    assert find_refused(SinkRefused("The slot is gone."), TABLES) is None
