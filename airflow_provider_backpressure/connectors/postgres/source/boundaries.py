"""By which columns a table is cut into ranges, and where: no piece is to hold more than so many rows.

There are five ways to find the boundaries, from the cheapest to the most exact. Each yields boundaries in the key's own
order, as text by the server's own output.
"""

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.catalog import KINDS, CatalogColumn, Relation, UniqueKey
from airflow_provider_backpressure.connectors.postgres.connect import Session
from airflow_provider_backpressure.connectors.postgres.key_types import INTEGERS
from airflow_provider_backpressure.connectors.postgres.source.query import KeyedTable
from airflow_provider_backpressure.connectors.relational.key_choice import (
    Split,
    find_obstacle,
    find_primary_obstacle,
    split_by_column,
    split_by_key,
)
from airflow_provider_backpressure.connectors.relational.range_pieces import cut_evenly, list_pieces
from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.snapshot.bounds import Bounds, KeyBounds, Values
from airflow_provider_backpressure.core.snapshot.plan import Snapshot
from airflow_provider_backpressure.core.snapshot.ranges import PlannedRange, number_ranges
from airflow_provider_backpressure.core.snapshot.spark_messages import Column
from airflow_provider_backpressure.exceptions import InvalidDeclaration, SourceRefused

DENSE = 0.8
"""Share of an integer key's span that is taken, from which on equal strides waste few ranges."""
SPREAD = 3.5
"""Standard deviations by which the fullest of some thousand estimated pieces lies above their mean."""
BUCKET_SAMPLE = 300
"""Rows of ANALYZE's own sample in each bucket of a histogram."""
SAMPLE_BEST = 1225
"""Sampled rows in each piece with which the fullest is some 10 % above the mean."""
SAMPLE_LEAST = 400
"""The same for some 20 %: below that a sample is not good enough."""
SAMPLE_SHARE = 0.1
"""Most of a table that is sampled: with more, walking it is as cheap and exact."""
SAMPLE_ROWS = 300_000
"""Most rows that are sampled, as long as each piece has :data:`SAMPLE_LEAST` of them."""
WIDEST_MEAN = 256
"""ANALYZE leaves values above 1 KiB out of its histogram: keys of that mean width may be misrepresented."""


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Boundaries, and how they were found."""

    method: str
    rows: int
    """Rows to be expected between two boundaries."""
    boundaries: Iterator[Values]


def strides(session: Session, table: KeyedTable, *, rows: int, total: int | None) -> Cut | None:
    """Cut a dense integer key into equal strides, which hold at most as many rows as numbers because it is unique.

    ``None`` where the key is no integer, has too many gaps, or a condition hides rows.
    """
    if len(table.key) > 1 or table.key[0].cast not in INTEGERS or table.partial or not total:
        return None
    query = sql.SQL("SELECT min({0}), max({0}) FROM {1}").format(sql.Identifier(table.key[0].name), table.sql)
    low, high = session.rows(query)[0]
    if low is None or total < DENSE * (high - low + 1):
        return None
    boundaries = ((str(value),) for value in range(low + rows, high + 1, rows))
    return Cut(method="strides", rows=min(rows, total), boundaries=boundaries)


def histogram(session: Session, table: KeyedTable, *, rows: int, total: int | None) -> Cut | None:
    """Cut at the bounds of ANALYZE's histogram, whole buckets together.

    ``None`` where it is stale, too coarse for ``rows``, a condition hides rows, or the key has several columns.
    Statistics are stale when what has changed since could fill a tenth of a piece, even if all of it fell into one; and
    where they have another order than the key has now. A collation gets one when its library is upgraded.
    """
    if len(table.key) > 1 or table.partial:
        return None
    name = {"schema": table.name.schema, "table": table.name.name, "key": table.key[0].name}
    fresh = session.rows(_FRESH, {**name, "changes": rows // 10})
    if not fresh or not fresh[0][0]:
        return None
    analysed_rows = fresh[0][1]
    if total is not None and abs(total - analysed_rows) > 0.03 * analysed_rows:
        return None
    query = sql.SQL(_HISTOGRAM).format(sql.SQL(f"{table.key[0].cast}[]"))
    found = session.rows(query, {**name, "width": WIDEST_MEAN})
    if not found or found[0][0] is None:
        return None
    bounds: list[str] = found[0][0]
    buckets = len(bounds) - 1
    all_rows = total or analysed_rows
    together = _buckets_together(rows, all_rows / buckets)
    if together < 1:
        return None
    if in_order(session, table, [(bound,) for bound in bounds]) != [(bound,) for bound in bounds]:
        log.warning("The statistics of %s are in an order that its key no longer has: ANALYZE it.", table.name)
        return None
    pieces = math.ceil(buckets / together)
    boundaries = iter([(bounds[piece * buckets // pieces],) for piece in range(1, pieces)])
    return Cut(method="histogram", rows=round(all_rows / pieces), boundaries=boundaries)


def sample(session: Session, table: KeyedTable, *, rows: int, total: int | None) -> Cut | None:
    """Cut between equal parts of a random sample of the rows; ``None`` where ``rows`` is too small for one.

    The share of rows that is sampled is known, so a piece's size is estimated without the table's: whether it is known,
    and whatever the user's condition leaves over.
    """
    best = min(SAMPLE_BEST, SAMPLE_SHARE * rows)
    if best < SAMPLE_LEAST:
        return None
    in_piece = int(max(SAMPLE_LEAST, min(best, SAMPLE_ROWS * rows / (total or rows))))
    mean = _with_headroom(rows, in_piece)
    query = sql.SQL(_SAMPLE).format(
        **_names(table),
        table=table.sql,
        percent=sql.Literal(100 * in_piece / mean),
        filter=table.filter(),
        step=in_piece,
    )
    return Cut(method="sample", rows=round(mean), boundaries=iter(session.rows(query)))


def walk(session: Session, table: KeyedTable, *, rows: int, within: Bounds | None = None) -> Iterator[Values]:
    """Yield every boundary of a unique key with exactly ``rows`` rows between two, in one pass over it."""
    query = sql.SQL(_WALK).format(**_names(table), table=table.sql, filter=table.filter(within), step=sql.Literal(rows))
    return session.stream(query)


def weigh(session: Session, table: KeyedTable, *, rows: int, bytes: int) -> Iterator[Values]:
    """Yield boundaries with at most so many rows and bytes between two, in one pass over the table.

    For keys that are not unique and for rows that differ much in size. What one value holds by itself cannot be cut:
    such a piece is larger.
    """
    names = _names(table)
    weights = sql.SQL(_WEIGHTS).format(
        named=names["named"],
        table=table.sql,
        filter=table.filter(),
        size=sql.SQL("0") if table.size is None else table.size,
        group=sql.SQL("") if table.unique else sql.SQL(" GROUP BY {}").format(names["key"]),
        count=sql.SQL("1" if table.unique else "count(*)"),
        sum=sql.SQL("" if table.unique else "sum"),
    )
    query = sql.SQL(_WEIGH).format(
        keys=names["keys"], shown=names["shown"], weights=weights, rows=sql.Literal(rows), bytes=sql.Literal(bytes)
    )
    return session.stream(query)


def in_order(session: Session, table: KeyedTable, values: Sequence[Values]) -> list[Values]:
    """Return values of the key as its own type and collation order them: those of the column go before a text's."""
    names = _names(table)
    numbers = range(len(table.key))
    cast = sql.SQL(", ").join(
        sql.SQL("{}::{}").format(sql.Identifier("u", f"v{number}"), sql.SQL(table.key[number].cast))
        for number in numbers
    )
    query = sql.SQL(_IN_ORDER).format(
        named=names["named"],
        keys=names["keys"],
        table=table.sql,
        cast=cast,
        lists=sql.SQL(", ").join(sql.SQL("%s::text[]") for _ in numbers),
        places=sql.SQL(", ").join(sql.Identifier(f"v{number}") for number in numbers),
    )
    found = session.rows(query, [[value[number] for value in values] for number in numbers])
    return [values[place - 1] for (place,) in found]


