"""Several tables of one source: a hydration each, so that a bad one stops alone."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from airflow.sdk import TaskGroup, task_group

from airflow_provider_backpressure.core.table_selection import placeholder
from airflow_provider_backpressure.exceptions import InvalidDeclaration
from airflow_provider_backpressure.operators import ListTablesOperator
from airflow_provider_backpressure.operators.list_tables import each_target

LABEL = "{{ task.source.table }}"
"""What Airflow shows for a mapped task: the table that it is about."""


def hydrate_tables(
    hydrate: Callable[..., TaskGroup], source: Any, sink: Any, *, group_id: str | None, **options: Any
) -> TaskGroup:
    """Return a group with a hydration for each table that the source names, or that its pattern means at run time."""
    field = placeholder(sink)

    def one(table: Any, target: Any, **group: Any) -> TaskGroup:
        alone = {"source": replace(source, table=table, tables=()), "sink": replace(sink, **{field: target})}
        return hydrate(**alone, **options, **group)

    with TaskGroup(group_id or "hydrate_tables", add_suffix_on_collision=group_id is None) as group:
        if not isinstance(source.tables, str):
            named = [source.parse_name(table) for table in source.tables]
            for table, target in each_target(source, sink, named).items():
                one(table, target)
            return group
        if options["lanes"] != 1 or options["task_per_range"]:
            raise InvalidDeclaration("A pattern of tables has one lane for each: leave out lanes and task_per_range.")
        listed = ListTablesOperator(task_id="list_tables", source=source, sink=sink)

        @task_group(group_id="each", default_args={"map_index_template": LABEL})
        def each(table: str, target: str) -> None:
            one(table, target, group_id="hydrate")

        each.expand_kwargs(listed.output)
    return group
