"""Checks whether rows may go into a target: every obstacle in one sentence, before anything is changed."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.catalog import KINDS, ORDINARY, PARTITIONED, Relation, find
from airflow_provider_backpressure.connectors.postgres.errors import where
from airflow_provider_backpressure.connectors.postgres.identifiers import MAX_BYTES, QualifiedName, join_names
from airflow_provider_backpressure.connectors.postgres.shared_connection import Connection, Session
from airflow_provider_backpressure.connectors.postgres.sink.dependents import against_replacing
from airflow_provider_backpressure.connectors.postgres.sink.durability import find_undurable
from airflow_provider_backpressure.connectors.postgres.sink.system_tables import SystemTable, frontier_table
from airflow_provider_backpressure.connectors.postgres.type_definitions import read_definitions
from airflow_provider_backpressure.core.config import Mode
from airflow_provider_backpressure.core.snapshot.messages import Column
from airflow_provider_backpressure.exceptions import SinkRefused

log = logging.getLogger(__name__)

MINIMUM_VERSION = 140000
"""From it on COPY shows its progress, and arrays of a user's own types can be received from another cluster."""


@dataclass(frozen=True, kw_only=True)
class Fitting:
    """What is to go where."""

    name: QualifiedName
    columns: Sequence[Column]
    mode: Mode
    key: tuple[str, ...]
    system: tuple[SystemTable, ...]
    replayed: bool = False

    @property
    def others(self) -> list[QualifiedName]:
        """The tables that are kept beside the target."""
        return [*(each.name for each in self.system), frontier_table(self.system[0].name.schema).name]


def check_fit(session: Session, fitting: Fitting) -> None:
    """Return where everything fits; ``SinkRefused`` with every difference otherwise."""
    _check_server(session)
    _check_lengths(fitting)
    missing_key = [name for name in fitting.key if name not in {column.name for column in fitting.columns}]
    if missing_key:
        raise SinkRefused(f"{fitting.name} cannot be upserted by {join_names(missing_key)}, which does not arrive.")
    table = find(session, fitting.name)
    against = _against_new(session, fitting) if table is None else _against(session, fitting, table)
    against += [*_against_system(session, fitting), *_against_staging(session, fitting)]
    against += session.transaction(lambda connection: find_undurable(connection, fitting.name, fitting.others))
    if against:
        raise SinkRefused(f"Rows cannot go into {fitting.name} in {where(session.endpoint)}: {'; '.join(against)}.")


def _check_server(session: Session) -> None:
    if session.server_version < MINIMUM_VERSION:
        version, oldest = session.server_version // 10000, MINIMUM_VERSION // 10000
        raise SinkRefused(
            f"PostgreSQL at {where(session.endpoint)} is of version {version}; a sink needs {oldest} or later."
        )
    if session.value(sql.SQL("SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean")):
        raise SinkRefused(f"PostgreSQL at {where(session.endpoint)} is read-only: a standby takes no rows.")


def _check_lengths(fitting: Fitting) -> None:
    """Refuse names that PostgreSQL would cut off without an error."""
    long = [column.name for column in fitting.columns if len(column.name.encode()) > MAX_BYTES]
    if long:
        raise SinkRefused(
            f"Rows cannot go into {fitting.name}: PostgreSQL cuts off names behind {MAX_BYTES} bytes, and "
            f"{join_names(long)} {'is' if len(long) == 1 else 'are'} longer. Leave out such columns, or give them "
            "shorter names in a transform."
        )


def _against_new(session: Session, fitting: Fitting) -> list[str]:
    """Return the obstacles to creating the target."""
    return [*_against_creating(session, fitting.name.schema), *_against_types(session, fitting.columns)]


def _against(session: Session, fitting: Fitting, table: Relation) -> list[str]:
    """Return the obstacles to writing into the existing target."""
    if table.kind not in (ORDINARY, PARTITIONED):
        return [f"it is {KINDS.get(table.kind, 'no table')}"]
    if fitting.mode is Mode.REPLACE:
        replacing = session.transaction(lambda connection: against_replacing(connection, table.oid))
        against = [*_against_columns(fitting, table), *replacing]
        return [*against, *_against_creating(session, fitting.name.schema)]
    if table.user_triggers or table.rules:
        log.warning(
            "%s has triggers or rules of its own; COPY fires the triggers and passes the rules by%s.",
            table.name,
            ", and nothing compares rows that an AFTER trigger changes in the table itself" if fitting.replayed else "",
        )
    against = [*_against_columns(fitting, table), *_against_rights(session, fitting, table)]
    replaying = _against_replaying(session, fitting, table) if fitting.replayed else []
    return [*against, *_against_key(fitting, table), *replaying]


