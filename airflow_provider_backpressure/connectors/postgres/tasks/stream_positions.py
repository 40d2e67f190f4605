"""Rows of a log into a target by key and in the log's order: the last one wins, and a tombstone deletes."""

from collections.abc import Sequence

import psycopg
from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.tasks.staging_table import STAGE, move_stage
from airflow_provider_backpressure.core.snapshot.messages import RangeSpec, Slice, WriteSpec
from airflow_provider_backpressure.core.snapshot.stream_positions import keyless, moves

Place = tuple[int, int]
"""A partition and an offset."""


def advance(connection: psycopg.Connection, spec: RangeSpec, piece: Slice) -> None:
    """Move every stream of a slice from its start to its end; ``RangeFailed`` where one is not at its start.

    Then a range before this one is not in, or another attempt has brought this one in. Row locks order two attempts.
    """
    query = sql.SQL(_ADVANCE).format(sql.SQL(spec.write.frontier_table))
    for step in moves(piece.bounds, spec.read.window):
        values = {"target": spec.write.fence, "stream": step.stream, "start": step.start, "end": step.end}
        if connection.execute(query, values).rowcount != 1:
            raise step.refusal(spec.write.fence)


def move_in_order(connection: psycopg.Connection, write: WriteSpec, tombstones: Sequence[Place]) -> None:
    """Put the last row of each key into the target, or remove the target's where the last one is a tombstone.

    ``tombstones``: partition and offset of each.
    """
    key = sql.SQL(", ").join(map(sql.Identifier, write.key))
    _check_keys(connection, write)
    last = sql.SQL('(SELECT DISTINCT ON ({0}) * FROM {1} ORDER BY {0}, "partition" DESC, "offset" DESC) AS l').format(
        key, STAGE
    )
    if not tombstones:
        move_stage(connection, write, last)
        return
    found = sql.SQL('(l."partition"::bigint, l."offset"::bigint) IN (SELECT * FROM unnest({}::bigint[], {}::bigint[]))')
    gone = found.format(*(sql.Literal(list(numbers)) for numbers in zip(*tombstones, strict=True)))
    same = sql.SQL(" AND ").join(sql.SQL("t.{0} = l.{0}").format(sql.Identifier(name)) for name in write.key)
    connection.execute(
        sql.SQL("DELETE FROM {} AS t USING {} WHERE {} AND {}").format(sql.SQL(write.target), last, same, gone)
    )
    move_stage(connection, write, last + sql.SQL(" WHERE (") + gone + sql.SQL(") IS NOT TRUE"))


def _check_keys(connection: psycopg.Connection, write: WriteSpec) -> None:
    """``SinkRefused`` names the first row without a key: it could be no row's successor, and have none."""
    missing = sql.SQL(" OR ").join(sql.SQL("{} IS NULL").format(sql.Identifier(name)) for name in write.key)
    found = connection.execute(
        sql.SQL('SELECT "partition", "offset" FROM {} WHERE {} ORDER BY 1, 2 LIMIT 1').format(STAGE, missing)
    ).fetchone()
    if found is not None:
        raise keyless(found[0], found[1], write.key, write.fence)


_ADVANCE = """
    UPDATE {} SET pos = %(end)s, moved_at = clock_timestamp()
    WHERE target = %(target)s AND stream = %(stream)s AND pos = %(start)s
"""
