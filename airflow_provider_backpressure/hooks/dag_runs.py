"""What Airflow knows of a DAG run."""

from collections.abc import Sequence

UNDER_WAY = ("queued", "running")
"""States of a run that may still do something by itself."""


def under_way(dag_id: str, run_id: str) -> bool:
    """Whether Airflow has this run queued or running: not where it has ended or was deleted.

    To be asked in a task or a trigger only; ``AirflowRuntimeError`` where Airflow's API does not answer.
    """
    return _is_in(dag_id, run_id, UNDER_WAY)


def is_running(dag_id: str, run_id: str) -> bool:
    """Whether Airflow has this run running; asked as :func:`under_way`.

    A run that was cleared is queued, and may be so for as long as the run that asks is running: where a DAG has one
    active run at a time, the two would wait for each other.
    """
    return _is_in(dag_id, run_id, ("running",))


def _is_in(dag_id: str, run_id: str, states: Sequence[str]) -> bool:
    # Not at the top: it is Airflow's machinery of a running task, which parsing a DAG does not need.
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    return RuntimeTaskInstance.get_dr_count(dag_id=dag_id, run_ids=[run_id], states=list(states)) > 0
