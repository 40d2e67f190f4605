"""What a user's own types are made of: two servers may give one name to types whose bytes mean different values.

COPY sends bytes. A domain of timestamp is sent as a domain of bigint is, and two attributes of one type may be swapped.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.connect import NO_SEARCH_PATH, Connection, run_together

OWN = 16384
"""From this number on types are made by users and extensions; below, their name says what they are."""
_KINDS = {"e": "enum", "b": "base type"}


@dataclass(frozen=True)
class _Part:
    """A type that another one is made of: base type, element, subtype or attribute."""

    label: str | None
    oid: int
    text: str


def read_definitions(connection: Connection, types: Iterable[int]) -> dict[int, str]:
    """Return the definition of each type of a user's own, for people and to be compared. Others are left out."""
    asked = sorted({oid for oid in types if oid >= OWN})
    if not asked:
        return {}
    kinds: dict[int, str] = {}
    parts: dict[int, list[_Part]] = {}
    # Names are to have their schemas.
    _, rows = run_together(connection, NO_SEARCH_PATH, (_PARTS, (asked,)))
    for oid, kind, label, part, text in rows:
        kinds[oid] = kind
        parts.setdefault(oid, [])
        if part is not None:
            parts[oid].append(_Part(label, part, text))

    def define(oid: int) -> str:
        shown = [name(part) for part in parts[oid]]
        match kinds[oid]:
            case "a":
                return f"array of {shown[0]}"
            case "d":
                return f"domain of {shown[0]}"
            case "r" | "m":
                return f"range of {shown[0]}"
            case "c":
                return f"composite of {', '.join(shown)}"
        return _KINDS.get(kinds[oid], kinds[oid])

    def name(part: _Part) -> str:
        text = part.text if part.label is None else f"{part.label} {part.text}"
        return f"{text} ({define(part.oid)})" if part.oid in kinds and part.oid >= OWN else text

    return {oid: define(oid) for oid in asked if oid in kinds}


# A type of PostgreSQL's own is not taken apart, but for arrays of others, which have numbers of users' types too.
_PARTS = sql.SQL(
    """
    WITH RECURSIVE held (oid) AS (
        SELECT unnest(%s::oid[])
        UNION
        SELECT part.oid FROM held h CROSS JOIN LATERAL (
            SELECT t.typelem FROM pg_type t WHERE t.oid = h.oid AND t.typelem <> 0 AND t.typlen = -1
            UNION ALL
            SELECT t.typbasetype FROM pg_type t WHERE t.oid = h.oid AND t.typtype = 'd'
            UNION ALL
            SELECT r.rngsubtype FROM pg_range r WHERE h.oid IN (r.rngtypid, (to_jsonb(r) ->> 'rngmultitypid')::oid)
            UNION ALL
            SELECT f.atttypid FROM pg_type t JOIN pg_attribute f ON f.attrelid = t.typrelid
            WHERE t.oid = h.oid AND t.typtype = 'c' AND f.attnum > 0 AND NOT f.attisdropped
        ) part (oid)
        WHERE h.oid >= 16384
    )
    SELECT t.oid::bigint, CASE WHEN t.typelem <> 0 AND t.typlen = -1 THEN 'a' ELSE t.typtype::text END,
           part.label, part.oid::bigint, part.text
    FROM held h
    JOIN pg_type t ON t.oid = h.oid
    LEFT JOIN LATERAL (
        SELECT 0, NULL, t.typelem, format_type(t.typelem, NULL) WHERE t.typelem <> 0 AND t.typlen = -1
        UNION ALL
        SELECT 0, NULL, t.typbasetype, format_type(t.typbasetype, t.typtypmod) WHERE t.typtype = 'd'
        UNION ALL
        SELECT 0, NULL, r.rngsubtype, format_type(r.rngsubtype, NULL)
        FROM pg_range r WHERE t.oid IN (r.rngtypid, (to_jsonb(r) ->> 'rngmultitypid')::oid)
        UNION ALL
        SELECT f.attnum, quote_ident(f.attname), f.atttypid, format_type(f.atttypid, f.atttypmod)
        FROM pg_attribute f
        WHERE t.typtype = 'c' AND f.attrelid = t.typrelid AND f.attnum > 0 AND NOT f.attisdropped
    ) part (place, label, oid, text) ON true
    WHERE t.oid >= 16384
    ORDER BY t.oid, part.place
    """
)
