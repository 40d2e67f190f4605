"""What Airflow knows of a DAG run."""

UNDER_WAY = ("queued", "running")
"""States of a run that may still do something by itself."""


def under_way(dag_id: str, run_id: str) -> bool:
    """Whether Airflow has this run queued or running: not where it has ended or was deleted.

    To be asked in a task or a trigger only; ``AirflowRuntimeError`` where Airflow's API does not answer.
    """
    # Not at the top: it is Airflow's machinery of a running task, which parsing a DAG does not need.
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    return RuntimeTaskInstance.get_dr_count(dag_id=dag_id, run_ids=[run_id], states=list(UNDER_WAY)) > 0
