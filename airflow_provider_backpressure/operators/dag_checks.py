"""What is checked of a whole DAG while it is parsed: hydrations that it has twice, and schedules that do nothing."""

import warnings
from collections.abc import Iterable
from typing import Any

from airflow_provider_backpressure.exceptions import InvalidDeclaration

PLANNED_BY = "_backpressure_planned_by"
"""Attribute of a DAG: the task that plans each hydration."""
READ_ONCE = (
    "DAG {} has a schedule, but what it hydrates is read once, and later runs do nothing: use refresh='each_run' with "
    "mode='replace' or mode='upsert' to read it again, mode='mirror' to write only what differs, increment_column= or "
    "consistency='catch_up' to read what is new, or refresh='once' if one copy is meant."
)


def check_planned_once(task: Any, names: Iterable[tuple[object, ...]]) -> None:
    """Refuse a second plan of one hydration in a DAG: both would take the target from each other."""
    if not task.has_dag():
        return
    # With the DAG, so that a DAG of many tasks is not searched for each of them.
    known: dict[tuple[object, ...], str] = vars(task.dag).setdefault(PLANNED_BY, {})
    for name in names:
        other = known.setdefault(name, task.task_id)
        if other != task.task_id:
            _, table, _, _, target = name
            raise InvalidDeclaration(
                f"DAG {task.dag_id!r} hydrates {target} from {table} in {other} already: leave one of them out."
            )


def warn_if_read_once(dag: Any, *, stacklevel: int) -> None:
    """Warn where a DAG has a schedule, and its later runs would do nothing."""
    if dag.schedule not in (None, "@once"):
        warnings.warn(READ_ONCE.format(dag.dag_id), UserWarning, stacklevel=stacklevel + 1)
