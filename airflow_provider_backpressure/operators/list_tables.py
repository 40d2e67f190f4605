"""``ListTablesOperator``: which tables a source of several has today, and where each goes."""

from collections.abc import Collection
from typing import Any

from airflow.sdk import BaseOperator, Context

from airflow_provider_backpressure.base_operator import airflow_errors
from airflow_provider_backpressure.connectors.postgres.identifiers import quote_if_needed
from airflow_provider_backpressure.core.table_selection import TableName, in_files, placeholder, targets
from airflow_provider_backpressure.exceptions import SourceRefused
from airflow_provider_backpressure.hooks.endpoints import endpoint


def each_target(source: Any, sink: Any, tables: list[TableName]) -> dict[str, str]:
    """Return each table's target by the table, as the sink spells it."""
    spell = quote_if_needed if getattr(sink, "in_sql", False) else in_files
    return targets(tables, getattr(sink, placeholder(sink)), spell=spell)


class ListTablesOperator(BaseOperator):
    """Looks up the tables that a source's pattern means; returns ``[{"table", "target"}, …]`` for ``expand_kwargs``.

    A pattern that means no table fails: it is more likely mistyped than meant.

    :param source: a source with ``tables="schema.pattern*"``
    :param sink: its target, with ``{table}`` in its name
    """

    template_fields: Collection[str] = ()

    def __init__(self, *, source: Any, sink: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        placeholder(sink)
        self.source = source
        self.sink = sink

    def execute(self, context: Context) -> list[dict[str, str]]:
        """Look them up."""
        with airflow_errors():
            found = self.source.found(endpoint(self.source.conn_id, *self.source.conn_types))
            if not found:
                raise SourceRefused(
                    f"No table of {self.source.conn_id} that its login may read is called {self.source.tables}."
                )
            into = each_target(self.source, self.sink, found)
        self.log.info("%s tables are called %s.", len(into), self.source.tables)
        return [{"table": table, "target": target} for table, target in into.items()]
