"""Operators by which keys are compared, where their types are of an extension in a schema of its own."""

from collections.abc import Sequence

import psycopg


def find_key_operators(
    connection: psycopg.Connection, table: str, key: Sequence[str], *, for_session: bool = False
) -> None:
    """Let ``=`` of a table's key be that of the types, wherever it is, until the transaction or the session ends.

    Otherwise there is none, or values are compared as what they can be cast to: ``citext`` as text. ``table``: quoted.
    """
    connection.execute(_FIND, {"table": table, "key": list(key), "local": not for_session})


# Behind what is searched already, so that triggers of the table find what they found.
_FIND = """
    WITH RECURSIVE kinds (oid) AS (
        SELECT a.atttypid FROM pg_catalog.pg_attribute a
        WHERE a.attrelid = %(table)s::text::regclass AND a.attname = ANY (%(key)s::text[])
        UNION
        SELECT t.typbasetype FROM kinds k JOIN pg_catalog.pg_type t ON t.oid = k.oid WHERE t.typtype = 'd'
    ), elsewhere AS (
        SELECT DISTINCT quote_ident(n.nspname) AS name
        FROM kinds k JOIN pg_catalog.pg_type t ON t.oid = k.oid JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
        WHERE n.nspname <> ALL (current_schemas(true)) AND t.typtype = 'b'
    )
    SELECT set_config(
        'search_path', concat_ws(', ', nullif(current_setting('search_path'), ''), string_agg(name, ', ')), %(local)s)
    FROM elsewhere HAVING count(*) > 0
"""
