"""The ledger in Airflow's metadata database where that is MySQL."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.ledger.models import VERSION_TABLE, metadata
from tests.support.mysql import PASSWORD, address, new_role, run

pytestmark = pytest.mark.system


@pytest.mark.timeout(900)
def test_the_ledger_lives_beside_airflows_tables_on_mysql(tmp_path: Path, mysql_database: Endpoint):
    """``setup`` makes a role that reaches our tables and none of Airflow's; ``doctor`` and ``grants`` know MySQL."""
    place = address(mysql_database).set(drivername="mysql+pymysql")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")},
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": place.render_as_string(hide_password=False),
    }

    def airflow(*words: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "airflow", *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    migrated = airflow("db", "migrate")
    assert migrated.returncode == 0, migrated.stdout + migrated.stderr
    tables = {name for (name,) in run(mysql_database, "SHOW TABLES")}
    assert tables >= {*metadata.tables, VERSION_TABLE, "dag"}

    role = f"bp_{mysql_database.database}"
    try:
        made = airflow("backpressure", "setup", "--role", role)
        where = f"{mysql_database.host}:{mysql_database.port}/{mysql_database.database}"
        assert (made.returncode, made.stderr) == (0, "")
        assert made.stdout == (
            f"The ledger's tables are in {where}.\n"
            f"The role {role} may use the ledger's tables, and nothing else.\n"
            "The connection backpressure_default leads to them.\n"
        )
        granted = run(mysql_database, f"SELECT table_name FROM mysql.tables_priv WHERE user = '{role}'")
        assert {name for (name,) in granted} == set(metadata.tables)
        found = airflow("backpressure", "doctor", "--output", "json")
        assert found.returncode == 0, found.stdout + found.stderr
        assert {one["result"] for one in json.loads(found.stdout)} == {"ok"}
    finally:
        run(mysql_database, f"DROP USER IF EXISTS '{role}'@'%'")
    shown = airflow("backpressure", "grants")
    assert f"ON {mysql_database.database}.backpressure_range TO 'backpressure'@'%';" in shown.stdout


def test_an_account_that_may_not_make_a_role_is_told_who_may(mysql_ledger: Endpoint):
    """The sentence names the way out, and nothing of the new password is left in it."""
    from airflow_provider_backpressure.cli.role_mysql import make_role
    from airflow_provider_backpressure.ledger.database import MissingRight

    with new_role(mysql_ledger) as poor:
        with pytest.raises(MissingRight, match=r"too few rights .*CREATE USER") as caught:
            make_role(address(poor), "backpressure_other", f"new-{PASSWORD}")
        assert caught.value.__cause__ is None
        assert f"new-{PASSWORD}" not in str(caught.value)
