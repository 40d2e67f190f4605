"""Whether a table of files may hold several versions of a row: of all plans whose rows are still in it."""

from dataclasses import replace

from airflow_provider_backpressure.connectors.lake.base_table import LakeTable
from airflow_provider_backpressure.connectors.lake.last_row_per_key import of_window
from airflow_provider_backpressure.core.config import Mode
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.topic_offsets import LogWindow


def version_columns(plan: Plan) -> tuple[str, ...]:
    """Return the columns that distinguish versions of a row, once a plan that holds a table has been landed.

    They are those of its source and of the rows before, and where it appends a log or increments, those of that too.
    """
    return _join(plan.versions, _list_appended(plan))


def inherit_versions(table: LakeTable, plan: Plan, *, clear: str | None) -> Plan:
    """Return a plan that is about to take a table, with the versions of the rows that stay there.

    ``clear``: the plan all of whose rows go; no row of another one is left then.
    """
    holder = table.holder()
    before = holder.row(committed=0).plan if holder is not None else None
    kept = version_columns(before) if before is not None and clear is None else ()
    return replace(plan, versions=_join(kept, plan.versions)) if kept and table.holds_rows() else plan


def _list_appended(plan: Plan) -> tuple[str, ...]:
    window = plan.read.window
    if window is None or plan.mode is Mode.UPSERT or not (plan.increment or LogWindow.from_window(window)):
        return ()
    return of_window(window)


def _join(*parts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for part in parts for name in part))
