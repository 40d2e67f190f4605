"""One host and no server: the ledger in Airflow's own SQLite file."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system


def test_the_ledger_lives_in_airflow_s_sqlite_file(tmp_path: Path):
    """``setup`` says what is missing, and after ``airflow db migrate`` makes a connection that leads to the file."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")},
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }

    def airflow(*words: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "airflow", *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    early = airflow("backpressure", "setup")
    file = tmp_path / "airflow.db"
    assert (early.returncode, early.stdout) == (1, "")
    assert early.stderr == f"The ledger's tables are missing in {file}: run `airflow db migrate`.\n"

    assert airflow("db", "migrate").returncode == 0
    made = airflow("backpressure", "setup")
    assert (made.returncode, made.stderr) == (0, "")
    assert made.stdout == (f"The ledger's tables are in {file}.\nThe connection backpressure_default leads to them.\n")
    found = airflow("backpressure", "doctor", "--output", "json")
    assert found.returncode == 0
    assert {one["result"] for one in json.loads(found.stdout)} == {"ok"}
