"""One cell: the hydrations of `dags/`, run by the Airflow whose interpreter runs this file.

Reads what to do as JSON from its input, and writes one line of JSON for each hydration: its name, and empty text or
what went wrong. One of them is held back: its memory is read, its task is marked as failed and ends its work in Spark,
and cleared while the hydration is paused it is deferred until that is resumed, although the triggerer is killed. Then
its task and the scheduler are killed while a range is read, and another try of the task continues. At last it is looked
whether others can see it: in the providers' list, the page, asset events with the frontier, metrics and the commands.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

from dev.airflow import Airflow, AirflowError

DAGS = Path(__file__).parent / "dags"
MANAGER = "airflow_provider_backpressure.ledger.db_manager.BackpressureDBManager"
FLOWS = ("copy", "sql", "python", "kafka", "parquet")
HELD = "matrix_held"
LANE = "hydrate_orders.hydrate_ranges"
SECONDS = 900.0
"""How long a hydration may take."""
SILENCE = 5.0
"""Seconds without a sign after which nobody waits any more."""


def main() -> None:
    """Start Airflow with the ledger's tables, run all hydrations, and end it."""
    wanted = json.load(sys.stdin)
    hold = Path(wanted["home"]) / "hold"
    hold.touch()
    heard = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    heard.bind(("127.0.0.1", 0))
    metrics: set[str] = set()
    Thread(target=_listen, args=(heard, metrics), daemon=True).start()
    airflow = Airflow(
        home=Path(wanted["home"]),
        dags=DAGS,
        metadata_url=wanted["metadata"],
        connections=wanted["connections"],
        settings={
            "MATRIX_SCHEMA": wanted["schema"],
            "MATRIX_LAKE": wanted["lake"],
            "MATRIX_HOLD": str(hold),
            "AIRFLOW__METRICS__STATSD_ON": "True",
            "AIRFLOW__METRICS__STATSD_HOST": "127.0.0.1",
            "AIRFLOW__METRICS__STATSD_PORT": str(heard.getsockname()[1]),
            # Airflow 3.1 does not ask providers for them.
            "AIRFLOW__DATABASE__EXTERNAL_DB_MANAGERS": MANAGER,
            # A task that is killed together with its scheduler is only missed.
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30",
            # What that scheduler had queued is found once it counts as dead, by default after five minutes.
            "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "15",
            # The package is the installed one, not that of the checkout which this file is run from.
            "PYTHONPATH": "",
            **wanted["settings"],
        },
    )
    airflow.command("db", "migrate")
    try:
        # One that does not come up in time has left processes as well.
        airflow.start()
        runs: dict[str, str] = {}
        for flow in FLOWS:
            airflow.wait_for_dag(f"matrix_{flow}")
            runs[flow] = airflow.trigger(f"matrix_{flow}")
        for flow, run_id in runs.items():
            print(json.dumps([flow, _failure(airflow, f"matrix_{flow}", run_id)]), flush=True)
        print(json.dumps(["held", _interrupt(airflow, hold, applications="SPARK_HOME" in wanted["settings"])]))
        print(json.dumps(["others", _find_unseen(airflow, metrics)]))
    finally:
        airflow.stop()


def _interrupt(airflow: Airflow, hold: Path, *, applications: bool) -> str:
    """Run the hydration that is held back and return what went wrong, empty where all is well.

    Executors of a server show their memory while a range moves, those of an application what it took in the end.
    """
    airflow.wait_for_dag(HELD)
    run_id = airflow.trigger(HELD)
    path, waits = f"/api/v2/dags/{HELD}/dagRuns/{run_id}/taskInstances/{LANE}", hold.with_suffix(".waits")

    def hydration() -> dict[str, Any]:
        found = airflow.request("GET", f"/backpressure/api/hydrations?dag_id={HELD}")["hydrations"]
        return dict(found[0]) if found else {}

    def task() -> dict[str, Any]:
        return dict(airflow.request("GET", path))

    def is_read() -> bool:
        return time.time() - waits.stat().st_mtime < SILENCE

    def steer(act: str) -> None:
        airflow.request(
            "POST", f"/backpressure/api/hydrations/{hydration()['id']}/{act}", {"why": "a cell of the matrix"}
        )

    try:
        _until(waits.exists, "no row arrived at the executors")
        if not applications:
            _until(lambda: hydration().get("memory_used"), "no memory was read")
        airflow.request("PATCH", path, {"new_state": "failed"})
        _until(lambda: not is_read(), "its work in Spark was not interrupted")
        steer("pause")
        again = {
            "dry_run": False,
            "dag_run_id": run_id,
            "task_ids": [LANE],
            "include_downstream": True,
            "only_failed": False,
        }
        airflow.request("POST", f"/api/v2/dags/{HELD}/clearTaskInstances", again)
        _until(lambda: task()["state"] == "deferred", "its task was not deferred while it was paused")
        airflow.kill("triggerer")
        airflow.restart("triggerer")
        steer("resume")
        _until(is_read, "its range was not read again")
        killed = task()
        os.kill(killed["pid"], signal.SIGKILL)
        airflow.kill("scheduler", with_tasks=True)
        hold.unlink()
        airflow.restart("scheduler")
        if wrong := _failure(airflow, HELD, run_id):
            return wrong
        if task()["try_number"] == killed["try_number"]:
            return "no other try of its task has continued"
        # Of applications nothing may be known where all ranges were shorter than Spark's heartbeat.
        known = [
            airflow.request("GET", f"/backpressure/api/hydrations/{one['id']}")["range_memory_bytes"]
            for one in airflow.request("GET", "/backpressure/api/hydrations")["hydrations"]
        ]
        return "" if any(known) else "what a range takes of an executor was not learned"
    except TimeoutError as error:
        return str(error)


def _find_unseen(airflow: Airflow, metrics: set[str]) -> str:
    """Return what others cannot see, empty where they see all."""
    program = [str(Path(sys.executable).parent / "airflow-backpressure"), "status", "--output", "json"]
    done = subprocess.run(program, env=airflow.environment, capture_output=True, text=True, check=True)
    states = {one["state"] for one in json.loads(done.stdout)}
    events = airflow.request("GET", "/api/v2/assets/events?source_dag_id=matrix_copy")["asset_events"]
    there = airflow.command("providers", "list", "--output", "json")
    asked = urllib.request.Request(
        f"{airflow.url}/backpressure/", headers={"Authorization": f"Bearer {airflow.token()}"}
    )
    with urllib.request.urlopen(asked, timeout=30) as answer:
        page = answer.read().decode()
    found = {
        "the providers' list has no such package": "airflow-provider-backpressure" in there,
        "there is no page": "<title>" in page,
        f"the command shows {states}": states == {"succeeded", "following"},
        "no asset event has the frontier": any("frontier" in one["extra"] for one in events),
        "no metric was sent": bool(metrics),
    }
    return "; ".join(wrong for wrong, good in found.items() if not good)


def _listen(heard: socket.socket, metrics: set[str]) -> None:
    """Keep the names of this package's metrics."""
    while True:
        name = heard.recv(65536).decode().partition(":")[0]
        if "backpressure" in name:
            metrics.add(name)


def _until(look: Callable[[], object], otherwise: str) -> None:
    deadline = time.monotonic() + SECONDS / 3
    while not look():
        if time.monotonic() > deadline:
            raise TimeoutError(otherwise)
        time.sleep(0.3)


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
