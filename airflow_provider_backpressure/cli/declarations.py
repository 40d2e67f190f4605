"""From a DAG's id to what its hydrations are declared as: for commands that need the source as a whole."""

from argparse import Namespace
from types import SimpleNamespace
from typing import Any

from airflow.sdk.exceptions import AirflowException
from airflow.utils.cli import get_bagged_dag

from airflow_provider_backpressure.exceptions import InvalidDeclaration
from airflow_provider_backpressure.hooks.hydration_session import Declaration

PLANS = "PlanSnapshotOperator"


def declarations(args: Namespace) -> list[Declaration]:
    """Return the hydrations of a DAG, or of one of its task groups; :class:`InvalidDeclaration` where there is none."""
    try:
        dag = get_bagged_dag(None, args.dag_id)
    except AirflowException as error:
        raise InvalidDeclaration(f"{error}") from error
    prefix = f"{args.task_group}." if args.task_group else ""
    tasks: list[Any] = [task for task in dag.tasks if task.task_type == PLANS and task.task_id.startswith(prefix)]
    if not tasks:
        where = f"The task group {args.task_group!r} of" if prefix else "The DAG"
        raise InvalidDeclaration(f"{where} {args.dag_id!r} plans no hydration.")
    return [_declaration(task, args.dag_id) for task in tasks]


def _declaration(task: Any, dag_id: str) -> Declaration:
    declaration: Declaration = task.declaration({"ti": SimpleNamespace(dag_id=dag_id)})
    texts = (declaration.source.conn_id, declaration.source.table, declaration.sink.conn_id, declaration.sink.table)
    if not all(isinstance(text, str) and "{{" not in text for text in texts):
        raise InvalidDeclaration(f"The names in {task.task_id} are made by a run, so they are not known here.")
    return declaration
