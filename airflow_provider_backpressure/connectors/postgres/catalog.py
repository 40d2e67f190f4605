"""What the catalogue says about a table: kind, rights, columns, unique keys. Reads no rows of it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from psycopg import sql
from psycopg.abc import Params

from airflow_provider_backpressure.connectors.postgres.connect import (
    NO_SEARCH_PATH,
    Connection,
    Query,
    Row,
    Session,
    run_together,
)
from airflow_provider_backpressure.connectors.postgres.identifiers import QualifiedName
from airflow_provider_backpressure.connectors.postgres.key_types import KEY_TYPES, key_cast
from airflow_provider_backpressure.connectors.postgres.type_definitions import read_definitions
from airflow_provider_backpressure.connectors.relational.catalog_table import CatalogTable, TableColumn, TableKey
from airflow_provider_backpressure.core.snapshot.spark_messages import base_type

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
    refuses_overlaps: bool
    """``WITHOUT OVERLAPS``: also of keys that are not equal, and ON CONFLICT cannot go by it."""
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
    may_select: bool
    """Our role may read the whole of it, whatever columns it gets."""
    uncarried: Mapping[int, str] | None = None
    """Why which columns cannot be carried, see :mod:`..source.refused_types`; ``None``: not asked yet."""

    @property
    def hides_rows(self) -> bool:
        return self.row_security

    @property
    def is_stored(self) -> bool:
        """See :attr:`..relational.catalog_table.CatalogTable.is_stored`."""
        return self.kind in (ORDINARY, PARTITIONED)

    def find_lacking(self, right: str, names: tuple[str, ...] | list[str]) -> list[str]:
        """Return those of the named columns for which our role has no such right."""
        return [column.name for column in self.columns if column.name in names and right not in column.rights]


def find(session: Session, name: QualifiedName) -> Relation | None:
    """Return what bears this name, or ``None``."""
    return session.read(lambda connection: read_relations(connection, [name])).get(name)


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


def find_number(name: QualifiedName) -> tuple[Query, Params]:
    """Return the statement that finds the number of what bears this name."""
    return _OID, (name.schema, name.name)


def read_relations(connection: Connection, names: Sequence[QualifiedName]) -> dict[QualifiedName, Relation]:
    """Return what bears these names, as far as anything does: in two round trips, however many there are.

    One more asks what users' own types are made of, where columns have such. Of what is not there one is enough.
    """
    wanted = ([name.schema for name in names], [name.name for name in names])
    rows = connection.execute(_RELATIONS, wanted).fetchall()
    if not rows:
        return {}
    oids = ([oid for _, oid, *_ in rows],)
    queries = (build_columns_query(connection.info.server_version), _UNIQUE_KEYS, _INDEXED)
    _, columns, keys, indexed = run_together(connection, NO_SEARCH_PATH, *((query, oids) for query in queries))
    definitions = read_definitions(connection, (row[1] for row in columns))
    by_table = [_group(each) for each in (columns, keys, indexed)]
    found = {}
    for number, oid, kind, temporary, has_children, schema_usable, row_security, user_triggers, rules, select in rows:
        own_columns, own_keys, own_indexed = (each.get(oid, []) for each in by_table)
        found[names[number - 1]] = Relation(
            oid=oid,
            name=names[number - 1],
            kind=kind,
            temporary=temporary,
            has_children=has_children,
            schema_usable=schema_usable,
            row_security=row_security,
            user_triggers=user_triggers,
            rules=rules,
            may_select=select,
            columns=tuple(_column(row[1:], definitions.get(row[0])) for row in own_columns),
            keys=tuple(
                UniqueKey(
                    columns=tuple(columns),
                    primary=primary,
                    immediate=immediate,
                    refuses_overlaps=refuses_overlaps,
                    nulls_equal=nulls_equal,
                    ordered=sorted_,
                )
                for columns, primary, immediate, refuses_overlaps, nulls_equal, sorted_ in own_keys
            ),
            indexed=frozenset(column for (column,) in own_indexed),
        )
    return found


def _group(rows: Sequence[Row]) -> dict[int, list[Row]]:
    """Return rows by the number of the table, with which each begins, without that."""
    found: dict[int, list[Row]] = {}
    for oid, *row in rows:
        found.setdefault(oid, []).append(tuple(row))
    return found


def build_columns_query(server_version: int) -> sql.Composed:
    """Return the query for the columns of the tables whose numbers it takes."""
    since_15 = server_version >= _DATABASE_COLLATIONS_SINCE
    return _COLUMNS.format(not_null=NOT_NULL, default=_IN_USE if since_15 else sql.SQL("NULL"))


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


_RELATIONS = sql.SQL(
    """
    SELECT w.number, c.oid::bigint, c.relkind::text, c.relpersistence = 't',
           c.relkind = 'r' AND EXISTS (SELECT FROM pg_inherits i WHERE i.inhparent = c.oid),
           has_schema_privilege(n.oid, 'USAGE'),
           c.relkind IN ('r', 'p') AND row_security_active(c.oid),
           EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = c.oid AND NOT t.tgisinternal AND t.tgenabled <> 'D'),
           c.relhasrules, has_table_privilege(c.oid, 'SELECT')
    FROM unnest(%s::text[], %s::text[]) WITH ORDINALITY w (schema, name, number)
    JOIN pg_namespace n ON n.nspname = w.schema
    JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.name
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
# Of a foreign table PostgreSQL believes NOT NULL, and enforces nothing; nor of one that is read with such a part. A
# table that inherits may allow what its parent does not: the constraint is dropped there, or is not inherited.
NOT_NULL = sql.SQL(
    """a.attnotnull AND NOT EXISTS (
               SELECT FROM pg_constraint k
               WHERE k.conrelid = a.attrelid AND k.contype = 'n' AND k.conkey = ARRAY[a.attnum] AND NOT k.convalidated)
           AND NOT EXISTS (
               WITH RECURSIVE children (oid) AS (
                   SELECT i.inhrelid FROM pg_class p JOIN pg_inherits i ON i.inhparent = p.oid
                   WHERE p.oid = a.attrelid AND p.relkind = 'r' AND p.relhassubclass
                   UNION SELECT i.inhrelid FROM children c JOIN pg_inherits i ON i.inhparent = c.oid)
               SELECT FROM children c JOIN pg_attribute b ON b.attrelid = c.oid AND b.attname = a.attname
               WHERE NOT b.attnotnull OR EXISTS (
                   SELECT FROM pg_constraint k
                   WHERE k.conrelid = b.attrelid AND k.contype = 'n' AND k.conkey = ARRAY[b.attnum]
                   AND NOT k.convalidated))
           AND a.attrelid NOT IN (
               WITH RECURSIVE believed (oid) AS (
                   SELECT ftrelid FROM pg_foreign_table
                   UNION SELECT i.inhparent FROM believed b JOIN pg_inherits i ON i.inhrelid = b.oid)
               SELECT oid FROM believed)"""
)
"""Whether a column ``a`` of ``pg_attribute`` is NULL in no row."""
_COLUMNS = sql.SQL(
    """
    SELECT a.attrelid::bigint, a.atttypid::bigint, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod),
           {not_null},
           a.atthasdef OR a.attidentity <> '' OR a.attgenerated <> '' OR t.typdefault IS NOT NULL,
           a.attnotnull OR t.typnotnull,
           CASE WHEN a.attgenerated <> '' THEN 'column' WHEN a.attidentity = 'a' THEN 'identity' END,
           CASE WHEN a.attcollation = 0 THEN NULL
                WHEN o.provider = 'b' OR o.provider = 'c' AND o.locale IN ('C', 'POSIX') THEN
                   -- By the bytes of the database's encoding: those of these three are in the order of the characters.
                   CASE WHEN getdatabaseencoding() IN ('UTF8', 'LATIN1', 'SQL_ASCII') THEN 'C'
                        ELSE 'C of ' || getdatabaseencoding() END
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
    WHERE a.attrelid = ANY (%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
    ORDER BY a.attrelid, a.attnum
    """
)

# PostgreSQL 14 has no word for keys that take two rows without a value for the same; the row is asked by name.
_UNIQUE_KEYS = sql.SQL(
    """
    SELECT i.indrelid::bigint, k.names, i.indisprimary, i.indimmediate, i.indisexclusion,
           coalesce((to_jsonb(i) ->> 'indnullsnotdistinct')::boolean, false),
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
    WHERE i.indrelid = ANY (%s::oid[]) AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
    ORDER BY i.indisprimary DESC, x.relname
    """
)

# A BRIN index finds ranges too, of rows that lie in its order.
_INDEXED = sql.SQL(
    """
    SELECT i.indrelid::bigint, a.attname
    FROM pg_index i
    JOIN pg_class x ON x.oid = i.indexrelid
    JOIN pg_am m ON m.oid = x.relam AND m.amname IN ('btree', 'brin')
    JOIN pg_opclass c ON c.oid = (i.indclass::oid[])[0]
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = (i.indkey::int2[])[0]
    WHERE i.indrelid = ANY (%s::oid[]) AND i.indisvalid AND i.indpred IS NULL AND c.opcname NOT LIKE '%%pattern\\_ops'
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
