"""What the product keeps beside a target: rows in its own tables, and tables that only it fills."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.connect import Connection, Session, run_together
from airflow_provider_backpressure.connectors.postgres.identifiers import QualifiedName
from airflow_provider_backpressure.connectors.postgres.sink.checks import (
    describe_undurable,
    list_undurable,
)
from airflow_provider_backpressure.connectors.postgres.sink.plan_row import find_numbers, is_another, mark_consistent
from airflow_provider_backpressure.connectors.postgres.sink.range_conditions import (
    find_range_index,
    try_to_drop_range_index,
)
from airflow_provider_backpressure.connectors.postgres.sink.sequences import advance, find_sequences
from airflow_provider_backpressure.connectors.postgres.sink.shadow_table import drop_shadows, shadows_of
from airflow_provider_backpressure.connectors.postgres.sink.system_tables import SystemTable
from airflow_provider_backpressure.connectors.postgres.sink.upsert_checks import KEYED
from airflow_provider_backpressure.connectors.relational.errors import where
from airflow_provider_backpressure.core.config import Consistency, Mode
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.exceptions import RESTART, SinkRefused


def write_probe_comment(like: QualifiedName) -> str:
    """Return the comment on the table that a probe fills beside a target: it says that the table may be dropped."""
    return f"backpressure: filled by a probe of {like}, to be dropped"


@dataclass(frozen=True, kw_only=True)
class Traces:
    """Those of one target."""

    target: QualifiedName
    tables: Sequence[QualifiedName]
    """The product's own, in the order in which writers lock them; that of the plans is the first."""

    def found(self, connection: Connection) -> tuple[str, ...]:
        """Name them."""
        there = self._there(connection)
        rows = [(table, self._rows(connection, table)) for table in there]
        kept = [f"{table}: {number} rows of {self.target}" for table, number in rows if number]
        empty = [f"{table}: empty" for table in self._find_unused(connection, there)]
        shadows = [
            f"{name}: what was to take the place of {self.target}" for name in shadows_of(connection, self.target)
        ]
        probed = [f"{name}: filled by a probe of {self.target}" for name in self._scratch(connection)]
        return (*kept, *empty, *shadows, *probed)

    def erase(self, connection: Connection) -> None:
        """Remove them, in one transaction. With the last target's plan our tables go, where they are our role's."""
        scratch, there = self._scratch(connection), self._there(connection)
        fences = [str(self.target), *map(str, scratch)]
        for table in there:
            at = sql.SQL(table.sql)
            connection.execute(sql.SQL("DELETE FROM {} WHERE target = ANY (%s)").format(at), (fences,))
        # A process that begins another plan meanwhile is waited for, so that its tables stay.
        for table in filter(self._find_owned(connection), there):
            connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(sql.SQL(table.sql)))
        for table in self._find_unused(connection, there):
            connection.execute(sql.SQL("DROP TABLE {}").format(sql.SQL(table.sql)))
        drop_shadows(connection, shadows_of(connection, self.target), but=None)
        for name in scratch:
            connection.execute(sql.SQL("DROP TABLE {}").format(sql.SQL(name.sql)))

    def _rows(self, connection: Connection, table: QualifiedName) -> int:
        query = sql.SQL("SELECT count(*) FROM {} WHERE target = %s").format(sql.SQL(table.sql))
        row = connection.execute(query, (str(self.target),)).fetchone()
        return 0 if row is None else int(row[0])

    def _find_unused(self, connection: Connection, there: list[QualifiedName]) -> list[QualifiedName]:
        """Return our tables where no plan is left at all: the empty ones, as far as they are our role's."""
        if self.tables[0] in there and not _is_empty(connection, self.tables[0]):
            return []
        return [table for table in filter(self._find_owned(connection), there) if _is_empty(connection, table)]

    def _there(self, connection: Connection) -> list[QualifiedName]:
        return [table for table in self.tables if connection.execute(_THERE, (table.schema, table.name)).fetchone()]

    def _find_owned(self, connection: Connection) -> Callable[[QualifiedName], bool]:
        def is_owned(table: QualifiedName) -> bool:
            row = connection.execute(_THERE, (table.schema, table.name)).fetchone()
            return row is not None and bool(row[0])

        return is_owned

    def _scratch(self, connection: Connection) -> list[QualifiedName]:
        values = (self.target.schema, write_probe_comment(self.target))
        return [
            QualifiedName(schema=self.target.schema, name=name)
            for (name,) in connection.execute(_SCRATCH, values).fetchall()
        ]


