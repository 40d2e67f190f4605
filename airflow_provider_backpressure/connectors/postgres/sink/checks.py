"""Checks whether rows may go into a target: every obstacle in one sentence, before anything is changed."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.catalog import KINDS, ORDINARY, PARTITIONED, Relation, find
from airflow_provider_backpressure.connectors.postgres.connect import (
    NO_SEARCH_PATH,
    Connection,
    Row,
    Session,
    Statement,
    run_together,
)
from airflow_provider_backpressure.connectors.postgres.identifiers import MAX_BYTES, QualifiedName, join_names
from airflow_provider_backpressure.connectors.postgres.sink.text_casts import find_text_casts
from airflow_provider_backpressure.connectors.postgres.sink.upsert_checks import (
    KEYED,
    Fitting,
    against_encoding,
    against_exchange,
    against_staging,
)
from airflow_provider_backpressure.connectors.postgres.type_definitions import OWN, read_definitions
from airflow_provider_backpressure.connectors.relational.errors import where
from airflow_provider_backpressure.core.config import Log, Mode
from airflow_provider_backpressure.core.snapshot.spark_messages import Column
from airflow_provider_backpressure.exceptions import RESTART, SinkRefused

_REASONS = {
    "unlogged": "is unlogged: a crash or a failover of its server empties it, and markers of the rows stay. "
    f"ALTER TABLE %s SET LOGGED, and if that may have happened to rows of earlier runs, {RESTART}",
    "temporary": "is a temporary table, which ends with its session",
    "foreign": "is a foreign table: its rows and their markers are not committed together",
}


def find_undurable(connection: Connection, target: QualifiedName, others: Sequence[QualifiedName]) -> list[str]:
    """Return which of the tables, and of the target's partitions, do not keep rows as their markers are kept, and why.

    Each as part of a sentence about the target. Tables that are not there are left out.
    """
    *_, rows = run_together(connection, *list_undurable(target, others))
    return describe_undurable(rows)


def list_undurable(target: QualifiedName, others: Sequence[QualifiedName]) -> list[Statement]:
    """Return the statements, to be run together, of which the last one finds them."""
    names = (target, *others)
    return [NO_SEARCH_PATH, (_UNDURABLE, ([name.schema for name in names], [name.name for name in names]))]


def describe_undurable(rows: Sequence[Row]) -> list[str]:
    """Return what was found in words."""
    found = []
    for number, part, own, reason in rows:
        subject = part if number > 1 else "it" if own else f"its partition {part}"
        found.append(f"{subject} {_REASONS[reason].replace('%s', part)}")
    return found


_UNDURABLE = sql.SQL(
    """
    SELECT wanted.number, m.oid::regclass::text, m.oid = c.oid,
           CASE WHEN m.relkind = 'f' THEN 'foreign' WHEN m.relpersistence = 't' THEN 'temporary' ELSE 'unlogged' END
    FROM unnest(%s::text[], %s::text[]) WITH ORDINALITY wanted (schema, name, number)
    JOIN pg_namespace n ON n.nspname = wanted.schema
    JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = wanted.name
    CROSS JOIN LATERAL (
        SELECT c.oid UNION ALL SELECT p.relid FROM pg_partition_tree(c.oid) p WHERE c.relkind = 'p' AND p.isleaf
    ) part (oid)
    JOIN pg_class m ON m.oid = part.oid
    WHERE m.relkind <> 'p' AND (m.relpersistence <> 'p' OR m.relkind = 'f' AND m.oid <> c.oid)
    ORDER BY 1, 2
    """
)


@dataclass(frozen=True, kw_only=True)
class View:
    """A view over the target, as statements with every name quoted by the catalogue."""

    lock: str
    """Locks it and changes nothing. LOCK TABLE would also lock every table that the view reads."""
    bind: str
    """Binds it to the table that bears the target's name by then; its rights and comments stay."""


def against_replacing(connection: Connection, target: int) -> list[str]:
    """Return the obstacles to another table taking this one's place, each as part of a sentence."""
    connection.execute(sql.SQL("SET LOCAL search_path TO ''"))
    against = [words for (words,) in connection.execute(_STATES, {"target": target}).fetchall()]
    dependents = [name for (name,) in connection.execute(_DEPENDENTS, {"target": target}).fetchall()]
    if dependents:
        verb = "depends" if len(dependents) == 1 else "depend"
        against.append(f"{' and '.join(dependents)} {verb} on it and would stay with the old table")
    return against


