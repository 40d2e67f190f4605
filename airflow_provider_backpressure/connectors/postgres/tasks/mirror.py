"""A staged range takes the place of the target's rows within its bounds, as far as they differ."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import psycopg
from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.key_operators import find_key_operators
from airflow_provider_backpressure.connectors.postgres.key_types import key_cast
from airflow_provider_backpressure.connectors.postgres.predicates import condition
from airflow_provider_backpressure.connectors.postgres.tasks.staging_table import (
    MIRROR,
    STAGE,
    hash_rows,
    list_changing,
    move_stage,
    names,
)
from airflow_provider_backpressure.connectors.postgres.tasks.trigger_checks import execute_alone
from airflow_provider_backpressure.core.snapshot.bounds import KeyBounds, NullBounds, bounds_from_json
from airflow_provider_backpressure.core.snapshot.spark_messages import RangeSpec, Slice, SliceResult, WriteSpec
from airflow_provider_backpressure.exceptions import ALLOW_DELETES, PlanOutdated, SinkRefused


@dataclass(frozen=True, kw_only=True)
class MirroredRange:
    """A range, and what keeps the target's rows of it."""

    spec: RangeSpec
    bounds: KeyBounds | NullBounds
    within: Sequence[sql.Composable]
    """The comparisons that keep the target's rows of these bounds."""

    @classmethod
    def from_slice(cls, spec: RangeSpec, piece: Slice) -> "MirroredRange":
        """Return that of a slice; ``SinkRefused`` where it is not cut by a key of the target."""
        bounds = bounds_from_json(dict(piece.bounds))
        if not isinstance(bounds, KeyBounds | NullBounds):
            raise SinkRefused(f"Range {bounds} cannot be mirrored: it is not cut by a key.")
        return cls(spec=spec, bounds=bounds, within=_list_conditions(spec.write, bounds))

    def select(self, columns: sql.Composable | None = None) -> sql.Composed:
        """Return the query for the target's rows; ``columns``: those that are written, where not given."""
        write = self.spec.write
        return sql.SQL("SELECT {} FROM {} WHERE {}").format(
            columns or names(write.columns), sql.SQL(write.target), _join_conditions(self.within)
        )

    def check_stage(self, connection: psycopg.Connection) -> None:
        """Raise ``SinkRefused`` where staged rows have one key, or lie outside the bounds; count their keys.

        From here on they can be compared with those of the target.
        """
        find_key_operators(connection, self.spec.write.target, self.spec.write.key)
        key = sql.SQL(", ").join(map(sql.Identifier, self.spec.write.key))
        _check_key(connection, self.spec, key)
        # Of the key alone, and of few rows: what the planner has to know is how many there are, and that they differ.
        connection.execute("SELECT set_config('default_statistics_target', '1', true)")
        connection.execute(sql.SQL("ANALYZE {} ({})").format(STAGE, key))
        _check_bounds(connection, self.spec, self.bounds, self.within)

    def list_parts(self, connection: psycopg.Connection) -> dict[str, sql.Composable]:
        """Return the parts of a statement on the target ``t`` and the stage ``s``."""
        write = self.spec.write
        columns = [sql.Identifier(column.name) for column in write.columns]
        return {
            "target": sql.SQL(write.target),
            "stage": STAGE,
            "bounded": _join_conditions(_list_conditions(write, self.bounds, table="t")),
            "every": names(write.columns),
            "replaced": sql.SQL(", ").join(sql.SQL("t.{}").format(name) for name in columns),
            "key": sql.SQL(" AND ").join(sql.SQL("t.{0} = s.{0}").format(sql.Identifier(name)) for name in write.key),
            "changes": sql.SQL(", ").join(
                sql.SQL("{0} = s.{0}").format(sql.Identifier(name)) for name in list_changing(connection, write)
            ),
        }

    def delete(self, connection: psycopg.Connection, gone: int, *, kept: sql.Composable = STAGE) -> int:
        """Delete the target's rows without a key in ``kept``, where the plan may delete so many; return how many."""
        _check_deletes(connection, self.spec, gone)
        parts = self.list_parts(connection) | {"stage": kept}
        return execute_alone(connection, self.spec.write, sql.SQL(_DELETE).format(**parts))


