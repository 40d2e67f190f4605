"""How a table is stored: its files and columns under a lock, so that what changes them from then on is noticed."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg
from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.catalog import NOT_NULL
from airflow_provider_backpressure.connectors.postgres.connect import Connection, Row, Session, run_together
from airflow_provider_backpressure.connectors.postgres.identifiers import QualifiedName
from airflow_provider_backpressure.core.snapshot.table_alterations import StoredColumn, TableStorage
from airflow_provider_backpressure.exceptions import PlanOutdated, SourceUnavailable

LOCK_SECONDS = 30
"""Longest wait of the control side for a statement that has locked the table."""
LOCKABLE = "rp"
"""Kinds that LOCK TABLE takes, with all partitions and children; a view is locked by a query of it."""


def lock_statement(
    table: QualifiedName, kind: str, columns: Sequence[str], where: str | None, *, may_select: bool
) -> str:
    """Return the statement that locks all that a read touches.

    LOCK TABLE is cheap, but needs the right to read every column, and knows nothing of tables that a condition asks.
    """
    if kind in LOCKABLE and where is None and may_select:
        return _build_lock(table)
    name = sql.SQL(table.sql)
    condition = sql.SQL(" WHERE ({}\n)").format(sql.SQL(where)) if where is not None else sql.SQL("")
    query = sql.SQL("SELECT {} FROM {}{} LIMIT 0")
    return query.format(sql.SQL(", ").join(map(sql.Identifier, columns)), name, condition).as_string(None)


def may_select(session: Session, table: QualifiedName) -> bool:
    """Whether our role may read the whole of it, whatever columns it gets."""
    return bool(session.value(_MAY_SELECT, (table.sql,)))


def _build_lock(table: QualifiedName) -> str:
    return sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(sql.SQL(table.sql)).as_string(None)


def read_storage(session: Session, table: QualifiedName, lock: str) -> TableStorage:
    """Return how the table is stored: after every statement whose commit is seen anywhere, in the log too.

    A commit can be in the log before readers see it, but its locks are released only afterwards.
    """
    # The role's own default may be a level at which the catalogue is seen as it was before the lock.
    prepare = (
        sql.SQL("SET TRANSACTION ISOLATION LEVEL READ COMMITTED"),
        sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(f"{LOCK_SECONDS}s")),
    )
    name = (table.sql,)
    questions = (sql.SQL(_LOCKED), (_STORED_COLUMNS, name), (_KEYS, name))

    def read(connection: Connection) -> TableStorage:
        if lock == _build_lock(table):
            with _translate_wait(str(table)):
                *_, locked, columns, keys = run_together(connection, *prepare, sql.SQL(lock), *questions)
        else:
            # It has a user's condition in it, and goes alone.
            with connection.transaction():
                run_together(connection, *prepare)
                lock_relations(connection, str(table), lock)
                locked, columns, keys = run_together(connection, *questions)
        return _build_storage(table, lock, locked, columns, keys)

    return session.read(read)


def _build_storage(
    table: QualifiedName, lock: str, locked: Sequence[Row], columns: Sequence[Row], keys: Sequence[Row]
) -> TableStorage:
    return TableStorage(
        table=str(table),
        lock=lock,
        relations=tuple((number, file) for number, file in locked),
        columns=tuple(
            StoredColumn(name=name, number=number, version=version, filled=filled, generated=generated)
            for name, number, version, filled, generated, dropped in columns
            if not dropped
        ),
        keys=tuple(number for (number,) in keys),
        highest=max((column[1] for column in columns), default=0),
        dropped=tuple(number for _, number, *_, dropped in columns if dropped),
    )


def check_same_files(planned: TableStorage, relations: tuple[tuple[int, int], ...]) -> None:
    """Raise ``PlanOutdated`` where a snapshot no longer shows the rows that the table had at its moment."""
    if relations != planned.relations:
        raise PlanOutdated(
            f"{planned.table} was rewritten or exchanged since its plan, so a snapshot no longer shows all of its rows "
            "(TRUNCATE, ALTER TABLE, VACUUM FULL, CLUSTER, pg_repack, partitions that came or went, or a new table "
            "under its name)."
        )


def find_other_columns(connection: psycopg.Connection, planned: TableStorage) -> list[str]:
    """Return what of the planned names is another table or column by now, as parts of a sentence.

    Columns are dropped and added again, or renamed. Rows keep the values of a dropped column, and no file changes; a
    query by the name gives those of the new one. Asked by an empty query, since the catalogue is as old as the snapshot
    inside of one. The query locks the table.
    """
    if not planned.columns:
        return []
    query = sql.SQL("SELECT {} FROM {} LIMIT 0").format(
        sql.SQL(", ").join([sql.Identifier(column.name) for column in planned.columns]),
        sql.SQL(QualifiedName.parse(planned.table).sql),
    )
    result = connection.execute(query).pgresult
    assert result is not None, "a statement was run"
    if planned.number is not None and result.ftable(0) != planned.number:
        return ["it is another table, dropped and made again or renamed"]
    return [
        f"column {column.name} is another one, which was added or renamed"
        for at, column in enumerate(planned.columns)
        if result.ftablecol(at) != column.number
    ]


def find_nullable(connection: psycopg.Connection, planned: TableStorage) -> list[str]:
    """Return which columns that the plan took for NOT NULL no longer are, as parts of a sentence.

    No range of such a plan has the rows without a value. The catalogue is as old as the rows: inside a snapshot too.
    """
    if not planned.not_null:
        return []
    name = QualifiedName.parse(planned.table).sql
    found = connection.execute(_NULLABLE, (name, list(planned.not_null))).fetchall()
    return [f"column {column} may be NULL, which it might not when the table was planned" for (column,) in found]


def lock_relations(connection: psycopg.Connection, table: str, lock: str) -> tuple[tuple[int, int], ...]:
    """Lock all that a read touches until the transaction ends, and return number and file of each.

    Inside a snapshot the catalogue is as old as the snapshot. The server's list of locks and its functions for files
    are not: they say how things are now, and under the lock they stay so.
    """
    with _translate_wait(table):
        connection.execute(lock.encode(), binary=True)
    return tuple((number, file) for number, file in connection.execute(_LOCKED).fetchall())


@contextmanager
def _translate_wait(table: str) -> Iterator[None]:
    try:
        yield
    except psycopg.errors.LockNotAvailable as error:
        raise SourceUnavailable(
            f"{table} is locked in the source by a statement such as ALTER TABLE, TRUNCATE or VACUUM FULL, which did "
            "not end in time: it is tried again."
        ) from error


_NULLABLE = sql.SQL(
    """
    SELECT a.attname::text FROM pg_attribute a
    WHERE a.attrelid = %s::regclass AND a.attname = ANY (%s) AND a.attnum > 0 AND NOT ({not_null})
    ORDER BY a.attnum
    """
).format(not_null=NOT_NULL)
_MAY_SELECT = sql.SQL("SELECT has_table_privilege(%s::regclass, 'SELECT')")
# A query locks indexes too, which REINDEX may exchange at any time.
_LOCKED = """
    SELECT DISTINCT l.relation::bigint, coalesce(pg_relation_filenode(l.relation), 0)::bigint
    FROM pg_locks l JOIN pg_database d ON d.oid = l.database
    WHERE l.pid = pg_backend_pid() AND l.granted AND l.locktype = 'relation' AND l.mode = 'AccessShareLock'
      AND d.datname = current_database() AND l.relation >= 16384
      AND pg_index_has_property(l.relation, 'clusterable') IS NULL
    ORDER BY 1
"""
_KEYS = sql.SQL(
    """
    SELECT i.indexrelid::bigint FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
    WHERE i.indrelid = %s::regclass AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL
      AND (i.indisprimary OR i.indisreplident OR c.relreplident = 'f' OR i.indkey::int2[] <@ (
          SELECT d.indkey::int2[] FROM pg_index d
          WHERE d.indrelid = c.oid AND CASE c.relreplident WHEN 'i' THEN d.indisreplident ELSE d.indisprimary END))
    ORDER BY 1
    """
)
_STORED_COLUMNS = sql.SQL(
    """
    SELECT attname::text, attnum::int, xmin::text, atthasmissing, attgenerated <> '', attisdropped
    FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 ORDER BY attnum
    """
)