def views_over(connection: Connection, target: int) -> list[View]:
    """Return the views that read the table, those over other views not among them."""
    rows = connection.execute(_VIEWS, {"target": target}).fetchall()
    return [View(lock=lock, bind=bind) for lock, bind in rows]


_STATES = sql.SQL(
    """
    SELECT w.words
    FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace
    CROSS JOIN LATERAL (VALUES
        (NOT pg_has_role(c.relowner, 'USAGE'),
         format('it belongs to %%I and not to %%I', pg_get_userbyid(c.relowner), current_user)),
        (c.relkind = 'p', 'it is a partitioned table'),
        (c.relkind = 'r' AND c.reloftype <> 0, 'it is made of a type'),
        (c.relispartition, 'it is a partition'),
        (NOT c.relispartition AND EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = c.oid),
         'it inherits from another table'),
        (EXISTS (SELECT FROM pg_rewrite r WHERE r.ev_class = c.oid), 'it has rules'),
        (c.relrowsecurity OR EXISTS (SELECT FROM pg_policy p WHERE p.polrelid = c.oid), 'it has row security'),
        (EXISTS (SELECT FROM pg_seclabel l WHERE l.classoid = 'pg_class'::regclass AND l.objoid = c.oid),
         'it has security labels'),
        (EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND NOT i.indisvalid), 'it has an invalid index')
    ) w (holds, words)
    WHERE c.oid = %(target)s::oid AND w.holds
    UNION ALL
    SELECT format('it has the trigger %%I', t.tgname)
    FROM pg_trigger t WHERE t.tgrelid = %(target)s::oid AND NOT t.tgisinternal
    UNION ALL
    SELECT format('the publication %%I sends its rows out', p.pubname)
    FROM pg_publication_tables p
    JOIN pg_namespace n ON n.nspname = p.schemaname
    JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
    WHERE c.oid = %(target)s::oid
    UNION ALL
    SELECT format('it belongs to the extension %%I', e.extname)
    FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
    WHERE d.classid = 'pg_class'::regclass AND d.objid = %(target)s::oid AND d.deptype = 'e'
    """
)
# What DROP TABLE would stop at, but the table's own parts and the views that follow.
_DEPENDENTS = sql.SQL(
    """
    SELECT DISTINCT CASE WHEN r.oid IS NOT NULL AND r.rulename = '_RETURN'
                         THEN pg_describe_object('pg_class'::regclass, r.ev_class, 0)
                         ELSE pg_describe_object(d.classid, d.objid, d.objsubid) END
    FROM pg_class c
    JOIN pg_type y ON y.oid = c.reltype
    JOIN pg_depend d ON d.refclassid = 'pg_class'::regclass AND d.refobjid = c.oid
                     OR d.refclassid = 'pg_type'::regclass AND d.refobjid IN (y.oid, y.typarray)
    LEFT JOIN pg_rewrite r ON d.classid = 'pg_rewrite'::regclass AND r.oid = d.objid
    LEFT JOIN pg_class v ON v.oid = r.ev_class
    WHERE c.oid = %(target)s::oid AND d.deptype = 'n'
      AND NOT (r.rulename IS NOT DISTINCT FROM '_RETURN' AND v.relkind = 'v' AND pg_has_role(v.relowner, 'USAGE'))
      AND NOT EXISTS (SELECT FROM pg_constraint k WHERE d.classid = 'pg_constraint'::regclass AND k.oid = d.objid
                      AND k.conrelid = c.oid AND k.contype <> 'f')
      AND NOT EXISTS (SELECT FROM pg_attrdef a WHERE d.classid = 'pg_attrdef'::regclass AND a.oid = d.objid
                      AND a.adrelid = c.oid)
      AND NOT EXISTS (SELECT FROM pg_index i WHERE d.classid = 'pg_class'::regclass AND i.indexrelid = d.objid
                      AND i.indrelid = c.oid)
      AND NOT EXISTS (SELECT FROM pg_statistic_ext e WHERE d.classid = 'pg_statistic_ext'::regclass
                      AND e.oid = d.objid AND e.stxrelid = c.oid)
    ORDER BY 1
    """
)
# To change an owner into itself takes the view's lock and nothing else happens.
_VIEWS = sql.SQL(
    """
    SELECT format('ALTER VIEW %%I.%%I OWNER TO %%I', n.nspname, v.relname, pg_get_userbyid(v.relowner)),
           format('CREATE OR REPLACE VIEW %%I.%%I%%s AS %%s', n.nspname, v.relname,
                  (SELECT format(' WITH (%%s)', string_agg(format('%%I = %%L', o.option_name, o.option_value), ', '))
                   FROM pg_options_to_table(v.reloptions) o HAVING count(*) > 0),
                  pg_get_viewdef(v.oid))
    FROM pg_class v JOIN pg_namespace n ON n.oid = v.relnamespace
    WHERE v.relkind = 'v' AND EXISTS (
        SELECT FROM pg_rewrite r
        JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
        WHERE r.ev_class = v.oid AND r.rulename = '_RETURN'
          AND d.refclassid = 'pg_class'::regclass AND d.refobjid = %(target)s::oid)
    ORDER BY v.oid
    """
)


