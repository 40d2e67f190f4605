"""Half-done hydrations, written into the ledger by the code of each earlier revision, go on under this one."""

import json
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.gate.hydration_record import Phase
from airflow_provider_backpressure.core.planning.plan_result import Verdict
from airflow_provider_backpressure.core.snapshot.ranges import RangeState
from airflow_provider_backpressure.exceptions import LedgerRefused
from airflow_provider_backpressure.ledger.database import normalize_url
from airflow_provider_backpressure.ledger.migration import migrate
from airflow_provider_backpressure.ledger.repository import SqlLedger
from airflow_provider_backpressure.ledger.revision import REVISION
from tests.conformance.ledger.support import address
from tests.support import mysql
from tests.support.half_done import LEDGERS, hydrate, keep, target

pytestmark = pytest.mark.integration
REVISIONS = [f"{number:04d}" for number in range(1, int(REVISION))]


@pytest.fixture(params=["sqlite", "postgresql", "mysql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> sa.URL:
    """A database without the ledger's tables."""
    if request.param == "postgresql":
        place: Endpoint = request.getfixturevalue("database")
        return normalize_url(address(place))
    if request.param == "mysql":
        return normalize_url(mysql.address(request.getfixturevalue("mysql_database")))
    return sa.make_url(f"sqlite:///{tmp_path / 'ledger.db'}")


@pytest.fixture(params=REVISIONS)
def left(request: pytest.FixtureRequest, url: sa.URL) -> Iterator[dict[str, Any]]:
    """What that revision has left, in tables of its own making."""
    kept = json.loads((LEDGERS / f"{request.param}.json").read_text())
    assert kept["version"] == request.param
    migrate(url, request.param)
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        for row in kept["rows"]:
            put(connection, row.pop("table"), row)
    yield kept["sink"]
    engine.dispose()


def put(connection: sa.Connection, name: str, row: dict[str, Any]) -> None:
    """Insert a row as SQLite has kept it; other databases want times and truths as such."""
    quote = connection.dialect.identifier_preparer.quote
    statement = f"INSERT INTO {name} ({', '.join(map(quote, row))}) VALUES ({', '.join(f':{key}' for key in row)})"
    if connection.dialect.name != "sqlite":
        types = {column["name"]: column["type"] for column in sa.inspect(connection).get_columns(name)}
        row = {key: typed(types[key], value) for key, value in row.items()}
    connection.execute(sa.text(statement), row)


def typed(type_: Any, value: Any) -> Any:
    """Return a value, which SQLite has kept as text or number, as the column's type has it."""
    if value is not None and isinstance(type_, sa.DateTime):
        return datetime.fromisoformat(value)
    return bool(value) if value is not None and isinstance(type_, sa.Boolean) else value


@pytest.mark.statement("X2")
def test_a_hydration_of_an_earlier_release_goes_on_where_it_was(url: sa.URL, left: dict[str, Any]) -> None:
    """X2: what is committed is not read again, what was in flight is; plan and statistics are whole in the end."""
    sink = target(left)
    plan_id = sink.plan.plan_id if sink.plan else ""
    with closing(SqlLedger(url)) as ledger, pytest.raises(LedgerRefused, match="run `airflow db migrate`"):
        ledger.hydrations()
    migrate(url)
    with closing(SqlLedger(url)) as ledger:
        assert [record.state for record in ledger.ranges(plan_id)] == [
            *[RangeState.COMMITTED] * 4,
            RangeState.ADMITTED,
            *[RangeState.PLANNED] * 5,
        ]
        verdict, submitted = hydrate(ledger, sink)
        assert (verdict, sorted(submitted)) == (Verdict.RESUMED, [4, 5, 6, 7, 8, 9])
        assert sorted(sink.rows) == list(range(100))
        (one,) = ledger.hydrations()
        assert ledger.finish(one.id).phase is Phase.STEADY_STATE
        assert one.plan is not None
        assert (one.plan.plan_id, ledger.counts(plan_id).committed) == (plan_id, 10)
        assert sum(row.snapshot_progress for row in ledger.statistics(one.id)) == 100


def test_every_earlier_revision_has_left_a_ledger() -> None:
    """With a migration comes the file of the revision before it, made by ``python -m tests.support.half_done``."""
    assert sorted(path.stem for path in LEDGERS.glob("*.json")) == REVISIONS


def test_what_this_revision_leaves_can_be_kept(tmp_path: Path) -> None:
    """In the form of the others, for the day when a migration follows."""
    kept = json.loads(keep(tmp_path).read_text())
    assert (kept["version"], len(kept["sink"]["markers"])) == (REVISION, 4)
    states = [row["state"] for row in kept["rows"] if row["table"] == "backpressure_range"]
    assert (states.count("committed"), states.count("admitted"), len(states)) == (4, 1, 10)
    assert target(kept["sink"]).rows == list(range(40))
