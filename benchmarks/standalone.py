"""Tables in ``airflow standalone``: seconds from the trigger of a run to verified tables, and where they go.

``python -m benchmarks.schemas --standalone --tables 5 --rows 60000`` starts PostgreSQL, Spark Connect and Airflow. Once
page, scheduler and triggerer are healthy and the DAG is known, it is triggered.
"""

import time
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg

from benchmarks import report
from dev.airflow import Airflow

HEADING = "Tables in airflow standalone"
LOOK = 0.5
"""Seconds between two looks at the state of the run."""
DEADLINE = 600.0
"""Seconds after which the run counts as stuck."""
_TIMES = """
    SELECT task_id, map_index, start_date, end_date FROM task_instance WHERE dag_id = %s AND run_id = %s ORDER BY 3
"""
_TRIGGERED = "SELECT queued_at FROM dag_run WHERE dag_id = %s AND run_id = %s"


@dataclass(frozen=True, kw_only=True)
class Turnaround:
    """One run, by the times that Airflow has kept."""

    tables: int
    rows: int
    """Of each table."""
    large: int = 0
    """Larger tables beside them."""
    tokens: int
    """Tables that were drained at once."""
    cold: bool = False
    """Whether Spark had not run a job before."""
    seconds: float
    """From the trigger until the last task has ended: every table is verified."""
    waited: dict[str, float]
    """Seconds between what came before a task, at first the trigger, and its start: Airflow's own."""
    tasks: dict[str, float]
    """Seconds of each task instance."""


def run(airflow: Airflow, link: "psycopg.Connection[tuple[Any, ...]]", dag_id: str, **about: Any) -> Turnaround:
    """Start Airflow, trigger the DAG once, and return its times; ``SystemExit`` where a task has failed."""
    airflow.start()
    airflow.wait_for_dag(dag_id)
    run_id, deadline = airflow.trigger(dag_id), time.monotonic() + DEADLINE
    while (state := airflow.run_state(dag_id, run_id)) not in ("success", "failed"):
        if time.monotonic() > deadline:
            raise SystemExit(f"The run is {state} after {DEADLINE:.0f} s: {airflow.task_states(dag_id, run_id)}")
        time.sleep(LOOK)
    if state != "success":
        raise SystemExit(f"The run has failed: {airflow.task_states(dag_id, run_id)}")
    with closing(link.cursor()) as cursor:
        (triggered,) = cursor.execute(_TRIGGERED, (dag_id, run_id)).fetchone() or (None,)
        found = cursor.execute(_TIMES, (dag_id, run_id)).fetchall()
    assert isinstance(triggered, datetime), "the run was triggered"
    return measure(triggered, found, **about)


def measure(triggered: datetime, found: list[tuple[Any, ...]], **about: Any) -> Turnaround:
    """Return the figures of a run whose task instances, in the order of their start, had these times.

    ``found``: name, map index, start and end of each. ``about``: what the run had to do.
    """
    waited, tasks, before = {}, {}, triggered
    for task_id, index, start, end in found:
        name = f"{task_id}[{index}]" if index >= 0 else task_id
        waited[name] = round(max(0.0, (start - before).total_seconds()), 1)
        tasks[name] = round((end - start).total_seconds(), 1)
        before = max(before, end)
    seconds = round((before - triggered).total_seconds(), 1)
    return Turnaround(**about, seconds=seconds, waited=waited, tasks=tasks)


def section(every: list[Turnaround], about: dict[str, str]) -> str:
    """Return the figures as Markdown."""
    head = (
        *("tables", "rows of each", "large ones", "tokens", "Spark"),
        *("planned in s", "drained in s", "verified in s", "between tasks in s", "all in s"),
    )
    lines = [
        (
            f"{found.tables:,}",
            f"{found.rows:,}",
            str(found.large),
            str(found.tokens),
            "cold" if found.cold else "warm",
            *(f"{seconds:,.1f}" for seconds in found.tasks.values()),
            f"{sum(found.waited.values()):,.1f}",
            f"{found.seconds:,.1f}",
        )
        for found in every
    ]
    commands = [
        f"python -m benchmarks.schemas --standalone --tables {found.tables} --rows {found.rows} "
        f"--large {found.large} --tokens {found.tokens}{' --cold' if found.cold else ''}"
        for found in every
    ]
    return "\n".join(
        [
            "PostgreSQL to PostgreSQL, by one task group, from the trigger of the run to verified tables. Scheduler,",
            "API server, triggerer and the processor of DAG files share the machine with all servers, and the session",
            "in Spark is a new one. A cold Spark has not run a job before. What is between tasks is Airflow's own.",
            "\n```sh",
            *commands,
            "```\n",
            report.markdown(head, lines),
            "",
            report.machine(about),
        ]
    )
