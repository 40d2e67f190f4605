"""Migrations without a server: spelled for every dialect, and without Airflow."""

import subprocess
import sys
from io import StringIO

import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory

from airflow_provider_backpressure.ledger.migration import ALEMBIC_INI
from airflow_provider_backpressure.ledger.models import metadata
from airflow_provider_backpressure.ledger.revision import VERSION_TABLE


@pytest.mark.parametrize("scheme", ["postgresql+psycopg", "sqlite", "mysql+pymysql"])
def test_statements_can_be_printed_for_every_dialect(scheme):
    printed = StringIO()
    config = Config(ALEMBIC_INI, output_buffer=printed)
    config.set_main_option("sqlalchemy.url", f"{scheme}://")
    command.upgrade(config, "head", sql=True)
    for name in metadata.tables:
        assert f"CREATE TABLE {name} " in printed.getvalue()
    assert f"INSERT INTO {VERSION_TABLE} " in printed.getvalue()


def test_there_is_one_head():
    assert len(ScriptDirectory.from_config(Config(ALEMBIC_INI)).get_heads()) == 1


def test_a_ledger_elsewhere_is_migrated_without_airflow(tmp_path):
    """A host that only migrates need not have a working Airflow."""
    script = (
        "import sys\n"
        "from airflow_provider_backpressure.ledger.migration import migrate\n"
        f"migrate('sqlite:///{tmp_path / 'ledger.db'}')\n"
        "print('airflow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    assert done.stderr == ""