log = logging.getLogger(__name__)

_WRITABLE = "takes rows"
MINIMUM_VERSION = 140000
"""From it on COPY shows its progress, and arrays of a user's own types can be received from another cluster."""


def check_fit(session: Session, fitting: Fitting) -> None:
    """Return where everything fits; ``SinkRefused`` with every difference otherwise."""
    _check_server(session)
    _check_lengths(fitting)
    missing_key = [name for name in fitting.key if name not in {column.name for column in fitting.columns}]
    if missing_key:
        raise SinkRefused(f"{fitting.name} cannot be upserted by {join_names(missing_key)}, which does not arrive.")
    table = find(session, fitting.name)
    against = _against_new(session, fitting) if table is None else _against(session, fitting, table)
    against += [*_against_system(session, fitting), *against_staging(session, fitting)]
    against += find_text_casts(session, fitting.columns) if fitting.log is Log.CHANGES else []
    against += against_encoding(session) if fitting.log is Log.PARTS else []
    against += _find_undurable(session, fitting, table)
    _refuse(session, fitting.name, against)


def _find_undurable(session: Session, fitting: Fitting, table: Relation | None) -> list[str]:
    """Return which tables do not keep rows as their markers are kept. The others are the same for many targets."""
    fact = ("durable", *fitting.others)
    if table is None and session.recall(fact):
        return []
    against = session.read(lambda connection: find_undurable(connection, fitting.name, fitting.others))
    if not against:
        session.note(fact)
    return against


def check_exchange(
    session: Session, name: QualifiedName, columns: Sequence[Column], key: tuple[str, ...], table: Relation | None
) -> None:
    """Return where rows that fit may also be exchanged by a key; ``SinkRefused`` with every obstacle otherwise.

    ``table``: the target; ``None`` where it is to be created.
    """
    fitting = Fitting(name=name, columns=columns, mode=Mode.MIRROR, key=key, system=())
    against = against_staging(session, fitting)
    if table is not None:
        against = [*_against_rights(session, fitting, table), *against_exchange(session, fitting, table), *against]
    _refuse(session, name, against)


def _refuse(session: Session, name: QualifiedName, against: Sequence[str]) -> None:
    if against:
        raise SinkRefused(f"Rows cannot go into {name} in {where(session.endpoint)}: {'; '.join(against)}.")


def _check_server(session: Session) -> None:
    if session.server_version < MINIMUM_VERSION:
        version, oldest = session.server_version // 10000, MINIMUM_VERSION // 10000
        raise SinkRefused(
            f"PostgreSQL at {where(session.endpoint)} is of version {version}; a sink needs {oldest} or later."
        )
    if session.recall(_WRITABLE):
        return
    if session.value(sql.SQL("SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean")):
        raise SinkRefused(f"PostgreSQL at {where(session.endpoint)} is read-only: a standby takes no rows.")
    session.note(_WRITABLE)


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
        against = [*_against_columns(session, fitting, table), *replacing]
        return [*against, *_against_creating(session, fitting.name.schema)]
    if table.user_triggers or table.rules:
        log.warning(
            "%s has triggers or rules of its own: the triggers fire, and COPY passes the rules by%s.",
            table.name,
            ", and a range fails where one of them changes rows of the table itself"
            if fitting.log is Log.CHANGES
            else "",
        )
    against = [*_against_columns(session, fitting, table), *_against_rights(session, fitting, table)]
    return [*against, *against_exchange(session, fitting, table)]


def _against_columns(session: Session, fitting: Fitting, table: Relation) -> list[str]:
    against, arriving = [], {column.name for column in fitting.columns}
    absent = [column.name for column in fitting.columns if table.column(column.name) is None]
    if absent:
        against.append(f"it has no column {join_names(absent)}")
    for column in fitting.columns:
        there = table.column(column.name)
        if there is None:
            continue
        if there.generated is not None:
            against.append(f"column {join_names([column.name])} is always generated by the table")
        elif there.type not in (column.type, _spell(session, column.type)):
            against.append(
                f"column {join_names([column.name])} arrives as {column.type} and is {there.type} in the table"
            )
        else:
            against += _against_definition(column, there.definition)
    demanded = [
        column.name
        for column in table.columns
        if column.name not in arriving and column.demanded and not column.has_default
    ]
    if demanded:
        against.append(f"{join_names(demanded)} of the table must not be NULL, has no default and does not arrive")
    return against


