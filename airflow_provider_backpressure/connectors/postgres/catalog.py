"""What the catalogue says about a table: kind, rights, columns, unique keys. Reads no rows of it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.connect import Connection, Row, Session
from airflow_provider_backpressure.connectors.postgres.identifiers import QualifiedName
from airflow_provider_backpressure.connectors.postgres.key_types import KEY_TYPES, key_cast
from airflow_provider_backpressure.connectors.postgres.type_definitions import read_definitions
from airflow_provider_backpressure.connectors.relational.catalog_table import CatalogTable, TableColumn, TableKey
from airflow_provider_backpressure.core.snapshot.messages import base_type
from airflow_provider_backpressure.core.snapshot.table_storage import StoredColumn, TableStorage
from airflow_provider_backpressure.exceptions import PlanOutdated, SourceUnavailable

ORDINARY, PARTITIONED = "r", "p"
READABLE = frozenset("rpvmf")
"""Kinds that have rows: tables, partitioned and foreign ones, and views."""
KINDS = {
    "r": "a table",
    "p": "a partitioned table",
    "v": "a view",
    "m": "a materialized view",
    "f": "a foreign table",
    "S": "a sequence",
    "i": "an index",
    "I": "a partitioned index",
    "c": "a composite type",
    "t": "a TOAST table",
}


@dataclass(frozen=True, kw_only=True)
class CatalogColumn(TableColumn):
    """One column. Types are spelled as ``format_type`` does with nothing but ``pg_catalog`` on the search path.

    A default is also an identity, a generated value, or the domain's default; a collation is its provider, locale and
    version. Texts are loose under a nondeterministic collation, and of ``citext``.
    """

    coarse = re.compile(r"date|timestamp\([0-2]\).*")

    number: int
    type: str
    definition: str | None
    """What a user's own type is made of, see :mod:`..connectors.postgres.type_definitions`."""
    demanded: bool
    """A row without a value is refused, by the column or by its domain."""
    generated: str | None
    """``column`` or ``identity`` where the database always makes the value itself."""
    rights: frozenset[str]
    """Of SELECT, INSERT and UPDATE, what our role may do with it."""

    @property
    def shown_type(self) -> str:
        """The type."""
        return self.type

    @property
    def is_key(self) -> bool:
        """See :attr:`..relational.catalog_table.TableColumn.is_key`."""
        return key_cast(self.type) is not None


@dataclass(frozen=True, kw_only=True)
class UniqueKey(TableKey):
    """A valid unique index over plain columns and all rows."""

    immediate: bool
    """Not deferrable, so that ON CONFLICT can go by it."""
    nulls_equal: bool
    """Whether two rows without a value are the same key to it: ``NULLS NOT DISTINCT``."""
    ordered: bool
    """Sorted as its columns are, so that ranges of them are found through it."""

    @property
    def obstacle(self) -> str | None:
        """See :attr:`..relational.catalog_table.TableKey.obstacle`."""
        return None if self.ordered else "its index is sorted otherwise than its columns are"


@dataclass(frozen=True, kw_only=True)
class Relation(CatalogTable[QualifiedName, CatalogColumn, UniqueKey]):
    """A table, view … as the catalogue has it."""

    key_types = KEY_TYPES

    oid: int
    temporary: bool
    has_children: bool
    """Other tables inherit from it, and none of them is a partition."""
    schema_usable: bool
    row_security: bool
    """Applies to our role."""
    user_triggers: bool
    rules: bool

    @property
    def is_stored(self) -> bool:
        """See :attr:`..relational.catalog_table.CatalogTable.is_stored`."""
        return self.kind in (ORDINARY, PARTITIONED)

    def find_lacking(self, right: str, names: tuple[str, ...] | list[str]) -> list[str]:
        """Return those of the named columns for which our role has no such right."""
        return [column.name for column in self.columns if column.name in names and right not in column.rights]


def find(session: Session, name: QualifiedName) -> Relation | None:
    """Return what bears this name, or ``None``."""
    return session.transaction(lambda connection: _find(connection, name))


