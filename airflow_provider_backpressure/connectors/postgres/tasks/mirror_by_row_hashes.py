"""A range that has changed, of which only the rows that differ are staged: they are found by a hash of each row.

The source's rows are read in the transaction in which its server has hashed them, so the checksum of the marker is that
of the rows that were compared.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress

import numpy
import numpy.typing
import psycopg
from psycopg import sql
from xxhash import xxh3_64_intdigest

from airflow_provider_backpressure.connectors.postgres.tasks.binary_copy import BEGINNING, ENDING, OPTIONS
from airflow_provider_backpressure.connectors.postgres.tasks.connections import SOURCE
from airflow_provider_backpressure.connectors.postgres.tasks.copy_streams import CopyOut, own_types
from airflow_provider_backpressure.connectors.postgres.tasks.mirror import MirroredRange
from airflow_provider_backpressure.connectors.postgres.tasks.server_hash import (
    HashedRows,
    algorithm_of,
    choose_algorithm,
    hash_alike,
)
from airflow_provider_backpressure.connectors.postgres.tasks.staging_table import (
    STAGE,
    Buffer,
    RowSum,
    make_stage,
    names,
    open_copy_in,
)
from airflow_provider_backpressure.connectors.postgres.tasks.trigger_checks import execute_alone
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.failpoints import Step, reach
from airflow_provider_backpressure.core.snapshot.ranges import attempt_tag
from airflow_provider_backpressure.core.snapshot.spark_messages import RangeSpec, Slice, SliceResult
from airflow_provider_backpressure.spark.reader_timings import time_handovers

Hashes = numpy.typing.NDArray[numpy.uint64]


class NotComparable(Exception):
    """Hashes of rows do not say which of them differ: the range is to be staged as a whole."""


@dataclass(frozen=True, kw_only=True)
class SourceRange:
    """A range of the source that its server has hashed, in a transaction that is still open."""

    endpoint: Endpoint
    connection: psycopg.Connection
    hashed: HashedRows
    piece: Slice


class HeldRows:
    """Hashes of the rows that a range of the target holds, and which of these rows the source has too."""

    def __init__(self, hashes: Hashes) -> None:
        """``NotComparable`` where two rows have one hash."""
        self._hashes = numpy.sort(hashes)
        self._seen = numpy.zeros(len(hashes), dtype=bool)
        if (self._hashes[1:] == self._hashes[:-1]).any():
            raise NotComparable

    def take_new(self, rows: Sequence[Buffer]) -> list[Buffer]:
        """Return those of the source's rows that the target does not hold; the others have been seen from now on."""
        if not rows or not len(self._hashes):
            return list(rows)
        places, held = self._find(rows)
        self._seen[places[held]] = True
        return list(compress(rows, (~held).tolist()))

    def are_others(self, rows: Sequence[Buffer]) -> bool:
        """Whether all of these rows are held, and the source has none of them."""
        if not rows or not len(self._hashes):
            return not rows
        places, held = self._find(rows)
        return bool((held & ~self._seen[places]).all())

    def _find(
        self, rows: Sequence[Buffer]
    ) -> tuple[numpy.typing.NDArray[numpy.intp], numpy.typing.NDArray[numpy.bool]]:
        """Return where each row would be, and whether it is there."""
        hashes = hash_each(rows)
        places = numpy.minimum(numpy.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        return places, self._hashes[places] == hashes

    def count_seen(self) -> int:
        """Return how many of the target's rows the source has too."""
        return int(numpy.count_nonzero(self._seen))

    def count_others(self) -> int:
        """Return how many of the target's rows the source has with other values, or not at all."""
        return len(self._seen) - self.count_seen()


def hash_each(rows: Sequence[Buffer]) -> Hashes:
    """Return a hash of each row, in their order."""
    return numpy.fromiter(map(xxh3_64_intdigest, rows), numpy.uint64, count=len(rows))


def mirror_by_row_hashes(connection: psycopg.Connection, spec: RangeSpec, source: SourceRange) -> SliceResult:
    """Make the target's rows within a range's bounds those of the source, and return what the marker is to say.

    Raises ``NotComparable`` where the range is to be staged as a whole, with which the sink's transaction has to end:
    also where counts do not agree, since rows of one key, or somebody else's writes, are seen there. Otherwise errors
    as for :func:`.mirror_stage`.
    """
    range_ = MirroredRange.from_slice(spec, source.piece)
    _check_comparable(connection, source, range_.select())
    held = HeldRows(_read_hashes(connection, range_.select()))
    make_stage(connection, spec.write)
    total, staged = _stage_new_rows(connection, spec, source, held)
    if held.count_seen() != total.rows - staged:
        raise NotComparable
    range_.check_stage(connection)
    parts = range_.list_parts(connection)
    changed = _count_replaced(connection, parts, held)
    if changed and execute_alone(connection, spec.write, sql.SQL(_UPDATE).format(**parts)) != changed:
        raise NotComparable
    fresh, gone = staged - changed, held.count_others() - changed
    if fresh and execute_alone(connection, spec.write, sql.SQL(_INSERT).format(**parts)) != fresh:
        raise NotComparable
    if gone:
        _stage_keys(connection, spec, source)
        if range_.delete(connection, gone, kept=KEYS) != gone:
            raise NotComparable
    return SliceResult(
        slice_id=source.piece.slice_id,
        rows=total.rows,
        bytes=total.bytes,
        checksum=source.hashed.checksum,
        deleted=gone,
    )


def _check_comparable(connection: psycopg.Connection, source: SourceRange, rows: sql.Composed) -> None:
    """Raise ``NotComparable`` where the servers have a better algorithm, hash otherwise or have types of their own."""
    servers = source.connection, connection
    best = choose_algorithm(*(server.info.server_version for server in servers))
    if algorithm_of(source.hashed.checksum) != best or not hash_alike(*servers):
        raise NotComparable
    if any(own_types(connection, rows.as_string(connection)).values()):
        raise NotComparable


def _read_hashes(connection: psycopg.Connection, rows: sql.Composed) -> Hashes:
    return numpy.concatenate([hash_each(block) for block in _copy_out(connection, rows, RowSum(hashes=False))])


def _count_replaced(connection: psycopg.Connection, parts: Mapping[str, sql.Composable], held: HeldRows) -> int:
    """Return how many rows of the target have the key of a staged one.

    ``NotComparable`` where the source has one of them too, or one was changed meanwhile.
    """
    total = RowSum(hashes=False)
    # To the end, whatever comes: a COPY that is left half-way takes no other statement.
    found = [held.are_others(block) for block in _copy_out(connection, sql.SQL(_REPLACED).format(**parts), total)]
    if not all(found):
        raise NotComparable
    return total.rows


def _copy_out(connection: psycopg.Connection, rows: sql.Composed, total: RowSum) -> Iterator[Sequence[Buffer]]:
    return _split(CopyOut(connection, f"COPY ({rows.as_string(connection)}) TO STDOUT ({OPTIONS})"), total)


def _split(stream: CopyOut, total: RowSum) -> Iterator[Sequence[Buffer]]:
    """Yield a stream's rows; ``RangeFailed`` where the server counted others."""
    for messages in stream:
        yield total.take(messages)
    yield total.take_last()
    total.finish(stream.rows)


def _stage_new_rows(
    connection: psycopg.Connection, spec: RangeSpec, source: SourceRange, held: HeldRows
) -> tuple[RowSum, int]:
    """Stage the rows that the target does not hold. Return the source's rows, and how many were staged."""
    tag = attempt_tag(spec.plan_id, source.piece.slice_id, spec.attempt)
    total = RowSum(hashes=False)
    version = source.connection.info.server_version
    with open_copy_in(connection, STAGE, spec.write.columns, OPTIONS, source_version=version) as target:
        target.put(BEGINNING)
        for rows in time_handovers(_read(source, source.piece.query, total)):
            target.put(b"".join(held.take_new(rows)))
            reach(Step.IN_COPY, tag)
        target.put(ENDING)
    if total.rows != source.hashed.rows:
        raise NotComparable
    return total, target.rows


def _stage_keys(connection: psycopg.Connection, spec: RangeSpec, source: SourceRange) -> None:
    """Stage the keys of all rows of the source, so that what the source does not have can be deleted."""
    columns = [column for column in spec.write.columns if column.name in spec.write.key]
    create = sql.SQL("CREATE TEMP TABLE {} ON COMMIT DROP AS SELECT {} FROM {} WITH NO DATA")
    table = sql.Identifier("backpressure_keys")
    connection.execute(create.format(table, names(columns), sql.SQL(spec.write.target)))
    query = sql.SQL("SELECT {} FROM ({}) AS q").format(names(columns), sql.SQL(source.piece.query))
    with open_copy_in(connection, KEYS, columns, OPTIONS) as target:
        target.put(BEGINNING)
        for rows in time_handovers(_read(source, query.as_string(connection), RowSum(hashes=False))):
            target.put(b"".join(rows))
        target.put(ENDING)


def _read(source: SourceRange, query: str, total: RowSum) -> Iterator[Sequence[Buffer]]:
    with SOURCE.translate_errors(source.endpoint):
        stream = CopyOut(source.connection, f"COPY ({query}) TO STDOUT ({OPTIONS})")
    return SOURCE.translate_blocks(_split(stream, total), source.endpoint)


KEYS = sql.Identifier("pg_temp", "backpressure_keys")
_REPLACED = """
    SELECT {replaced} FROM {target} AS t JOIN {stage} AS s ON {key} WHERE {bounded}
"""
_UPDATE = """
    UPDATE {target} AS t SET {changes} FROM {stage} AS s WHERE {key} AND {bounded}
"""
_INSERT = """
    INSERT INTO {target} ({every}) OVERRIDING SYSTEM VALUE
    SELECT {every} FROM {stage} AS s WHERE NOT EXISTS (SELECT FROM {target} AS t WHERE {key} AND {bounded})
"""
