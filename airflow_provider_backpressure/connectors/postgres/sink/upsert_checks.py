"""Rows that take each other's place by key: what a target must have for it, and what it must not have."""

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.catalog import Relation
from airflow_provider_backpressure.connectors.postgres.connect import Session
from airflow_provider_backpressure.connectors.postgres.identifiers import QualifiedName, join_names
from airflow_provider_backpressure.connectors.postgres.sink.system_tables import SystemTable, frontier_table
from airflow_provider_backpressure.connectors.postgres.tasks.trigger_checks import FIRES
from airflow_provider_backpressure.core.config import Log, Mode
from airflow_provider_backpressure.core.snapshot.spark_messages import Column

KEYED = (Mode.UPSERT, Mode.MIRROR)
"""Modes by which rows take each other's place by key."""


@dataclass(frozen=True, kw_only=True)
class Fitting:
    """What is to go where."""

    name: QualifiedName
    columns: Sequence[Column]
    mode: Mode
    key: tuple[str, ...]
    system: tuple[SystemTable, ...]
    log: Log | None = None

    @property
    def others(self) -> list[QualifiedName]:
        """The tables that are kept beside the target."""
        return [*(each.name for each in self.system), frontier_table(self.system[0].name.schema).name]


def against_exchange(session: Session, fitting: Fitting, table: Relation) -> list[str]:
    """Return the obstacles to rows of the target being changed or deleted, each as part of a sentence."""
    if fitting.mode not in KEYED:
        return []
    against = _against_key(fitting, table)
    if fitting.log is None and fitting.mode is not Mode.MIRROR:
        return against
    if fitting.log is not None and table.has_children:
        against.append("other tables inherit from it, and their rows would be changed and deleted as its own")
    found = Found(*session.rows(_FOUND, {"table": table.oid, "key": list(fitting.key)})[0])
    user = session.endpoint.user
    if fitting.log in (Log.RECORDS, Log.PARTS):
        parted = _against_parts(found) if fitting.log is Log.PARTS else []
        return [*against, *_against_tombstones(found, user), *parted]
    return [*against, *_against_replaying(found, fitting, user)]


def _against_key(fitting: Fitting, table: Relation) -> list[str]:
    wanted = set(fitting.key)
    usable = [unique for unique in table.keys if unique.immediate and not unique.refuses_overlaps]
    found = [unique for unique in usable if set(unique.columns) == wanted]
    if not found:
        return [
            f"key {join_names(fitting.key)} is not unique there: {fitting.mode} needs a unique index on exactly that"
        ]
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


@dataclass(frozen=True)
class Found:
    """What a target has that forbids to change or delete its rows: names, and a right."""

    others: list[str]
    """Unique indexes of other columns than the key's, and those that refuse more than equal keys."""
    foreign: list[str]
    cascading: list[str]
    """Foreign keys by which a deleted row changes other tables."""
    may_delete: bool
    triggers: list[str]
    """Triggers that may change or drop rows."""
    deleting: list[str]
    """Triggers that may keep rows from being deleted."""
    rules: list[str]
    loose: list[str]
    """Columns of the key whose own collation, or a unique index's, takes different texts for equal."""


def _against_tombstones(found: Found, user: str) -> list[str]:
    """Return the obstacles to a topic's order, and to tombstones. They come again where the topic is read again."""
    against = []
    if found.cascading:
        against.append(
            f"by its foreign key {join_names(found.cascading)} a tombstone would change rows of other tables: let it "
            "refuse deletes (NO ACTION), or drop it"
        )
    if found.deleting:
        against.append(f"its trigger {join_names(found.deleting)} may keep rows with a tombstone: drop or disable it")
    return [*against, *_against_rules(found, "upserted"), *_against_collation(found), *_against_keeping(found, user)]


def _against_parts(found: Found) -> list[str]:
    """Return the obstacles to keys of one moment going in at different times."""
    if not found.others:
        return []
    return [f"its unique index {join_names(found.others)} may be broken while parts are at different offsets: drop it"]


def _against_rules(found: Found, what: str) -> list[str]:
    if not found.rules:
        return []
    return [f"its rule {join_names(found.rules)} replaces statements that are {what}: drop or disable it"]


def _against_collation(found: Found) -> list[str]:
    if not found.loose:
        return []
    return [f"the collation of key {join_names(found.loose)} takes different texts for equal: give it another"]


def _against_keeping(found: Found, user: str) -> list[str]:
    return [] if found.may_delete else [f"{user} has no DELETE right on it"]