def more_than(session: Session, table: KeyedTable, rows: int, within: Bounds | None = None) -> bool:
    """Whether these bounds hold more than so many rows; counts no further than that."""
    query = sql.SQL("SELECT count(*) FROM (SELECT FROM {}{} LIMIT {}) piece").format(
        table.sql, table.filter(within), sql.Literal(rows + 1)
    )
    return bool(session.value(query) > rows)


def _names(table: KeyedTable) -> dict[str, sql.Composable]:
    """Return the key's columns as statements need them: as they are, under numbers of their own, and as text."""
    columns = [sql.Identifier(column.name) for column in table.key]
    numbers = [sql.Identifier(f"k{number}") for number in range(len(columns))]
    lists: dict[str, Sequence[sql.Composable]] = {
        "key": columns,
        "named": [sql.SQL("{} AS {}").format(*each) for each in zip(columns, numbers, strict=True)],
        "keys": numbers,
        "shown": [sql.SQL("{}::text").format(number) for number in numbers],
    }
    return {name: sql.SQL(", ").join(parts) for name, parts in lists.items()}


def _with_headroom(rows: int, in_sample: float) -> float:
    """Return the mean at which the fullest piece, estimated from so many sampled rows, stays within ``rows``."""
    return rows / (1 + SPREAD / math.sqrt(in_sample))


