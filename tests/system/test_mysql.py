"""``setup`` and ``doctor`` where the metadata database is MySQL.

Airflow itself wants ``mysqlclient`` for its own tables on MySQL, which is no wheel: it starts on SQLite here, and the
command is then told of MySQL. What it would store as a connection is printed instead.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.ledger.models import metadata
from airflow_provider_backpressure.ledger.revision import VERSION_TABLE
from tests.support.mysql import PASSWORD, address, new_role, run

pytestmark = [pytest.mark.system, pytest.mark.long]

SETUP = """
import json, os, sys
from airflow.cli.cli_parser import get_parser
from airflow_provider_backpressure.cli import setup
setup._store = lambda conn_id, values: print(json.dumps(values), file=sys.stderr)
os.environ["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] = os.environ["METADATA"]
args = get_parser().parse_args(["backpressure", "setup", "--overwrite", "--role", os.environ["ROLE"]])
args.func(args)
"""


def test_setup_makes_a_role_that_may_use_the_ledger_only(tmp_path: Path, mysql_ledger: Endpoint):
    """And the connection that it makes leads there, with every right that ``doctor`` looks for."""
    role = f"bp_{mysql_ledger.database}"
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")},
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "METADATA": address(mysql_ledger).render_as_string(hide_password=False),
        "ROLE": role,
    }

    def python(*words: str, **more: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, *words]
        return subprocess.run(command, env={**environment, **more}, capture_output=True, text=True, check=False)

    try:
        for _ in range(2):
            made = python("-c", SETUP)
            assert made.returncode == 0, made.stderr
        where = f"{mysql_ledger.host}:{mysql_ledger.port}/{mysql_ledger.database}"
        assert made.stdout == (
            f"The ledger's tables are in {where}.\n"
            f"The role {role} may use the ledger's tables, and nothing else.\n"
            "The connection backpressure_default leads to them.\n"
        )
        granted = run(mysql_ledger, f"SELECT table_name FROM mysql.tables_priv WHERE user = '{role}'")
        assert {name for (name,) in granted} == {*metadata.tables, VERSION_TABLE}
        stored = made.stderr.strip().splitlines()[-1]
        assert json.loads(stored)["login"] == role
        found = python(
            "-m", "airflow", "backpressure", "doctor", "--output", "json", AIRFLOW_CONN_BACKPRESSURE_DEFAULT=stored
        )
        assert found.returncode == 0, found.stdout + found.stderr
        assert {one["result"] for one in json.loads(found.stdout)} == {"ok"}
    finally:
        run(mysql_ledger, f"DROP USER IF EXISTS '{role}'@'%'")


def test_an_account_that_may_not_make_a_role_is_told_who_may(mysql_ledger: Endpoint):
    """The sentence names the way out, and nothing of the new password is left in it."""
    from airflow_provider_backpressure.cli.setup import make_role
    from airflow_provider_backpressure.ledger.database import MissingRight

    with new_role(mysql_ledger) as poor:
        with pytest.raises(MissingRight, match=r"too few rights .*CREATE USER") as caught:
            make_role(address(poor), "backpressure_other", f"new-{PASSWORD}")
        assert caught.value.__cause__ is None
        assert f"new-{PASSWORD}" not in str(caught.value)
