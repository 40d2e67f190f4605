"""``plan``: what a DAG's hydrations would be, before anything is written."""

import math
from argparse import Namespace
from types import SimpleNamespace
from typing import Any

from airflow.cli.simple_table import AirflowConsole
from airflow.sdk.exceptions import AirflowException
from airflow.utils.cli import get_bagged_dag

from airflow_provider_backpressure.cli.shell import command
from airflow_provider_backpressure.core.planner import Preview
from airflow_provider_backpressure.exceptions import InvalidDeclaration
from airflow_provider_backpressure.hooks.hydration import Declaration

PLANS = "PlanSnapshotOperator"


@command
def plan(args: Namespace) -> None:
    """Check source, executors and target of each hydration of a DAG, and show its plan; nothing is changed."""
    rows = [_shown(declaration) for declaration in _declarations(args)]
    AirflowConsole().print_as(rows, args.output)


def _declarations(args: Namespace) -> list[Declaration]:
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


def _shown(declaration: Declaration) -> dict[str, Any]:
    with declaration.open() as opened:
        preview = opened.planner().preview()
    snapshot = preview.snapshot
    return {
        "source": snapshot.source_identity,
        "target": opened.sink.identity,
        "mode": declaration.mode.value,
        "consistency": snapshot.consistency.value,
        "rows": snapshot.total,
        "exact": snapshot.total_exact,
        "key": ", ".join(snapshot.key),
        "columns": len(snapshot.columns),
        "range_rows": preview.range_rows,
        "ranges": _ranges(preview),
        "path": preview.path,
        "credits": declaration.budget.credits,
        "python": preview.executors.python,
    }


def _ranges(preview: Preview) -> int | None:
    """Return about how many ranges there will be."""
    total = preview.snapshot.total
    return None if total is None else math.ceil(total / preview.range_rows)