def mirror_stage(connection: psycopg.Connection, spec: RangeSpec, piece: Slice, staged: SliceResult) -> SliceResult:
    """Make the target's rows within the slice's bounds those of the stage, and return the result with what was deleted.

    Nothing is done where they are known to be the same. ``SinkRefused`` where rows of the stage lie outside the bounds
    or have one key, or more rows would be deleted than the plan may delete. ``PlanOutdated`` where only rows of the
    plan may be exchanged, and others are there too.
    """
    if spec.is_unchanged(staged) and not staged.quarantined:
        return replace(staged, unchanged=True)
    write, range_ = spec.write, MirroredRange.from_slice(spec, piece)
    if spec.corrects:
        _check_own_rows(connection, range_)
    range_.check_stage(connection)
    every = range_.select(sql.SQL("*"))
    if not _read_number(connection, sql.SQL("SELECT EXISTS ({})::int").format(every)):
        # Nothing to compare with. A key that is there nevertheless is an error, in every mode.
        move_stage(connection, replace(write, mode=MIRROR), alone=True)
        return staged
    columns = [column.name for column in write.columns]
    kept = {name: sql.Identifier(f"c{number}") for number, name in enumerate(columns)}
    parts = range_.list_parts(connection) | {
        "range": every,
        "differences": DIFFERENCES,
        "first": sql.Identifier(write.key[0]),
        "changes": sql.SQL(", ").join(
            sql.SQL("{} = d.{}").format(sql.Identifier(name), kept[name]) for name in list_changing(connection, write)
        ),
        "same": sql.SQL(" AND ").join(
            sql.SQL("t.{} = d.{}").format(sql.Identifier(name), kept[name]) for name in write.key
        ),
        "kept": sql.SQL(", ").join(kept.values()),
        "keeps": sql.SQL(", ").join(sql.SQL("s.{} AS {}").format(sql.Identifier(name), kept[name]) for name in columns),
        "new": sql.SQL(", ").join(sql.SQL("s.{}").format(sql.Identifier(name)) for name in columns),
    }
    connection.execute(sql.SQL(_COMPARE).format(**parts))
    gone, fresh, changed = _count_differences(connection)
    if changed:
        execute_alone(connection, write, sql.SQL(_UPDATE).format(**parts))
    if fresh:
        execute_alone(connection, write, sql.SQL(_INSERT).format(**parts))
    if gone:
        range_.delete(connection, gone)
    return replace(staged, deleted=gone)


def _count_differences(connection: psycopg.Connection) -> tuple[int, int, int]:
    """Return how many of the target's rows are not staged, how many staged ones it lacks, and how many differ."""
    row = connection.execute(sql.SQL(_COUNT).format(differences=DIFFERENCES)).fetchone()
    assert row is not None, "an aggregate has one row"
    gone, fresh, changed = row
    return gone, fresh, changed


def _check_deletes(connection: psycopg.Connection, spec: RangeSpec, gone: int) -> None:
    """Raise ``SinkRefused`` where the plan would delete more of the target's rows than it may."""
    write = spec.write
    if write.most_deleted is None:
        return
    # From here to the commit one range at a time, so that all of them together stay within the limit.
    connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, %s))", (write.fence, DELETING))
    before = sql.SQL("SELECT coalesce(sum(deleted), 0)::bigint FROM {} WHERE plan_id = {}").format(
        sql.SQL(write.commit_table), sql.Literal(spec.plan_id)
    )
    total = _read_number(connection, before) + gone
    if total > write.most_deleted:
        raise SinkRefused(
            f"Range {spec.seq} would delete {gone} rows of {write.fence}, with which its run would delete {total}, "
            f"more than Budget(max_deletes=...) allows ({write.most_deleted}): {ALLOW_DELETES} "
            "if they are to go."
        )


def _list_conditions(
    write: WriteSpec, bounds: KeyBounds | NullBounds, table: str | None = None
) -> list[sql.Composable]:
    """Return the comparisons that keep the target's rows of these bounds; ``table``: what the columns are named by."""
    by = bounds.columns if isinstance(bounds, KeyBounds) else (bounds.column,)
    types = {column.name: column.type for column in write.columns}
    casts = [key_cast(types.get(name, "")) for name in by]
    known = [cast for cast in casts if cast is not None]
    if len(known) < len(casts):
        raise SinkRefused(f"Range {bounds} cannot be mirrored: {write.fence} has no such key.")
    return condition(bounds, known, table)