def _buckets_together(rows: int, bucket_rows: float) -> int:
    together = int(rows / bucket_rows)
    while together and together * bucket_rows > _with_headroom(rows, BUCKET_SAMPLE * together):
        together -= 1
    return together


# Counters of changes reach the statistics a moment after their commit, so the file's growth is looked at too.
_FRESH = sql.SQL(
    """
    SELECT coalesce(s.last_analyze, s.last_autoanalyze) IS NOT NULL
           AND s.n_mod_since_analyze <= %(changes)s
           AND c.reltuples > 0
           AND pg_relation_size(c.oid) / current_setting('block_size')::int <= c.relpages * 1.02 + 8,
           c.reltuples::float8
    FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_stat_all_tables s ON s.relid = c.oid
    WHERE n.nspname = %(schema)s AND c.relname = %(table)s AND c.relkind = 'r'
    """
)
_HISTOGRAM = """
    SELECT histogram_bounds::text::{}::text[]
    FROM pg_stats
    WHERE schemaname = %(schema)s AND tablename = %(table)s AND attname = %(key)s
      AND NOT inherited AND most_common_vals IS NULL AND avg_width <= %(width)s
"""
_SAMPLE = """
    SELECT {shown}
    FROM (
        SELECT {named}, row_number() OVER (ORDER BY {key}) - 1 AS place, count(*) OVER () AS sampled
        FROM {table} TABLESAMPLE BERNOULLI ({percent}){filter}
    ) s
    CROSS JOIN LATERAL (SELECT ceil(s.sampled::numeric / {step})::bigint) p (pieces)
    WHERE s.place * p.pieces / s.sampled > (s.place - 1) * p.pieces / s.sampled AND s.place > 0
    ORDER BY s.place
"""
_IN_ORDER = """
    SELECT n
    FROM (
        SELECT {named}, 0::bigint AS n FROM {table} WHERE false
        UNION ALL
        SELECT {cast}, u.n FROM unnest({lists}) WITH ORDINALITY AS u ({places}, n)
    ) o
    ORDER BY {keys}
"""
_WALK = """
    SELECT {shown}
    FROM (SELECT {named}, row_number() OVER (ORDER BY {key}) - 1 AS place FROM {table}{filter}) w
    WHERE w.place > 0 AND w.place % {step} = 0 AND w.k0 IS NOT NULL
    ORDER BY w.place
"""
_WEIGHTS = """
    SELECT {named}, {count} AS n, {sum}({size}) AS size FROM {table}{filter}{group}
"""
# A key goes into the piece in which it begins, so a piece takes in at most one key more than fits: room for the largest
# is left, but never more than half, or one huge value would cut all others into crumbs.
_WEIGH = """
    SELECT {shown}
    FROM (
        SELECT {keys}, floor(place) AS piece, lag(floor(place)) OVER (ORDER BY {keys}) AS before
        FROM (
            SELECT {keys}, sum(weight) OVER (ORDER BY {keys} ROWS UNBOUNDED PRECEDING) - weight AS place
            FROM (
                SELECT {keys}, greatest(
                    n / greatest({rows} - max(n) OVER (), {rows} / 2, 1)::float8,
                    size / greatest({bytes} - max(size) OVER (), {bytes} / 2, 1)::float8
                ) AS weight
                FROM ({weights}) keys
                WHERE k0 IS NOT NULL
            ) weighed
        ) placed
    ) pieces
    WHERE piece > before
    ORDER BY piece
"""


log = logging.getLogger(__name__)

SMALL_TABLE = 100_000
"""Rows up to which walking the whole key takes no time worth saving."""


def key_ranges(
    session: Session, table: KeyedTable, snapshot: Snapshot, *, rows: int, bytes: int
) -> Iterator[PlannedRange]:
    """Yield ranges that cover the whole key, none above ``rows`` or ``bytes`` as far as can be known; none if empty.

    Rows without a key are a range of their own, the last one.
    """
    if rows < 1:
        raise InvalidDeclaration(f"A range needs room for at least 1 row, not {rows}.")
    counted = snapshot.total_exact and bool(snapshot.total)
    if not counted and not more_than(session, table, 0):
        return
    found = _cut(session, table, snapshot, rows=rows, bytes=bytes)
    # Of a table that is one range the plan's own line says enough: there may be thousands of them.
    level = logging.INFO if found.boundaries else logging.DEBUG
    log.log(level, "%s is cut by %s (%s).", table.name, ", ".join(table.columns), found.method)
    yield from number_ranges(
        list_pieces(table, snapshot, found.boundaries), rows=found.rows, row_bytes=snapshot.row_bytes
    )


