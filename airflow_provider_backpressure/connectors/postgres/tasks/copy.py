"""The copy path: a slice goes from PostgreSQL to PostgreSQL as binary COPY, never decoded.

It is taken where both tables' columns have the same types and no transform is asked for.
"""

from contextlib import suppress
from dataclasses import replace
from functools import partial

import psycopg
from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.tasks.connections import SOURCE
from airflow_provider_backpressure.connectors.postgres.tasks.copy_streams import Reading, open_copy_out, own_types
from airflow_provider_backpressure.connectors.postgres.tasks.mirror import mirror_stage
from airflow_provider_backpressure.connectors.postgres.tasks.server_hash import (
    algorithm_of,
    choose_algorithm,
    hash_on_server,
    is_server_hash,
    open_hash,
)
from airflow_provider_backpressure.connectors.postgres.tasks.slice_commit import SliceCommit
from airflow_provider_backpressure.connectors.postgres.tasks.staging_table import (
    MIRROR,
    STAGE,
    STAGED,
    RowSum,
    hash_stage,
    make_stage,
    move_stage,
    names,
    open_copy_in,
    select_stage,
)
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.failpoints import Step, reach
from airflow_provider_backpressure.core.snapshot.ranges import attempt_tag
from airflow_provider_backpressure.core.snapshot.spark_messages import RangeSpec, Slice, SliceResult
from airflow_provider_backpressure.exceptions import RangeFailed
from airflow_provider_backpressure.spark.reader_timings import time_handovers, time_open
from airflow_provider_backpressure.spark.task import measure


def run_slice(spec: RangeSpec, piece: Slice, source: Endpoint, sink: Endpoint) -> SliceResult:
    """Copy one slice exactly once, inside a task; errors as in :func:`copy_slice`."""
    return measure(partial(copy_slice, spec, piece, source, sink))


def copy_slice(spec: RangeSpec, piece: Slice, source: Endpoint, sink: Endpoint) -> SliceResult:
    """Copy a slice exactly once and return what its marker says; errors as in :meth:`SliceCommit.run`.

    Rows are only hashed where the target is known to hold them already. Where the source's server does it, that is
    cheap enough for ranges that changed in the run before, too, and of those that changed only the rows that differ
    are written.
    """
    last = spec.last_write
    if last is not None and spec.write.mode == MIRROR:
        # A marker of an earlier release proves nothing about checksums of this one: its range is staged.
        if is_server_hash(last.checksum) and (mirrored := _mirror(spec, piece, source, sink)) is not None:
            return mirrored
    elif last is not None and not last.staged:
        found = _hash(spec, piece, source)
        if spec.is_unchanged(found):
            return replace(found, unchanged=True)
    return SliceCommit(spec=spec, piece=piece).run(sink, partial(_fill, spec, piece, source))


def _mirror(spec: RangeSpec, piece: Slice, source: Endpoint, sink: Endpoint) -> SliceResult | None:
    """Mirror a slice whose last checksum is one of a server; ``None`` where it is to be staged as a whole."""
    # Only here: it loads numpy, which a process that copies does without.
    from airflow_provider_backpressure.connectors.postgres.tasks.mirror_by_row_hashes import (
        NotComparable,
        SourceRange,
        mirror_by_row_hashes,
    )

    assert spec.last_write is not None, "the write that the checksum is of"
    tag = attempt_tag(spec.plan_id, piece.slice_id, spec.attempt)
    reading = replace(Reading.from_slice(spec.read, piece, tag), repeatable=True)
    with time_open(open_hash(source, reading, algorithm_of(spec.last_write.checksum))) as (connection, found):
        result = SliceResult(slice_id=piece.slice_id, rows=found.rows, bytes=0, checksum=found.checksum)
        if spec.is_unchanged(result):
            return replace(result, unchanged=True)
        rows = SourceRange(endpoint=source, connection=connection, hashed=found, piece=piece)
        with suppress(NotComparable):
            return SliceCommit(spec=spec, piece=piece).run(sink, lambda to: mirror_by_row_hashes(to, spec, rows))
    return None


def _fill(spec: RangeSpec, piece: Slice, source: Endpoint, connection: psycopg.Connection) -> SliceResult:
    """Stream the slice into the sink's open transaction; a source that breaks off raises, so nothing is kept.

    Rows go straight into the target, but through a stage where they are merged by key, or where the target has types
    of its own making: their binary form cannot be compared between databases, so they are hashed in the stage.
    """
    write = spec.write
    target = sql.SQL("SELECT {} FROM {}").format(names(write.columns), sql.SQL(write.target)).as_string(connection)
    own = any(own_types(connection, target).values())
    staged = own or write.mode in STAGED or spec.corrects
    if staged:
        make_stage(connection, write)
    copied, version = _copy(spec, piece, source, connection, STAGE if staged else sql.SQL(write.target))
    if write.mode == MIRROR:
        algorithm = choose_algorithm(version, connection.info.server_version)
        copied = replace(copied, checksum=hash_on_server(connection, select_stage(write), algorithm).checksum)
    elif own:
        total, checksum = hash_stage(connection, write)
        copied = replace(copied, bytes=total.bytes, checksum=checksum)
    if write.mode == MIRROR or spec.corrects:
        return mirror_stage(connection, spec, piece, copied)
    if staged:
        move_stage(connection, write, alone=spec.read.tells_position)
    return copied


def _hash(spec: RangeSpec, piece: Slice, source: Endpoint) -> SliceResult:
    """Read the source's rows and hash them."""
    total = RowSum()
    reading = Reading.from_slice(spec.read, piece, attempt_tag(spec.plan_id, piece.slice_id, spec.attempt))
    with time_open(open_copy_out(source, replace(reading, compared=True))) as rows:
        for messages in time_handovers(SOURCE.translate_blocks(rows, source)):
            total.update(messages)
    checksum = total.finish(rows.rows)
    return SliceResult(slice_id=piece.slice_id, rows=total.rows, bytes=total.bytes, checksum=checksum)


def _copy(
    spec: RangeSpec, piece: Slice, source: Endpoint, connection: psycopg.Connection, table: sql.Composable
) -> tuple[SliceResult, int]:
    """Copy the slice's rows, and return with the result the version of the source's server."""
    tag = attempt_tag(spec.plan_id, piece.slice_id, spec.attempt)
    # Under mirror the target's server hashes the stage.
    total = RowSum(hashes=spec.write.mode != MIRROR)
    with time_open(open_copy_out(source, Reading.from_slice(spec.read, piece, tag))) as rows:
        with open_copy_in(
            connection, table, spec.write.columns, "FORMAT binary", source_version=rows.server_version
        ) as target:
            for messages in time_handovers(SOURCE.translate_blocks(rows, source)):
                total.update(messages)
                target.put(b"".join(messages))
                reach(Step.IN_COPY, tag)
        checksum = total.finish(rows.rows)
    if target.rows != total.rows:
        raise RangeFailed(f"The sink counted {target.rows} rows of slice {piece.slice_id} where {total.rows} went in.")
    copied = SliceResult(
        slice_id=piece.slice_id,
        rows=total.rows,
        bytes=total.bytes,
        checksum=checksum,
        read_at=rows.read_at,
    )
    return copied, rows.server_version
