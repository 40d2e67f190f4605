"""One cell: the hydrations of `dags/`, run by the Airflow whose interpreter runs this file.

Reads what to do as JSON from its input, and writes one line of JSON for each hydration: its name, and empty text or
what went wrong.
"""

import json
import sys
import time
from pathlib import Path

from dev.airflow import Airflow, AirflowError

DAGS = Path(__file__).parent / "dags"
MANAGER = "airflow_provider_backpressure.ledger.db_manager.BackpressureDBManager"
FLOWS = ("copy", "sql", "python", "kafka", "parquet")
SECONDS = 900.0
"""How long a hydration may take."""


def main() -> None:
    """Start Airflow with the ledger's tables, run all hydrations, and end it."""
    wanted = json.load(sys.stdin)
    airflow = Airflow(
        home=Path(wanted["home"]),
        dags=DAGS,
        metadata_url=wanted["metadata"],
        connections=wanted["connections"],
        settings={
            "MATRIX_SCHEMA": wanted["schema"],
            "MATRIX_LAKE": wanted["lake"],
            # Airflow 3.1 does not ask providers for them.
            "AIRFLOW__DATABASE__EXTERNAL_DB_MANAGERS": MANAGER,
            # The package is the installed one, not that of the checkout which this file is run from.
            "PYTHONPATH": "",
            **wanted["settings"],
        },
    )
    airflow.command("db", "migrate")
    airflow.start()
    try:
        runs: dict[str, str] = {}
        for flow in FLOWS:
            airflow.wait_for_dag(f"matrix_{flow}")
            runs[flow] = airflow.trigger(f"matrix_{flow}")
        for flow, run_id in runs.items():
            print(json.dumps([flow, _failure(airflow, f"matrix_{flow}", run_id)]), flush=True)
    finally:
        airflow.stop()


def _failure(airflow: Airflow, dag_id: str, run_id: str) -> str:
    """Wait for the end of a run and return the tasks that failed, empty where all is well."""
    deadline = time.monotonic() + SECONDS
    while (state := airflow.run_state(dag_id, run_id)) not in ("success", "failed"):
        if time.monotonic() > deadline:
            return f"still {state} after {SECONDS:.0f} s"
        time.sleep(0.5)
    states = airflow.task_states(dag_id, run_id)
    failed = [task for task, reached in states.items() if reached in ("failed", "upstream_failed")]
    return "" if state == "success" else f"failed: {', '.join(failed)}"


if __name__ == "__main__":
    try:
        main()
    except AirflowError as error:
        sys.exit(str(error))