def cut_range(
    session: Session, table: KeyedTable, bounds: KeyBounds, columns: Sequence[Column], *, parts: int
) -> list[Bounds]:
    """Return pieces with about as many rows each, in one pass over what these bounds hold.

    Rows without a key, which open bounds hold too, are a piece of their own, and not counted.
    """
    first = sql.Identifier(table.columns[0])
    query = sql.SQL("SELECT count({}) FROM {}{}").format(first, table.sql, table.filter(bounds))
    return cut_evenly(
        bounds,
        columns,
        rows=session.value(query),
        parts=parts,
        find_boundaries=lambda step: walk(session, table, rows=step, within=bounds),
    )


def _cut(session: Session, table: KeyedTable, snapshot: Snapshot, *, rows: int, bytes: int) -> Cut:
    total = snapshot.total
    counted = total if snapshot.total_exact else None
    if counted is not None and counted <= rows and counted * max(snapshot.row_bytes, snapshot.widest_bytes) <= bytes:
        return Cut(method="whole", rows=counted, boundaries=iter(()))
    if not table.unique or table.size is not None:
        step = rows if counted is None else _even(rows, counted)
        return Cut(method="weights", rows=step, boundaries=weigh(session, table, rows=rows, bytes=bytes))
    dense = strides(session, table, rows=rows, total=total)
    if dense is not None:
        return dense
    if counted is None or counted > SMALL_TABLE:
        for way in (histogram, sample):
            found = way(session, table, rows=rows, total=total)
            if found is not None:
                return replace(found, boundaries=_with_bounded_ends(session, table, found.boundaries, rows=rows))
    step = rows if counted is None else _even(rows, counted)
    return Cut(method="walk", rows=step, boundaries=walk(session, table, rows=step))


def _with_bounded_ends(session: Session, table: KeyedTable, inner: Iterator[Values], *, rows: int) -> Iterator[Values]:
    """Yield the boundaries with more of them before the first and after the last where those pieces are too big."""
    last: Values | None = None
    for boundary in inner:
        if last is None:
            yield from _within(session, table, table.make_bounds(None, boundary), rows=rows)
        yield boundary
        last = boundary
    yield from _within(session, table, table.make_bounds(last, None), rows=rows)


def _within(session: Session, table: KeyedTable, bounds: Bounds, *, rows: int) -> Iterator[Values]:
    if more_than(session, table, rows, bounds):
        yield from walk(session, table, rows=rows, within=bounds)


def _even(rows: int, total: int) -> int:
    """Return the step that makes pieces of equal size, none above ``rows``."""
    return math.ceil(total / max(1, math.ceil(total / rows)))


def chosen_split(table: Relation, split_column: str | None, consistency: Consistency) -> Split[CatalogColumn]:
    """Return how the table is cut; ``SourceRefused`` where it cannot be."""
    keys = _fit_keys(table)
    if split_column is not None:
        return split_by_column(table, split_column, keys)
    if keys:
        return split_by_key(table, keys[0])
    return _by_blocks(table, consistency)


def _fit_keys(table: Relation) -> list[UniqueKey]:
    """Return the unique keys by which ranges can be cut, the best first.

    Primary before others, few columns before many, numbers before text: they are cut and compared faster. The keys of a
    table say nothing of the rows that its children have.
    """
    if table.has_children:
        return []

    def rank(key: UniqueKey) -> tuple[bool, int, bool, list[int]]:
        columns = table.select_columns(key.columns)
        return (
            not key.primary,
            len(columns),
            any(column.type not in INTEGERS for column in columns),
            [column.number for column in columns],
        )

    return sorted((key for key in table.keys if find_obstacle(table, key) is None), key=rank)


def _by_blocks(table: Relation, consistency: Consistency) -> Split[CatalogColumn]:
    if not table.is_stored:
        raise SourceRefused(f"{table.name} is {KINDS[table.kind]} and has no key: name a split_column to cut it by.")
    if table.row_security:
        raise SourceRefused(f"{table.name} has no key, and the row security on it does not let its blocks be read.")
    if consistency is not Consistency.SNAPSHOT:
        raise SourceRefused(
            f"{table.name} cannot be cut into ranges of a key: {_why(table)}. Name a split_column, or read it by "
            f"blocks with consistency='snapshot'."
        )
    return Split(columns=(), unique=False, key=())


def _why(table: Relation) -> str:
    if table.has_children:
        return "other tables inherit from it, and its key does not cover their rows"
    return (
        find_primary_obstacle(table)
        or "it has neither a primary key nor another unique key of columns that are never NULL"
    )