def _is_empty(connection: Connection, table: QualifiedName) -> bool:
    return connection.execute(sql.SQL("SELECT FROM {} LIMIT 1").format(sql.SQL(table.sql))).fetchone() is None


_THERE = sql.SQL(
    """
    SELECT pg_has_role(c.relowner, 'USAGE')
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p')
    """
)
_SCRATCH = sql.SQL(
    """
    SELECT c.relname
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %s AND c.relkind = 'r' AND obj_description(c.oid, 'pg_class') = %s
      AND pg_has_role(c.relowner, 'USAGE')
    ORDER BY 1
    """
)


log = logging.getLogger(__name__)


def check_history(session: Session, target: QualifiedName, plans: SystemTable, others: Sequence[QualifiedName]) -> None:
    """Raise ``SinkRefused`` where a target no longer has what its plans wrote, or may have lost some of it."""
    undurable, numbers = list_undurable(target, others), find_numbers(plans, fence=str(target), target=target)

    def look(connection: Connection) -> tuple[bool, list[str]]:
        try:
            found = run_together(connection, numbers, *undurable)
        except psycopg.errors.UndefinedTable:
            # Without a table of plans nothing is known of the target's.
            found = [[], *run_together(connection, *undurable)]
        return is_another(found[0]), describe_undurable(found[-1])

    another, lost = session.read(look)
    at = f"{target} in {where(session.endpoint)}"
    if another:
        why = "is not the table that its plans wrote: it was dropped or created again, and lacks their rows"
        raise SinkRefused(f"{at} {why}; {RESTART}.")
    if lost:
        raise SinkRefused(f"{at} may have lost rows that its plans wrote: {'; '.join(lost)}.")


def complete_table(session: Session, table: QualifiedName, columns: Sequence[str]) -> None:
    """Let a table's sequences continue after its rows, and drop the index of ranges; most tables have neither."""
    asked = find_sequences(table, columns), find_range_index(table)
    sequences, index = session.read(lambda each: run_together(each, *asked))
    if sequences:
        session.transaction(lambda each: advance(each, table, columns, shown=table))
    if index != [(None,)]:
        try_to_drop_range_index(session, table)


def remove_rows(connection: Connection, target: QualifiedName, commits: SystemTable, *, plan_id: str) -> None:
    """Empty a target that was empty before the plan, in the transaction that fences it.

    ``SinkRefused`` where it holds other rows than the plan's markers count: somebody else has written too.
    """
    table = sql.SQL(target.sql)
    if not count_rows(connection, target, commits, plan_id=plan_id)[0]:
        return
    # TRUNCATE waits for writers, and then removes what they have committed: rows are counted behind them.
    connection.execute(sql.SQL("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE").format(table))
    held, written = count_rows(connection, target, commits, plan_id=plan_id)
    if held != written:
        raise SinkRefused(
            f"{target} holds {held} rows and the closed plan {plan_id} wrote {written} of them: it cannot be cleared. "
            "Empty it manually."
        )
    log.warning("%s is cleared: its %s rows were read in a snapshot that is gone.", target, held)
    may_truncate = connection.execute("SELECT has_table_privilege(%s, 'TRUNCATE')", (target.sql,)).fetchone()
    if may_truncate and may_truncate[0]:
        connection.execute(sql.SQL("TRUNCATE {}").format(table))
    else:
        delete_rows(connection, target)