def _against_replaying(found: Found, fitting: Fitting, user: str) -> list[str]:
    """Return the obstacles to rows of different times, and to deleting some."""
    against = []
    mirrored = fitting.mode is Mode.MIRROR
    until = "while ranges are of different times" if mirrored else "until the log has been replayed"
    drop, what = "drop it, or use mode='replace'" if mirrored else "drop it", "mirrored" if mirrored else "replayed"
    if found.others:
        against.append(f"its unique index {join_names(found.others)} may be broken {until}: {drop}")
    if found.foreign:
        against.append(f"its foreign key {join_names(found.foreign)} may be broken {until}: {drop}")
    if found.triggers:
        against.append(
            f"its trigger {join_names(found.triggers)} may change or drop rows that are {what}: drop or disable it"
        )
    return [*against, *_against_rules(found, what), *_against_collation(found), *_against_keeping(found, user)]


def against_encoding(session: Session) -> list[str]:
    """Texts are compared as they were sent, to find the part that they are of."""
    encoding = session.value(sql.SQL("SELECT current_setting('server_encoding')"))
    if encoding in ("UTF8", "SQL_ASCII"):
        return []
    return [f"its database keeps text as {encoding}, in which two keys may become one: upsert_parts needs UTF8"]


def against_staging(session: Session, fitting: Fitting) -> list[str]:
    """Rows that are compared with the target's go through a temporary table."""
    if fitting.mode not in KEYED or session.recall(_STAGES):
        return []
    if session.value(_MAY_STAGE):
        session.note(_STAGES)
        return []
    return [f"{session.endpoint.user} has no TEMPORARY right on database {join_names([session.endpoint.database])}"]


_FOUND = sql.SQL(
    """
    SELECT array(
               SELECT x.relname::text FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
               WHERE i.indrelid = ANY (f.below) AND (i.indrelid = c.oid OR NOT x.relispartition)
                 AND (i.indisexclusion OR i.indisunique AND %(key)s::text[] IS DISTINCT FROM (
                   SELECT array_agg(a.attname::text ORDER BY array_position(%(key)s::text[], a.attname::text))
                   FROM pg_attribute a WHERE a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey::int2[])))
               ORDER BY 1),
           array(
               SELECT conname::text FROM pg_constraint
               WHERE contype = 'f' AND conparentid = 0 AND (conrelid = ANY (f.every) OR confrelid = ANY (f.every))
               ORDER BY 1),
           array(
               SELECT conname::text FROM pg_constraint
               WHERE contype = 'f' AND conparentid = 0 AND confrelid = ANY (f.every) AND confdeltype IN ('c', 'n', 'd')
               ORDER BY 1),
           has_table_privilege(c.oid, 'DELETE'),
           array(
               SELECT tgname::text FROM pg_trigger
               WHERE tgrelid = ANY (f.below) AND NOT tgisinternal AND tgenabled::text {fires}
                 AND (tgtype & 3 = 3 OR tgdeferrable)
               ORDER BY 1),
           array(
               SELECT tgname::text FROM pg_trigger
               WHERE tgrelid = ANY (f.below) AND NOT tgisinternal AND tgenabled::text {fires} AND tgtype & 11 = 11
               ORDER BY 1),
           array(
               SELECT rulename::text FROM pg_rewrite
               WHERE ev_class = c.oid AND is_instead AND ev_enabled::text {fires} ORDER BY 1),
           array(
               SELECT a.attname::text FROM pg_attribute a JOIN pg_collation l ON l.oid = a.attcollation
               WHERE a.attrelid = c.oid AND a.attname = ANY (%(key)s::text[]) AND NOT l.collisdeterministic
               UNION
               SELECT a.attname::text FROM pg_index i
               CROSS JOIN unnest(i.indkey::int2[], i.indcollation::oid[]) part (attnum, attcollation)
               JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = part.attnum
               JOIN pg_collation l ON l.oid = part.attcollation
               WHERE i.indrelid = ANY (f.below) AND i.indisunique AND a.attname = ANY (%(key)s::text[])
                 AND NOT l.collisdeterministic
               ORDER BY 1)
    FROM pg_class c, LATERAL (
        SELECT array(SELECT c.oid UNION SELECT relid::oid FROM pg_partition_tree(c.oid)) AS below,
               array(SELECT c.oid UNION SELECT relid::oid FROM pg_partition_tree(c.oid)
                     UNION SELECT relid::oid FROM pg_partition_ancestors(c.oid)) AS every) f
    WHERE c.oid = %(table)s
    """
).format(fires=sql.SQL(FIRES))
_STAGES = "may stage rows"
_MAY_STAGE = sql.SQL("SELECT has_database_privilege(current_database(), 'TEMPORARY')")
