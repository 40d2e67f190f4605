"""Types that a user's function makes of text: values of a log are text, and are to be read by the type itself."""

from collections.abc import Sequence

from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.connect import Session
from airflow_provider_backpressure.core.snapshot.spark_messages import Column


def find_text_casts(session: Session, columns: Sequence[Column]) -> list[str]:
    """Return why changes cannot be replayed into these columns: such a function might make another value of the text.

    The server's own casts, and those of extensions, read what their types print.
    """
    names, types = [column.name for column in columns], [column.type for column in columns]
    return [
        f"a cast by {function} makes {type_} in {name} of text, so that values of the log could become others: drop "
        "the cast, or leave the column out"
        for name, type_, function in session.rows(_CASTS, (names, types, FIRST_OWN_FUNCTION))
    ]


FIRST_OWN_FUNCTION = 16384
_CASTS = sql.SQL(
    """
    SELECT w.name, w.type, k.castfunc::regprocedure::text
    FROM unnest(%s::text[], %s::text[]) w (name, type)
    CROSS JOIN LATERAL (
        WITH RECURSIVE types AS (
            SELECT oid, typbasetype FROM pg_type WHERE oid = to_regtype(w.type)
            UNION ALL SELECT t.oid, t.typbasetype FROM types b JOIN pg_type t ON t.oid = b.typbasetype)
        SELECT oid FROM types WHERE typbasetype = 0
    ) base
    JOIN pg_cast k ON k.casttarget = base.oid AND k.castsource = 'text'::regtype
    WHERE k.castmethod = 'f' AND k.castfunc >= %s
      AND NOT EXISTS (SELECT FROM pg_depend d
                      WHERE d.classid = 'pg_cast'::regclass AND d.objid = k.oid AND d.deptype = 'e')
    """
)