def _against_columns(fitting: Fitting, table: Relation) -> list[str]:
    against, arriving = [], {column.name for column in fitting.columns}
    absent = [column.name for column in fitting.columns if table.column(column.name) is None]
    if absent:
        against.append(f"it has no column {join_names(absent)}")
    for column in fitting.columns:
        there = table.column(column.name)
        if there is None:
            continue
        if there.generated is not None:
            against.append(f"column {join_names([column.name])} is always generated there")
        elif there.type != column.type:
            against.append(f"column {join_names([column.name])} is {column.type} here and {there.type} there")
        else:
            against += _against_definition(column, there.definition)
    demanded = [
        column.name
        for column in table.columns
        if column.name not in arriving and column.demanded and not column.has_default
    ]
    if demanded:
        against.append(f"{join_names(demanded)} there must not be NULL, has no default and does not arrive")
    return against


def _against_definition(column: Column, there: str | None) -> list[str]:
    """Return the obstacles to a type of the same name: the bytes of one definition are other values of another."""
    if column.definition is None or column.definition == there:
        return []
    return [
        f"type {column.type} of column {join_names([column.name])} is defined as {column.definition} here and as "
        f"{there or 'another kind of type'} there"
    ]


def _against_rights(session: Session, fitting: Fitting, table: Relation) -> list[str]:
    user, names = session.endpoint.user, [column.name for column in fitting.columns]
    if not table.schema_usable:
        return [f"{user} has no USAGE right on schema {join_names([table.name.schema])}"]
    needed = ("INSERT", "SELECT", "UPDATE") if fitting.mode is Mode.UPSERT else ("INSERT", "SELECT")
    lacking = [right for right in needed if table.find_lacking(right, names)]
    against = [f"{user} has no {' and no '.join(lacking)} right on it"] if lacking else []
    if table.row_security:
        against.append(f"its row security applies to {user}, and COPY cannot go through that")
    return against


def _against_key(fitting: Fitting, table: Relation) -> list[str]:
    if fitting.mode is not Mode.UPSERT:
        return []
    wanted = set(fitting.key)
    found = [unique for unique in table.unique_keys if set(unique.columns) == wanted and unique.immediate]
    if not found:
        return [f"key {join_names(fitting.key)} is not unique there: upsert needs a unique index on exactly that"]
    may_be_null = [
        column.name for column in table.columns if column.name in _nullable(fitting) & wanted and not column.demanded
    ]
    if not may_be_null or any(unique.nulls_equal for unique in found):
        return []
    return [
        f"{join_names(may_be_null)} of its key may be NULL, and a row without a key would be added with each run: "
        "set it NOT NULL there, or make the unique index NULLS NOT DISTINCT"
    ]


def _nullable(fitting: Fitting) -> set[str]:
    return {column.name for column in fitting.columns if column.nullable}


def _against_replaying(session: Session, fitting: Fitting, table: Relation) -> list[str]:
    """Return the obstacles to rows of different times, and to deleting some."""
    row = session.rows(_REPLAYED, {"table": table.oid, "key": list(fitting.key)})[0]
    others, foreign, may_delete, triggers, rules, loose = row
    against = []
    if others:
        against.append(f"its unique index {join_names(others)} may be broken until the log has been replayed: drop it")
    if foreign:
        against.append(f"its foreign key {join_names(foreign)} may be broken until the log has been replayed: drop it")
    if triggers:
        against.append(
            f"its trigger {join_names(triggers)} may change or drop rows that are replayed: drop or disable it"
        )
    if rules:
        against.append(f"its rule {join_names(rules)} replaces statements that are replayed: drop or disable it")
    if loose:
        against.append(f"the collation of key {join_names(loose)} takes different texts for equal: give it another")
    if not may_delete:
        against.append(f"{session.endpoint.user} has no DELETE right on it")
    return against


