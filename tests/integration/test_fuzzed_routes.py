"""The page's routes over ledgers that are stricter than SQLite: no NUL, no number beyond its column."""

from contextlib import closing

import pytest

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.ledger.repository import SqlLedger
from tests.support import mysql as on_mysql
from tests.unit.plugins.test_fuzz import send_whatever, sending

pytestmark = pytest.mark.integration


@pytest.mark.statement("X7")
@pytest.mark.parametrize("kind", ["postgres", "mysql"])
def test_no_request_is_a_fault(request: pytest.FixtureRequest, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """X7: as over SQLite."""
    if kind == "postgres":
        url = request.getfixturevalue("ledger_url")
    else:
        place: Endpoint = request.getfixturevalue("mysql_ledger")
        url = on_mysql.address(place)
    with closing(SqlLedger(url)) as ledger, caplog.at_level("WARNING"), sending(ledger) as sent:
        assert ("POST", 200) in send_whatever(sent, 150)