def remove_range(
    connection: Connection, target: QualifiedName, plans: SystemTable, plan: Plan, kept: Sequence[sql.Composable]
) -> int:
    """Delete a plan's rows for which all conditions hold, where a range is to be read again, and return how many.

    Rows stay where others may have rows between them, and reading the range replaces them by key. Where another
    snapshot continues the plan, the target holds its rows only, and those that their source has deleted have to go, as
    they do in the other ranges. A table that is followed has no rows of others either, and a row that its source does
    not have would stay for ever. But where it has a slot of its own, its windows may be planned before the ledger has
    the range back, and no window would bring the rows.
    """
    if plan.consistency is not Consistency.CATCH_UP or not plan.stream:
        stay = plan.mode is Mode.MIRROR or (plan.mode in KEYED and not plan.survives)
        return 0 if stay else delete_rows(connection, target, kept)
    mark_consistent(connection, plans, fence=str(target), plan=plan, consistent=False)
    return delete_rows(connection, target, kept)


def delete_rows(connection: Connection, target: QualifiedName, kept: Sequence[sql.Composable] = ()) -> int:
    """Delete the rows for which all conditions hold, and return how many.

    ``SinkRefused`` where a foreign key would change rows of another table with them, which no later row brings back.
    """
    found = connection.execute(_CASCADES, (target.sql,) * 3).fetchone()
    if found is not None:
        raise SinkRefused(
            f"Rows of {target} cannot be removed: the foreign key {found[0]} of {found[1]} would delete or change rows "
            f"there too. Drop it for that time, or empty both tables and {RESTART}."
        )
    heir = connection.execute(_HEIRS, (target.sql,)).fetchone()
    if heir is not None:
        raise SinkRefused(
            f"Rows of {target} cannot be removed: {heir[0]} inherits from it, and rows of that would go with them. "
            f"End that by ALTER TABLE {heir[0]} NO INHERIT {target}."
        )
    statement = sql.SQL("DELETE FROM {}").format(sql.SQL(target.sql))
    if kept:
        statement += sql.SQL(" WHERE ") + sql.SQL(" AND ").join(kept)
    return connection.execute(statement).rowcount


def count_rows(connection: Connection, table: QualifiedName, commits: SystemTable, *, plan_id: str) -> tuple[int, int]:
    """Return how many rows a table holds, and how many a plan has written by its markers, at the same moment."""
    query = sql.SQL(
        "SELECT (SELECT count(*) FROM {}), coalesce(sum(rows), 0)::bigint FROM {} WHERE plan_id = %s"
    ).format(sql.SQL(table.sql), sql.SQL(commits.name.sql))
    found = connection.execute(query, (plan_id,)).fetchone()
    assert found is not None, "an aggregate gives a row"
    return found[0], found[1]


def describe_surplus(name: QualifiedName, held: int, written: int) -> str:
    """Return a sentence about rows that a plan did not write; empty where there are none."""
    if held <= written:
        return ""
    return (
        f"{name} holds {held} rows, and the plan wrote {written} of them: remove the others, such as those whose key "
        "is NULL, or empty the table and plan again"
    )


_HEIRS = sql.SQL(
    """
    SELECT i.inhrelid::regclass::text FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = %s::regclass AND NOT c.relispartition ORDER BY 1 LIMIT 1
    """
)
_CASCADES = sql.SQL(
    """
    SELECT quote_ident(k.conname), k.conrelid::regclass::text
    FROM pg_constraint k
    WHERE k.contype = 'f' AND k.confdeltype IN ('c', 'n', 'd')
      AND k.confrelid IN (SELECT %s::regclass UNION SELECT relid FROM pg_partition_ancestors(%s::regclass)
                          UNION SELECT relid FROM pg_partition_tree(%s::regclass))
    ORDER BY 1, 2 LIMIT 1
    """
)
