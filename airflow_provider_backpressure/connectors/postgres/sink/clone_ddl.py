"""Makes a shadow like its target before rows arrive, and compares the two afterwards.

The catalogue itself writes the statements, with every name quoted by it. All is asked with an empty ``search_path``, so
that names come out with their schemas.
"""

from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.identifiers import QualifiedName
from airflow_provider_backpressure.connectors.postgres.shared_connection import Connection, Query


def creation(connection: Connection, target: int, shadow: QualifiedName, *, indexes: bool = False) -> None:
    """Create the shadow with the target's columns, defaults, identities, checks and comments, where it is stored."""
    method, tablespace, name = connection.execute(_STORAGE, {"target": target}).fetchall()[0]
    place(connection, tablespace=tablespace, method=method)
    connection.execute(
        sql.SQL("CREATE TABLE {} (LIKE {} INCLUDING ALL {} EXCLUDING STATISTICS)").format(
            sql.SQL(shadow.sql),
            sql.SQL(name),
            sql.SQL("" if indexes else "EXCLUDING INDEXES"),
        )
    )


def alike(connection: Connection, target: int, shadow: QualifiedName) -> None:
    """Give the shadow the target's owner, storage parameters and running numbers, and to nobody else any right.

    Default privileges could let roles read it that may not read the target.
    """
    run_each(connection, _ALIKE, about(target, shadow))


def same_columns(connection: Connection, target: int, shadow: QualifiedName) -> bool:
    """Whether both have the same columns, in the same order, with the same types and defaults, and the same checks."""
    return bool(connection.execute(_SAME, about(target, shadow)).fetchall()[0][0])


def about(target: int, shadow: QualifiedName) -> dict[str, object]:
    """Return the parameters of a query about both; ``own`` begins the names of the shadow's parts."""
    return {"target": target, "shadow": shadow.sql, "own": f"{shadow.name}_"}


def place(connection: Connection, *, tablespace: str, method: str = "") -> None:
    """Choose where the transaction puts what it creates; empty: the database's own choice."""
    connection.execute(_PLACE, {"tablespace": tablespace, "method": method})


def run_each(connection: Connection, query: Query, values: dict[str, object]) -> None:
    """Run the statements that a query gives."""
    for (statement,) in connection.execute(query, values).fetchall():
        connection.execute(sql.SQL(statement))


_STORAGE = sql.SQL(
    """
    SELECT coalesce(m.amname, ''), coalesce(s.spcname, ''), c.oid::regclass::text
    FROM pg_class c
    LEFT JOIN pg_am m ON m.oid = c.relam
    LEFT JOIN pg_tablespace s ON s.oid = c.reltablespace
    WHERE c.oid = %(target)s::oid
    """
)
_PLACE = sql.SQL(
    """
    SELECT set_config('default_tablespace', %(tablespace)s::text, true),
           CASE WHEN %(method)s::text <> '' THEN set_config('default_table_access_method', %(method)s::text, true) END
    """
)
_ALIKE = sql.SQL(
    """
    SELECT format('ALTER TABLE %%s SET (%%s)', %(shadow)s::text,
                  string_agg(format('%%s%%I = %%L', o.prefix, p.option_name, p.option_value), ', '))
    FROM (
        SELECT '', c.reloptions FROM pg_class c WHERE c.oid = %(target)s::oid
        UNION ALL
        SELECT 'toast.', t.reloptions
        FROM pg_class c JOIN pg_class t ON t.oid = c.reltoastrelid WHERE c.oid = %(target)s::oid
    ) o (prefix, options) CROSS JOIN LATERAL pg_options_to_table(o.options) p
    HAVING count(*) > 0
    UNION ALL
    SELECT format('ALTER TABLE %%s ALTER COLUMN %%I SET STATISTICS %%s', %(shadow)s::text, a.attname, a.attstattarget)
    FROM pg_attribute a
    WHERE a.attrelid = %(target)s::oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attstattarget >= 0
    UNION ALL
    SELECT format('ALTER TABLE %%s ALTER COLUMN %%I SET (%%s)', %(shadow)s::text, a.attname,
                  (SELECT string_agg(format('%%I = %%L', p.option_name, p.option_value), ', ')
                   FROM pg_options_to_table(a.attoptions) p))
    FROM pg_attribute a
    WHERE a.attrelid = %(target)s::oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attoptions IS NOT NULL
    UNION ALL
    SELECT format('ALTER TABLE %%s REPLICA IDENTITY %%s', %(shadow)s::text,
                  CASE c.relreplident WHEN 'f' THEN 'FULL' ELSE 'NOTHING' END)
    FROM pg_class c WHERE c.oid = %(target)s::oid AND c.relreplident IN ('f', 'n')
    UNION ALL
    SELECT format('SELECT setval(%%L, last_value, is_called) FROM %%s',
                  pg_get_serial_sequence(%(shadow)s::text, a.attname),
                  pg_get_serial_sequence(%(target)s::oid::regclass::text, a.attname))
    FROM pg_attribute a
    WHERE a.attrelid = %(target)s::oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attidentity <> ''
    UNION ALL
    SELECT DISTINCT format('REVOKE ALL ON %%s FROM %%s', %(shadow)s::text,
                           CASE WHEN x.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(x.grantee)) END)
    FROM pg_class s CROSS JOIN LATERAL aclexplode(s.relacl) x
    WHERE s.oid = %(shadow)s::text::regclass AND x.grantee <> s.relowner
    UNION ALL
    SELECT format('ALTER TABLE %%s OWNER TO %%I', %(shadow)s::text, pg_get_userbyid(c.relowner))
    FROM pg_class c JOIN pg_class s ON s.oid = %(shadow)s::text::regclass
    WHERE c.oid = %(target)s::oid AND c.relowner <> s.relowner
    """
)
# A default that draws from a sequence is the same text in both.
_SAME = sql.SQL(
    """
    WITH one AS (
        SELECT a.attrelid, row_number() OVER (PARTITION BY a.attrelid ORDER BY a.attnum) AS place, a.attname,
               a.atttypid, a.atttypmod, a.attcollation, a.attnotnull, a.attidentity, a.attgenerated,
               pg_get_expr(d.adbin, d.adrelid) AS expression
        FROM pg_attribute a
        LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
        WHERE a.attrelid IN (%(target)s::oid, %(shadow)s::text::regclass) AND a.attnum > 0 AND NOT a.attisdropped
        UNION ALL
        SELECT k.conrelid, 0, k.conname, 0, 0, 0, false, '', '', replace(pg_get_constraintdef(k.oid), ' NOT VALID', '')
        FROM pg_constraint k
        WHERE k.conrelid IN (%(target)s::oid, %(shadow)s::text::regclass) AND k.contype = 'c'
    )
    SELECT NOT EXISTS (
        SELECT FROM one
        GROUP BY place, attname, atttypid, atttypmod, attcollation, attnotnull, attidentity, attgenerated, expression
        HAVING count(*) <> 2
    )
    """
)