def similar(session: Session, name: QualifiedName) -> QualifiedName | None:
    """Return a table whose name differs in nothing but case: the usual slip."""
    rows = session.rows(_SIMILAR, (name.schema, name.name))
    return QualifiedName(schema=rows[0][0], name=rows[0][1]) if rows else None


def place(session: Session, oid: int) -> str | None:
    """Return what names a table by whatever address it was reached, or ``None`` where our role may not ask."""
    server = session.recall(_SYSTEM_NOTE)
    if server is None:
        if not session.value(_MAY_ASK_SYSTEM):
            return None
        server = "/".join(map(str, session.rows(_SYSTEM)[0]))
        # The same for every table of the database.
        session.note(_SYSTEM_NOTE, server)
    return f"{server}/{oid}"


def find_place(session: Session, name: QualifiedName) -> str | None:
    """Return the :func:`place` of what bears this name; ``None`` where nothing does, too."""
    found = session.rows(_OID, (name.schema, name.name))
    return place(session, found[0][0]) if found else None


def _find(connection: Connection, name: QualifiedName) -> Relation | None:
    connection.execute(sql.SQL("SET LOCAL search_path TO ''"))
    found = connection.execute(_RELATION, (name.schema, name.name)).fetchone()
    if found is None:
        return None
    oid, kind, temporary, has_children, schema_usable, row_security, user_triggers, rules = found
    return Relation(
        oid=oid,
        name=name,
        kind=kind,
        temporary=temporary,
        has_children=has_children,
        schema_usable=schema_usable,
        row_security=row_security,
        user_triggers=user_triggers,
        rules=rules,
        columns=_columns(connection, oid),
        keys=tuple(
            UniqueKey(
                columns=tuple(columns), primary=primary, immediate=immediate, nulls_equal=nulls_equal, ordered=ordered
            )
            for columns, primary, immediate, nulls_equal, ordered in connection.execute(_UNIQUE_KEYS, (oid,))
        ),
        indexed=frozenset(name for (name,) in connection.execute(_INDEXED, (oid,))),
    )


def _columns(connection: Connection, oid: int) -> tuple[CatalogColumn, ...]:
    rows = connection.execute(build_columns_query(connection.info.server_version), (oid,)).fetchall()
    definitions = read_definitions(connection, (row[0] for row in rows))
    return tuple(_column(row[1:], definitions.get(row[0])) for row in rows)


def build_columns_query(server_version: int) -> sql.Composed:
    """Return the query for the columns of the table whose number it takes."""
    since_15 = server_version >= _DATABASE_COLLATIONS_SINCE
    return _COLUMNS.format(default=_IN_USE if since_15 else sql.SQL("NULL"))


def _column(row: Row, definition: str | None) -> CatalogColumn:
    number, name, type_, not_null, has_default, demanded, generated, collation, loose, select, insert, update = row
    rights = {"SELECT": select, "INSERT": insert, "UPDATE": update}
    return CatalogColumn(
        number=number,
        name=name,
        type=type_,
        definition=definition,
        not_null=not_null,
        has_default=has_default,
        demanded=demanded,
        generated=generated,
        collation=collation,
        # Of a domain over it too.
        loose=loose or base_type(type_, definition).rpartition(".")[2] == "citext",
        rights=frozenset(right for right, held in rights.items() if held),
    )


_RELATION = sql.SQL(
    """
    SELECT c.oid::bigint, c.relkind::text, c.relpersistence = 't',
           c.relkind = 'r' AND EXISTS (SELECT FROM pg_inherits i WHERE i.inhparent = c.oid),
           has_schema_privilege(n.oid, 'USAGE'),
           c.relkind IN ('r', 'p') AND row_security_active(c.oid),
           EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = c.oid AND NOT t.tgisinternal AND t.tgenabled <> 'D'),
           c.relhasrules
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %s AND c.relname = %s
    """
)

