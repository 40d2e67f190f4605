"""Ranges of a table without a key: the blocks of its file, or of the files of all its partitions and children."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.catalog import Relation
from airflow_provider_backpressure.connectors.postgres.connect import Session
from airflow_provider_backpressure.connectors.postgres.identifiers import QualifiedName
from airflow_provider_backpressure.connectors.postgres.source.query import KeyedTable
from airflow_provider_backpressure.core.snapshot.bounds import BlockBounds, Bounds, Place
from airflow_provider_backpressure.core.snapshot.plan import Snapshot
from airflow_provider_backpressure.core.snapshot.ranges import PlannedRange
from airflow_provider_backpressure.exceptions import SourceRefused


@dataclass(frozen=True, kw_only=True)
class Part:
    """A table that has rows of its own: the table itself, or one of its partitions or children."""

    name: QualifiedName
    kind: str
    readable: bool
    """Whether our role may read all of it."""
    file: int
    blocks: int


def parts(session: Session, table: Relation) -> list[Part]:
    """Return the tables that hold the rows, in the order of their names; ``SourceRefused`` where one has no blocks."""
    found = [
        Part(name=QualifiedName(schema=schema, name=name), kind=kind, readable=readable, file=file, blocks=blocks)
        for schema, name, kind, readable, file, blocks in session.rows(_PARTS, {"oid": table.oid})
    ]
    foreign = [str(part.name) for part in found if part.kind != "r"]
    if foreign:
        raise SourceRefused(
            f"{table.name} cannot be cut by blocks: {', '.join(foreign)} is kept elsewhere and has none."
        )
    hidden = [str(part.name) for part in found if not part.readable]
    if hidden:
        raise SourceRefused(
            f"{session.endpoint.user} has no SELECT right on {', '.join(hidden)}, whose blocks make up {table.name}."
        )
    return found


def block_ranges(
    session: Session, table: KeyedTable, found: list[Part], snapshot: Snapshot, *, rows: int, bytes: int
) -> Iterator[PlannedRange]:
    """Yield ranges of blocks that cover every part's file, each file's last one open; none if all files are empty.

    A part that is empty has a range too: rows may come before it is read. Blocks are taken to hold as many rows as the
    mean says; where rows differ much in size, each block is weighed.
    """
    blocks_in_all = sum(part.blocks for part in found)
    density = max(snapshot.total or 0, 1) / max(1, blocks_in_all)
    step = max(1, int(rows / density))
    seq = 0
    for part in found if blocks_in_all else ():
        if table.size is None:
            ends: Iterator[Place] = ((block, 0) for block in range(step, part.blocks, step))
        else:
            ends = _find_places(session, table, part, rows=rows, bytes=bytes)
        for start, end in _pieces(ends):
            bounds = BlockBounds(table=str(part.name), file=part.file, start=start, end=end)
            blocks = (end[0] if end else part.blocks) - start[0]
            expected = min(rows, max(1, math.ceil(blocks * density)))
            yield PlannedRange(seq=seq, bounds=bounds, rows=expected, bytes=int(expected * snapshot.row_bytes))
            seq += 1


def cut_blocks(session: Session, bounds: BlockBounds, *, parts: int) -> list[Bounds]:
    """Return pieces of about as many blocks each; what lies within one block stays together."""
    first, last = bounds.start[0], bounds.end[0] if bounds.end else session.value(_SIZE, {"table": bounds.table})
    step = max(1, math.ceil((last - first) / parts))
    ends = [(block, 0) for block in range(first + step, last, step)]
    starts = [bounds.start, *ends]
    return [replace(bounds, start=start, end=end) for start, end in zip(starts, [*ends, bounds.end], strict=True)]


def _pieces(ends: Iterator[Place]) -> Iterator[tuple[Place, Place | None]]:
    start = (0, 0)
    for end in ends:
        yield start, end
        start = end
    yield start, None


def _find_places(session: Session, table: KeyedTable, part: Part, *, rows: int, bytes: int) -> Iterator[Place]:
    """Yield places at which so many rows or bytes are full: within a block only where it alone is too much.

    A block holds hundreds of rows whose long values are kept aside.
    """
    held, size = 0, 0
    for place, more_rows, more_bytes in _weights(session, table, part, bytes=bytes):
        if held and (held + more_rows > rows or size + more_bytes > bytes):
            yield place
            held, size = 0, 0
        held, size = held + more_rows, size + more_bytes


def _weights(session: Session, table: KeyedTable, part: Part, *, bytes: int) -> Iterator[tuple[Place, int, int]]:
    """Yield rows and bytes of each block, or of each row of a block that has more than so many bytes."""
    names = {"size": table.size, "table": sql.SQL(part.name.sql)}
    for block, rows, size in session.stream(sql.SQL(_BLOCKS).format(filter=table.filter(), **names)):
        if size <= bytes:
            yield (block, 0), rows, size
            continue
        bounds = BlockBounds(table=str(part.name), file=part.file, start=(block, 0), end=(block + 1, 0))
        for row, row_size in session.rows(sql.SQL(_ROWS).format(filter=table.filter(bounds), **names)):
            yield (block, row), 1, row_size


# A child is a member too, and so is the table itself unless it is partitioned and has no rows of its own.
_PARTS = sql.SQL(
    """
    WITH RECURSIVE members (oid) AS (
        SELECT %(oid)s::oid
        UNION
        SELECT i.inhrelid FROM pg_inherits i JOIN members m ON m.oid = i.inhparent
    )
    SELECT n.nspname, c.relname, c.relkind::text,
           has_table_privilege(c.oid, 'SELECT') AND has_schema_privilege(n.oid, 'USAGE')
               AND NOT row_security_active(c.oid),
           coalesce(pg_relation_filenode(c.oid), 0)::bigint,
           (coalesce(pg_relation_size(c.oid), 0) / current_setting('block_size')::int)::bigint
    FROM members m
    JOIN pg_class c ON c.oid = m.oid
    JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind <> 'p'
    ORDER BY 1, 2
    """
)
_SIZE = sql.SQL("SELECT (pg_relation_size(%(table)s::regclass) / current_setting('block_size')::int)::bigint")
_BLOCKS = """
    SELECT (ctid::text::point)[0]::bigint, count(*), coalesce(sum({size}), 0)::bigint
    FROM ONLY {table}{filter}
    GROUP BY 1
    ORDER BY 1
"""
_ROWS = """
    SELECT (ctid::text::point)[1]::bigint, {size}
    FROM ONLY {table}{filter}
    ORDER BY 1
"""