def _spell(session: Session, type_: str) -> str | None:
    """Return a type as the server itself spells it (``time`` is ``time without time zone``); ``None``: it has none."""

    def ask(connection: Connection) -> str | None:
        try:
            with connection.transaction():
                made = connection.execute(sql.SQL("SELECT NULL::{}").format(sql.SQL(type_)))
        except psycopg.Error:
            return None
        found = made.pgresult
        assert found is not None, "a query has a result"
        spelled = connection.execute("SELECT format_type(%s, %s)", (found.ftype(0), found.fmod(0))).fetchone()
        return None if spelled is None else str(spelled[0])

    return session.transaction(ask)


def _against_definition(column: Column, there: str | None) -> list[str]:
    """Return the obstacles to a type of the same name: the bytes of one definition are other values of another."""
    if column.definition is None or column.definition == there:
        return []
    return [
        f"type {column.type} of column {join_names([column.name])} is defined as {column.definition} in the "
        f"source and as {there or 'another kind of type'} in the target"
    ]


def _against_rights(session: Session, fitting: Fitting, table: Relation) -> list[str]:
    user, names = session.endpoint.user, [column.name for column in fitting.columns]
    if not table.schema_usable:
        return [f"{user} has no USAGE right on schema {join_names([table.name.schema])}"]
    needed = ("INSERT", "SELECT", "UPDATE") if fitting.mode in KEYED else ("INSERT", "SELECT")
    lacking = [right for right in needed if table.find_lacking(right, names)]
    against = [f"{user} has no {' and no '.join(lacking)} right on it"] if lacking else []
    if table.row_security:
        against.append(f"its row security applies to {user}, and COPY cannot go through that")
    return against


def _against_system(session: Session, fitting: Fitting) -> list[str]:
    """Return the obstacles to the plan and marker tables. Those of many targets in a schema are the same."""
    fact = ("system", *(wanted.name for wanted in fitting.system))
    if session.recall(fact):
        return []
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
    if not against and not absent:
        session.note(fact)
    return against


def _against_creating(session: Session, schema: str) -> list[str]:
    """Return the obstacles to creating a table in a schema, which is created too where it is missing."""
    user, shown, fact = session.endpoint.user, join_names([schema]), ("may create", schema)
    if session.recall(fact):
        # Many targets are created in one schema; who has lost the right meanwhile is refused by the server.
        return []
    there, may_create, may_create_schema = session.rows(_MAY_CREATE, {"schema": schema})[0]
    if not there:
        return [] if may_create_schema else [f"there is no schema {shown}, and {user} may not create one"]
    if not may_create:
        return [f"{user} has no CREATE right on schema {shown}"]
    session.note(fact)
    return []


def _against_types(session: Session, columns: Sequence[Column]) -> list[str]:
    """Return the obstacles to columns of these types: they are not known there, or defined otherwise."""

    # What the server's own types are is the same for every target.
    open_ = [each for each in columns if each.definition is not None or not session.recall(("type", each.type))]
    if not open_:
        return []

    def ask(connection: Connection) -> list[str]:
        _, rows = run_together(connection, NO_SEARCH_PATH, (_KNOWN, ([column.type for column in open_],)))
        definitions = read_definitions(connection, (oid for (oid,) in rows if oid is not None))
        against = []
        for column, (oid,) in zip(open_, rows, strict=True):
            if oid is not None and oid < OWN:
                session.note(("type", column.type))
            if oid is None:
                against.append(
                    f"column {join_names([column.name])} has type {column.type}, which that server does not know"
                )
            else:
                against += _against_definition(column, definitions.get(oid))
        return against

    return session.read(ask)


_KNOWN = sql.SQL(
    "SELECT to_regtype(t.name)::oid::bigint FROM unnest(%s::text[]) WITH ORDINALITY t(name, n) ORDER BY t.n"
)
_MAY_CREATE = sql.SQL(
    """
    SELECT s.oid IS NOT NULL,
           coalesce(has_schema_privilege(s.oid, 'CREATE') AND has_schema_privilege(s.oid, 'USAGE'), false),
           has_database_privilege(current_database(), 'CREATE')
    FROM (SELECT 1) one LEFT JOIN pg_namespace s ON s.nspname = %(schema)s
    """
)