# Collations and the database's own locale moved between columns of the catalogue from release to release, so they are
# read by name out of the whole row: only those of the table, as a server has hundreds. C and the builtin ones order by
# code point, everywhere and in every version. Of the others the version in use counts: the catalogue has the one that
# was in use when the collation was made, also after the server's libraries were upgraded.
_DATABASE_COLLATIONS_SINCE = 150000
_IN_USE = sql.SQL(
    "CASE WHEN d.own ->> 'datcollversion' <> '' THEN pg_database_collation_actual_version((d.own ->> 'oid')::oid) END"
)
_COLUMNS = sql.SQL(
    """
    SELECT a.atttypid::bigint, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod),
           a.attnotnull AND NOT EXISTS (
               SELECT FROM pg_constraint k
               WHERE k.conrelid = a.attrelid AND k.contype = 'n' AND k.conkey = ARRAY[a.attnum] AND NOT k.convalidated),
           a.atthasdef OR a.attidentity <> '' OR a.attgenerated <> '' OR t.typdefault IS NOT NULL,
           a.attnotnull OR t.typnotnull,
           CASE WHEN a.attgenerated <> '' THEN 'column' WHEN a.attidentity = 'a' THEN 'identity' END,
           CASE WHEN a.attcollation = 0 THEN NULL
                WHEN o.provider = 'b' OR o.provider = 'c' AND o.locale IN ('C', 'POSIX') THEN 'C'
                ELSE concat_ws(' ', CASE o.provider WHEN 'i' THEN 'icu' ELSE 'libc' END,
                               o.locale, o.version, o.rules) END,
           EXISTS (SELECT FROM pg_collation k WHERE k.oid = a.attcollation AND NOT k.collisdeterministic),
           has_column_privilege(a.attrelid, a.attnum, 'SELECT'),
           has_column_privilege(a.attrelid, a.attnum, 'INSERT'),
           has_column_privilege(a.attrelid, a.attnum, 'UPDATE')
    FROM pg_attribute a
    JOIN pg_type t ON t.oid = a.atttypid
    LEFT JOIN LATERAL (
        SELECT coalesce(l.own ->> 'collprovider', '') AS provider,
               coalesce(l.own ->> 'colllocale', l.own ->> 'colliculocale', l.own ->> 'collcollate') AS locale,
               CASE WHEN l.own ->> 'collversion' <> '' THEN pg_collation_actual_version(a.attcollation) END AS version,
               l.own ->> 'collicurules' AS rules
        FROM (SELECT to_jsonb(k) AS own FROM pg_collation k
              WHERE k.oid = a.attcollation AND k.collprovider <> 'd') l
        UNION ALL
        SELECT coalesce(d.own ->> 'datlocprovider', 'c'),
               CASE WHEN coalesce(d.own ->> 'datlocprovider', 'c') = 'c' THEN d.own ->> 'datcollate'
                    ELSE coalesce(d.own ->> 'datlocale', d.own ->> 'daticulocale') END,
               {default}, d.own ->> 'daticurules'
        FROM (SELECT to_jsonb(b) AS own FROM pg_database b WHERE b.datname = current_database()) d
        WHERE a.attcollation = 100
    ) o ON true
    WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
    ORDER BY a.attnum
    """
)

# PostgreSQL 14 has no word for keys that take two rows without a value for the same; the row is asked by name.
_UNIQUE_KEYS = sql.SQL(
    """
    SELECT k.names, i.indisprimary, i.indimmediate, coalesce((to_jsonb(i) ->> 'indnullsnotdistinct')::boolean, false),
           k.ordered
    FROM pg_index i
    JOIN pg_class x ON x.oid = i.indexrelid
    CROSS JOIN LATERAL (
        SELECT array_agg(a.attname::text ORDER BY p.n) AS names,
               bool_and(p.coll = a.attcollation AND c.opcname NOT LIKE '%%pattern\\_ops') AS ordered
        FROM unnest(i.indkey::int2[], i.indcollation::oid[], i.indclass::oid[])
             WITH ORDINALITY AS p(attnum, coll, opclass, n)
        JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = p.attnum
        JOIN pg_opclass c ON c.oid = p.opclass
        WHERE p.n <= i.indnkeyatts
    ) k
    WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
    ORDER BY i.indisprimary DESC, x.relname
    """
)

