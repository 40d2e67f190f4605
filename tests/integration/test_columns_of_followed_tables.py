"""A column that is added to one of several tables that share a log, while all of them are written to."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_backpressure.core.endpoints import Endpoint
from tests.support import mysql_flow, operator_flow
from tests.support.marks import mark_long
from tests.support.mysql_flow import MySQLFlow
from tests.support.operator_flow import OperatorFlow
from tests.support.postgres import run

pytestmark = pytest.mark.integration
SYSTEMS = ("postgres", "mysql")
COLUMNS = {
    "empty": "extra int",
    # Rows get a value that neither a statement nor the log shows.
    "filled": "extra int DEFAULT 5",
    "strict": "extra int NOT NULL DEFAULT 5",
}
CASES = [(system, policy, column) for system in SYSTEMS for policy in ("stop", "add") for column in COLUMNS]


@dataclass(frozen=True, kw_only=True)
class Source:
    """The tables of a system, and what writes to them."""

    flow: OperatorFlow
    do: Callable[..., list[tuple[Any, ...]]]
    writing: Callable[..., Any]

    def has_extra_column_in_target(self) -> bool:
        """Whether the target has the column with all of the source's values."""
        query = "SELECT id, v, extra FROM {} ORDER BY id"
        return list(map(tuple, self.do(query.format("b")))) == run(self.flow.database, query.format("raw.b"))


@pytest.fixture
def source(
    request: pytest.FixtureRequest, system: str, policy: str, database: Endpoint, tmp_path: Path
) -> Iterator[Source]:
    if system == "postgres":
        flow = OperatorFlow.make(database, tmp_path, on_new_column=policy)
        yield Source(flow=flow, do=flow.do, writing=operator_flow.writing)
    else:
        flow = MySQLFlow.make_from(request.getfixturevalue("mysql_database"), database, tmp_path, on_new_column=policy)
        yield Source(flow=flow, do=flow.change, writing=mysql_flow.writing)
    flow.close()


@pytest.mark.statement("W6", "W7")
@pytest.mark.parametrize(
    ("system", "policy", "column"),
    mark_long(CASES, quick=[("postgres", "add", "filled")]),
)
def test_a_table_that_gets_a_column_stops_alone_by_name_and_returns(source: Source, column: str) -> None:
    """W6, W7: the run in which it comes ends without it, the next names it, and the others are followed meanwhile."""
    flow, named = source.flow, r"1 of 3 tables have failed:\n- [^\n]*\.b: [^\n]*column extra"
    assert flow.run()
    second, third, fourth = (flow.with_run(f"run {number}") for number in (2, 3, 4))
    with source.writing(flow, seconds=1.5):
        source.do("UPDATE a SET v = 7")
        tables = second.plan()
        source.do(f"ALTER TABLE b ADD COLUMN {COLUMNS[column]}", "UPDATE b SET extra = 9 WHERE id < 30")
        second.hydrate(tables)
        second.verify(tables)
        with pytest.raises(AirflowFailException, match=named):
            third.plan()
        with pytest.raises(AirflowFailException, match=named):
            third.hydrate(third.pushed)
    source.do("UPDATE a SET v = 8", "DELETE FROM b WHERE id > 90", "DELETE FROM c WHERE id > 90")
    with pytest.raises(AirflowFailException, match=named):
        fourth.plan()
    with pytest.raises(AirflowFailException, match=named):
        fourth.hydrate(fourth.pushed)
    assert flow.differs("a", "c") == {}
    flow.do("ALTER TABLE raw.b ADD COLUMN extra int")
    assert replace(flow.with_run("run 5"), conf={"backpressure": "restart"}).run()
    source.do("UPDATE b SET extra = 11 WHERE id BETWEEN 40 AND 60", "UPDATE c SET v = 9")
    assert flow.with_run("run 6").run()
    assert flow.differs("a", "c") == {}
    assert source.has_extra_column_in_target()
