"""Errors that name one of the tables that share a log."""

from dataclasses import replace

import pytest

from airflow_provider_backpressure.core.snapshot.messages import ReadSpec, StreamTable
from airflow_provider_backpressure.core.snapshot.table_refusals import find_refused, name_table
from airflow_provider_backpressure.exceptions import SinkRefused, SinkUnavailable
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


def test_an_error_that_may_pass_or_is_about_the_log_names_none():
    with pytest.raises(SinkUnavailable, match=r"^gone$") as gone, name_table(TABLES[0]):
        raise SinkUnavailable("gone")
    assert find_refused(gone.value, TABLES) is None
    assert find_refused(SinkRefused("The slot is gone."), TABLES) is None