# A BRIN index finds ranges too, of rows that lie in its order.
_INDEXED = sql.SQL(
    """
    SELECT a.attname
    FROM pg_index i
    JOIN pg_class x ON x.oid = i.indexrelid
    JOIN pg_am m ON m.oid = x.relam AND m.amname IN ('btree', 'brin')
    JOIN pg_opclass c ON c.oid = (i.indclass::oid[])[0]
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = (i.indkey::int2[])[0]
    WHERE i.indrelid = %s AND i.indisvalid AND i.indpred IS NULL AND c.opcname NOT LIKE '%%pattern\\_ops'
      AND (i.indcollation::oid[])[0] = a.attcollation
    """
)

_SIMILAR = sql.SQL(
    """
    SELECT n.nspname, c.relname
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE lower(n.nspname) = lower(%s) AND lower(c.relname) = lower(%s) AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
    ORDER BY 1, 2 LIMIT 1
    """
)

_OID = sql.SQL(
    """
    SELECT c.oid::bigint FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %s AND c.relname = %s
    """
)
_SYSTEM_NOTE = "system and database"
_MAY_ASK_SYSTEM = sql.SQL("SELECT has_function_privilege('pg_catalog.pg_control_system()', 'EXECUTE')")
_SYSTEM = sql.SQL(
    """
    SELECT s.system_identifier, d.oid::bigint
    FROM pg_control_system() s, pg_database d
    WHERE d.datname = current_database()
    """
)


LOCK_SECONDS = 30
"""Longest wait of the control side for a statement that has locked the table."""
LOCKABLE = "rp"
"""Kinds that LOCK TABLE takes, with all partitions and children; a view is locked by a query of it."""


def lock_statement(session: Session, table: QualifiedName, kind: str, columns: Sequence[str], where: str | None) -> str:
    """Return the statement that locks all that a read touches.

    LOCK TABLE is cheap, but needs the right to read every column, and knows nothing of tables that a condition asks.
    """
    name = sql.SQL(table.sql)
    if kind in LOCKABLE and where is None and session.value(_MAY_LOCK, (table.sql,)):
        return sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(name).as_string(None)
    condition = sql.SQL(" WHERE ({}\n)").format(sql.SQL(where)) if where is not None else sql.SQL("")
    query = sql.SQL("SELECT {} FROM {}{} LIMIT 0")
    return query.format(sql.SQL(", ").join(map(sql.Identifier, columns)), name, condition).as_string(None)


def read_storage(session: Session, table: QualifiedName, lock: str) -> TableStorage:
    """Return how the table is stored: after every statement whose commit is seen anywhere, in the log too.

    A commit can be in the log before readers see it, but its locks are released only afterwards.
    """

    def read(connection: Connection) -> TableStorage:
        # The role's own default may be a level at which the catalogue is seen as it was before the lock.
        connection.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        connection.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(f"{LOCK_SECONDS}s")))
        relations = lock_relations(connection, str(table), lock)
        columns = connection.execute(_STORED_COLUMNS, (table.sql,)).fetchall()
        keys = connection.execute(_KEYS, (table.sql,)).fetchall()
        return TableStorage(
            table=str(table),
            lock=lock,
            relations=relations,
            columns=tuple(
                StoredColumn(name=name, number=number, version=version, filled=filled, generated=generated)
                for name, number, version, filled, generated, dropped in columns
                if not dropped
            ),
            keys=tuple(number for (number,) in keys),
            highest=max((column[1] for column in columns), default=0),
            dropped=tuple(number for _, number, *_, dropped in columns if dropped),
        )

    return session.transaction(read)


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


def lock_relations(connection: psycopg.Connection, table: str, lock: str) -> tuple[tuple[int, int], ...]:
    """Lock all that a read touches until the transaction ends, and return number and file of each.

    Inside a snapshot the catalogue is as old as the snapshot. The server's list of locks and its functions for files
    are not: they say how things are now, and under the lock they stay so.
    """
    try:
        connection.execute(lock.encode(), binary=True)
    except psycopg.errors.LockNotAvailable as error:
        raise SourceUnavailable(
            f"{table} is locked in the source by a statement such as ALTER TABLE, TRUNCATE or VACUUM FULL, which did "
            "not end in time: it is tried again."
        ) from error
    return tuple((number, file) for number, file in connection.execute(_LOCKED).fetchall())


_MAY_LOCK = sql.SQL("SELECT has_table_privilege(%s::regclass, 'SELECT')")
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