def _join_conditions(within: Sequence[sql.Composable]) -> sql.Composable:
    return sql.SQL(" AND ").join(within) if within else sql.SQL("true")


def _check_own_rows(connection: psycopg.Connection, range_: MirroredRange) -> None:
    """Raise ``PlanOutdated`` unless the target's rows within the bounds are those that the plan has committed there."""
    spec = range_.spec
    total, checksum = hash_rows(connection, range_.select())
    assert spec.last_write is not None, "the marker whose place is taken"
    if (total.rows, checksum) != (spec.last_write.rows, spec.last_write.checksum):
        raise PlanOutdated(
            f"The rows of the range {range_.bounds} in {spec.write.fence} are not those that plan {spec.plan_id} has "
            "committed: somebody else has written there."
        )


def _check_key(connection: psycopg.Connection, spec: RangeSpec, key: sql.Composed) -> None:
    """Raise ``SinkRefused`` where staged rows have one key: which of them the target keeps would be left to chance."""
    try:
        connection.execute(sql.SQL("CREATE UNIQUE INDEX ON {} ({})").format(STAGE, key))
    except psycopg.errors.UniqueViolation:
        # Without its cause, which has values of the rows.
        raise _refusal(spec)(
            f"Range {spec.seq} holds several rows of one key ({', '.join(spec.write.key)}), and {spec.write.fence} can "
            "hold only one of them. Remove the others from the source or in the transform, or give the sink a key= "
            "that is unique there."
        ) from None


def _refusal(spec: RangeSpec) -> type[SinkRefused] | type[PlanOutdated]:
    """Return the error for rows that cannot take the place of others: a plan that only corrects rows is closed."""
    return PlanOutdated if spec.corrects else SinkRefused


def _check_bounds(
    connection: psycopg.Connection, spec: RangeSpec, bounds: KeyBounds | NullBounds, within: Sequence[sql.Composable]
) -> None:
    """Raise ``SinkRefused`` where staged rows belong to another range: rows of this one would be deleted for them."""
    if not within:
        return
    query = sql.SQL("SELECT EXISTS (SELECT FROM {} WHERE ({}) IS NOT TRUE)::int").format(
        STAGE, _join_conditions(within)
    )
    if _read_number(connection, query):
        raise _refusal(spec)(
            f"Rows of the range {bounds} lie outside of it in {spec.write.fence}: a transform has changed the key, or "
            "it is ordered otherwise there. Let the transform keep the key, or use mode='replace'."
        )


def _read_number(connection: psycopg.Connection, query: sql.Composed) -> int:
    row = connection.execute(query).fetchone()
    assert row is not None, "one value is asked for"
    return int(row[0])


DELETING = 0x6270_6465_6C65
"""Advisory lock of ranges that delete, beside the target's name."""
DIFFERENCES = sql.Identifier("pg_temp", "backpressure_differences")
# Each side is read once for all three statements. No column of the key is NULL in a row that has its twin. Compared is
# what is stored: values that are equal, such as 1.0 and 1.00, are different rows to a checksum, and some types have no
# equality.
_COMPARE = """
    CREATE TEMP TABLE backpressure_differences ON COMMIT DROP AS
    SELECT {keeps}, s.ctid IS NULL AS gone, s.ctid IS NOT NULL AND t.{first} IS NULL AS fresh
    FROM ({range}) AS t FULL JOIN {stage} AS s ON {key}
    WHERE s.ctid IS NULL OR t.{first} IS NULL OR ROW({replaced})::record *<> ROW({new})::record
"""
_COUNT = """
    SELECT count(*) FILTER (WHERE gone), count(*) FILTER (WHERE fresh), count(*) FILTER (WHERE NOT gone AND NOT fresh)
    FROM {differences}
"""
_UPDATE = """
    UPDATE {target} AS t SET {changes} FROM {differences} AS d
    WHERE {same} AND NOT d.gone AND NOT d.fresh AND {bounded}
"""
_INSERT = """
    INSERT INTO {target} ({every}) OVERRIDING SYSTEM VALUE SELECT {kept} FROM {differences} AS d WHERE d.fresh
"""
_DELETE = """
    DELETE FROM {target} AS t WHERE {bounded} AND NOT EXISTS (SELECT FROM {stage} AS s WHERE {key})
"""