def _against_system(session: Session, fitting: Fitting) -> list[str]:
    """Return the obstacles to the plan and marker tables."""
    against: list[str] = []
    user, absent = session.endpoint.user, []
    for wanted in fitting.system:
        table = find(session, wanted.name)
        if table is None:
            absent.append(wanted)
            continue
        missing = [name for name in wanted.columns if table.column(name) is None]
        strange = [name for name in missing if name not in wanted.later]
        if table.kind != ORDINARY or strange:
            against.append(
                f"{wanted.name} is not this product's: it has no column {join_names(strange or ['plan_id'])}"
            )
        present = [name for name in wanted.columns if name not in missing]
        lacking = [right for right in wanted.rights if table.find_lacking(right, present)]
        if lacking:
            against.append(f"{user} has no {' and no '.join(lacking)} right on {wanted.name}")
    schema = fitting.system[0].name.schema
    if absent and (schema != fitting.name.schema or find(session, fitting.name) is not None):
        against += _against_creating(session, schema)
    return against


def _against_staging(session: Session, fitting: Fitting) -> list[str]:
    """Upserted rows go through a temporary table."""
    if fitting.mode is not Mode.UPSERT or session.value(_MAY_STAGE):
        return []
    return [f"{session.endpoint.user} has no TEMPORARY right on database {join_names([session.endpoint.database])}"]


def _against_creating(session: Session, schema: str) -> list[str]:
    """Return the obstacles to creating a table in a schema, which is created too where it is missing."""
    user, shown = session.endpoint.user, join_names([schema])
    there, may_create, may_create_schema = session.rows(_MAY_CREATE, {"schema": schema})[0]
    if not there:
        return [] if may_create_schema else [f"there is no schema {shown}, and {user} may not create one"]
    return [] if may_create else [f"{user} has no CREATE right on schema {shown}"]


def _against_types(session: Session, columns: Sequence[Column]) -> list[str]:
    """Return the obstacles to columns of these types: they are not known there, or defined otherwise."""

    def ask(connection: Connection) -> list[str]:
        connection.execute(sql.SQL("SET LOCAL search_path TO ''"))
        rows = connection.execute(_KNOWN, ([column.type for column in columns],)).fetchall()
        definitions = read_definitions(connection, (oid for (oid,) in rows if oid is not None))
        against = []
        for column, (oid,) in zip(columns, rows, strict=True):
            if oid is None:
                against.append(f"column {join_names([column.name])} has type {column.type}, which is not known there")
            else:
                against += _against_definition(column, definitions.get(oid))
        return against

    return session.transaction(ask)


_KNOWN = sql.SQL(
    "SELECT to_regtype(t.name)::oid::bigint FROM unnest(%s::text[]) WITH ORDINALITY t(name, n) ORDER BY t.n"
)
_REPLAYED = sql.SQL(
    """
    SELECT array(
               SELECT x.relname::text FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
               WHERE i.indrelid = c.oid AND (i.indisunique OR i.indisexclusion) AND %(key)s::text[] IS DISTINCT FROM (
                   SELECT array_agg(a.attname::text ORDER BY array_position(%(key)s::text[], a.attname::text))
                   FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum = ANY (i.indkey::int2[]))
               ORDER BY 1),
           array(
               SELECT conname::text FROM pg_constraint
               WHERE contype = 'f' AND (conrelid = c.oid OR confrelid = c.oid) ORDER BY 1),
           has_table_privilege(c.oid, 'DELETE'),
           array(
               SELECT tgname::text FROM pg_trigger
               WHERE (tgrelid = c.oid OR tgrelid IN (SELECT relid FROM pg_partition_tree(c.oid)))
                 AND NOT tgisinternal AND tgenabled IN ('O', 'A') AND tgtype & 3 = 3 ORDER BY 1),
           array(
               SELECT rulename::text FROM pg_rewrite
               WHERE ev_class = c.oid AND is_instead AND ev_enabled IN ('O', 'A') ORDER BY 1),
           array(
               SELECT a.attname::text FROM pg_attribute a JOIN pg_collation l ON l.oid = a.attcollation
               WHERE a.attrelid = c.oid AND a.attname = ANY (%(key)s::text[]) AND NOT l.collisdeterministic ORDER BY 1)
    FROM pg_class c WHERE c.oid = %(table)s
    """
)
_MAY_STAGE = sql.SQL("SELECT has_database_privilege(current_database(), 'TEMPORARY')")
_MAY_CREATE = sql.SQL(
    """
    SELECT s.oid IS NOT NULL,
           coalesce(has_schema_privilege(s.oid, 'CREATE') AND has_schema_privilege(s.oid, 'USAGE'), false),
           has_database_privilege(current_database(), 'CREATE')
    FROM (SELECT 1) one LEFT JOIN pg_namespace s ON s.nspname = %(schema)s
    """
)
