"""Makes a shadow like its target before rows arrive, and compares the two afterwards.

The catalogue itself writes the statements, with every name quoted by it. All is asked with an empty ``search_path``, so
that names come out with their schemas.
"""

from dataclasses import dataclass

from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.connect import Connection, Query
from airflow_provider_backpressure.connectors.postgres.identifiers import QualifiedName


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


@dataclass(frozen=True, kw_only=True)
class Part:
    """An index, a key, statistics, a foreign key or its check."""

    name: str
    """As the target has it."""
    tablespace: str
    statement: str


def find_missing(connection: Connection, target: int, shadow: QualifiedName) -> list[Part]:
    """Return the parts that the target has and the shadow has not yet, in the order in which they are to be made."""
    rows = connection.execute(_MISSING, about(target, shadow)).fetchall()
    return [Part(name=name, tablespace=tablespace, statement=statement) for name, tablespace, statement in rows]


def make(connection: Connection, part: Part) -> None:
    """Make one of them; an index may take long."""
    place(connection, tablespace=part.tablespace)
    connection.execute(sql.SQL(part.statement))


def carry_over(connection: Connection, target: int, shadow: QualifiedName) -> None:
    """Give the shadow the target's rights, comment and sequences. Both still have their own names."""
    run_each(connection, _CARRIED, about(target, shadow))


def final_names(connection: Connection, target: int, shadow: QualifiedName) -> list[str]:
    """Return the statements that name the shadow's parts, for when those of the target are gone."""
    return [statement for (statement,) in connection.execute(_NAMED, about(target, shadow)).fetchall()]


# Names are unique within a schema, so until the target is gone its indexes and statistics have a stand-in for a name.
_MISSING = sql.SQL(
    """
    WITH wanted AS (
        SELECT 1 AS step, x.relname::text AS name, %(own)s::text || left(md5(x.relname), 12) AS stand_in,
               coalesce(s.spcname, '') AS tablespace,
               CASE WHEN k.oid IS NOT NULL THEN
                   format('ALTER TABLE %%s ADD CONSTRAINT %%I %%s', %(shadow)s::text,
                          %(own)s::text || left(md5(x.relname), 12), pg_get_constraintdef(k.oid))
               ELSE
                   format('CREATE %%sINDEX %%I ON %%s%%s', u.word, %(own)s::text || left(md5(x.relname), 12),
                          %(shadow)s::text,
                          substr(pg_get_indexdef(x.oid),
                                 length(format('CREATE %%sINDEX %%I ON %%s', u.word, x.relname, c.oid::regclass)) + 1))
               END AS statement
        FROM pg_index i
        JOIN pg_class x ON x.oid = i.indexrelid
        JOIN pg_class c ON c.oid = i.indrelid
        CROSS JOIN LATERAL (SELECT CASE WHEN i.indisunique THEN 'UNIQUE ' ELSE '' END) u (word)
        LEFT JOIN pg_tablespace s ON s.oid = x.reltablespace
        LEFT JOIN pg_constraint k
               ON k.conrelid = i.indrelid AND k.conindid = i.indexrelid AND k.contype IN ('p', 'u', 'x')
        WHERE i.indrelid = %(target)s::oid AND i.indisvalid
        UNION ALL
        SELECT 2, e.stxname, %(own)s::text || left(md5(e.stxname), 12), '',
               format('CREATE STATISTICS %%I.%%I%%s FROM %%s',
                      CASE WHEN has_schema_privilege(n.oid, 'CREATE') THEN n.nspname ELSE m.nspname END,
                      %(own)s::text || left(md5(e.stxname), 12),
                      substr(left(d.text, length(d.text) - length(format(' FROM %%s', e.stxrelid::regclass))),
                             length(format('CREATE STATISTICS %%I.%%I', n.nspname, e.stxname)) + 1),
                      %(shadow)s::text)
        FROM pg_statistic_ext e
        JOIN pg_namespace n ON n.oid = e.stxnamespace
        JOIN pg_class c ON c.oid = e.stxrelid JOIN pg_namespace m ON m.oid = c.relnamespace
        CROSS JOIN LATERAL (SELECT pg_get_statisticsobjdef(e.oid)) d (text)
        WHERE e.stxrelid = %(target)s::oid
    )
    SELECT name, tablespace, statement FROM (
        SELECT w.step, w.name, w.tablespace, w.statement
        FROM wanted w
        WHERE NOT EXISTS (SELECT FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
                          WHERE i.indrelid = %(shadow)s::text::regclass AND x.relname = w.stand_in)
          AND NOT EXISTS (SELECT FROM pg_statistic_ext e
                          WHERE e.stxrelid = %(shadow)s::text::regclass AND e.stxname = w.stand_in)
        UNION ALL
        SELECT 3, k.conname, '',
               format('ALTER TABLE %%s ADD CONSTRAINT %%I %%s%%s', %(shadow)s::text, k.conname, d.text,
                      CASE WHEN d.text ~ ' NOT (VALID|ENFORCED)$' THEN '' ELSE ' NOT VALID' END)
        FROM pg_constraint k CROSS JOIN LATERAL (SELECT pg_get_constraintdef(k.oid)) d (text)
        WHERE k.conrelid = %(target)s::oid AND k.contype = 'f' AND NOT EXISTS (
            SELECT FROM pg_constraint o WHERE o.conrelid = %(shadow)s::text::regclass AND o.conname = k.conname)
        UNION ALL
        SELECT 4, k.conname, '', format('ALTER TABLE %%s VALIDATE CONSTRAINT %%I', %(shadow)s::text, k.conname)
        FROM pg_constraint k
        JOIN pg_constraint o ON o.conrelid = %(shadow)s::text::regclass AND o.conname = k.conname
        WHERE k.conrelid = %(target)s::oid AND k.contype = 'f' AND k.convalidated AND NOT o.convalidated
    ) part
    ORDER BY step, name
    """
)
_CARRIED = sql.SQL(
    """
    SELECT statement FROM (
        SELECT DISTINCT 1, format('REVOKE ALL ON %%s FROM %%s', %(shadow)s::text,
                                  CASE WHEN x.grantee = 0 THEN 'PUBLIC'
                                       ELSE quote_ident(pg_get_userbyid(x.grantee)) END)
        FROM pg_class s CROSS JOIN LATERAL aclexplode(s.relacl) x
        WHERE s.oid = %(shadow)s::text::regclass AND x.grantee <> s.relowner
        UNION ALL
        SELECT 2, format('GRANT %%s%%s ON %%s TO %%s%%s', x.privilege_type, r.columns, %(shadow)s::text,
                         CASE WHEN x.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(x.grantee)) END,
                         CASE WHEN x.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END)
        FROM (
            SELECT c.relowner, '', c.relacl FROM pg_class c WHERE c.oid = %(target)s::oid
            UNION ALL
            SELECT c.relowner, format(' (%%I)', a.attname), a.attacl
            FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
            WHERE c.oid = %(target)s::oid AND a.attnum > 0 AND NOT a.attisdropped
        ) r (owner, columns, acl) CROSS JOIN LATERAL aclexplode(r.acl) x
        WHERE x.grantee <> r.owner
        UNION ALL
        SELECT 3, format('ALTER SEQUENCE %%s OWNED BY %%s.%%I', q.oid::regclass, %(shadow)s::text, a.attname)
        FROM pg_depend d
        JOIN pg_class q ON q.oid = d.objid AND q.relkind = 'S'
        JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
        WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass
          AND d.refobjid = %(target)s::oid AND d.deptype = 'a'
        UNION ALL
        SELECT 4, format('COMMENT ON TABLE %%s IS %%L', %(shadow)s::text,
                         obj_description(%(target)s::oid, 'pg_class'))
        UNION ALL
        SELECT 4, w.statement
        FROM pg_attribute a
        CROSS JOIN LATERAL (SELECT pg_get_serial_sequence(a.attrelid::regclass::text, a.attname)::regclass,
                                   pg_get_serial_sequence(%(shadow)s::text, a.attname)) s (old, new)
        JOIN pg_class q ON q.oid = s.old
        CROSS JOIN LATERAL (
            SELECT format('COMMENT ON SEQUENCE %%s IS %%L', s.new, obj_description(s.old, 'pg_class'))
            UNION ALL
            SELECT format('GRANT %%s ON SEQUENCE %%s TO %%s%%s', x.privilege_type, s.new,
                          CASE WHEN x.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(x.grantee)) END,
                          CASE WHEN x.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END)
            FROM aclexplode(q.relacl) x WHERE x.grantee <> q.relowner
        ) w (statement)
        WHERE a.attrelid = %(target)s::oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attidentity <> ''
        UNION ALL
        SELECT 5, format('ALTER TABLE %%s %%s %%I', %(shadow)s::text, w.words,
                         %(own)s::text || left(md5(x.relname), 12))
        FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid JOIN pg_class c ON c.oid = i.indrelid
        CROSS JOIN LATERAL (VALUES (i.indisclustered, 'CLUSTER ON'),
                                   (i.indisreplident AND c.relreplident = 'i', 'REPLICA IDENTITY USING INDEX')
        ) w (holds, words)
        WHERE i.indrelid = %(target)s::oid AND i.indisvalid AND w.holds
        UNION ALL
        SELECT 6, format('ALTER TABLE %%s SET (autovacuum_enabled = %%L)', %(shadow)s::text, o.option_value)
        FROM pg_class c CROSS JOIN LATERAL pg_options_to_table(c.reloptions) o
        WHERE c.oid = %(target)s::oid AND o.option_name = 'autovacuum_enabled'
    ) carried (step, statement)
    ORDER BY step
    """
)
_NAMED = sql.SQL(
    """
    SELECT statement FROM (
        SELECT 1, format('ALTER INDEX %%I.%%I RENAME TO %%I', n.nspname, %(own)s::text || left(md5(x.relname), 12),
                         x.relname)
        FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid JOIN pg_namespace n ON n.oid = x.relnamespace
        WHERE i.indrelid = %(target)s::oid AND i.indisvalid
        UNION ALL
        SELECT w.step, format(w.form, n.nspname, CASE w.step WHEN 1 THEN o.stxname ELSE e.stxname END, w.value)
        FROM pg_statistic_ext e
        JOIN pg_statistic_ext o
          ON o.stxrelid = %(shadow)s::text::regclass AND o.stxname = %(own)s::text || left(md5(e.stxname), 12)
        JOIN pg_namespace n ON n.oid = o.stxnamespace
        CROSS JOIN LATERAL (VALUES
            (1, 'ALTER STATISTICS %%I.%%I RENAME TO %%I', e.stxname::text),
            (2, 'ALTER STATISTICS %%I.%%I SET STATISTICS %%s', nullif(e.stxstattarget, -1)::text),
            (2, 'COMMENT ON STATISTICS %%I.%%I IS %%L', obj_description(e.oid, 'pg_statistic_ext'))
        ) w (step, form, value)
        WHERE e.stxrelid = %(target)s::oid AND w.value IS NOT NULL
        UNION ALL
        SELECT 2, format('ALTER INDEX %%I.%%I ALTER COLUMN %%s SET STATISTICS %%s', n.nspname, x.relname, a.attnum,
                         a.attstattarget)
        FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid JOIN pg_namespace n ON n.oid = x.relnamespace
        JOIN pg_attribute a ON a.attrelid = x.oid AND a.attstattarget >= 0 AND i.indkey[a.attnum - 1] = 0
        WHERE i.indrelid = %(target)s::oid AND i.indisvalid
        UNION ALL
        SELECT 1, format('ALTER SEQUENCE %%s RENAME TO %%I', pg_get_serial_sequence(%(shadow)s::text, a.attname),
                         q.relname)
        FROM pg_attribute a
        JOIN pg_class q ON q.oid = pg_get_serial_sequence(a.attrelid::regclass::text, a.attname)::regclass
        WHERE a.attrelid = %(target)s::oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attidentity <> ''
        UNION ALL
        SELECT 2, format('COMMENT ON INDEX %%I.%%I IS %%L', n.nspname, x.relname, d.description)
        FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid JOIN pg_namespace n ON n.oid = x.relnamespace
        JOIN pg_description d ON d.classoid = 'pg_class'::regclass AND d.objoid = x.oid AND d.objsubid = 0
        WHERE i.indrelid = %(target)s::oid AND i.indisvalid
        UNION ALL
        SELECT 2, format('COMMENT ON CONSTRAINT %%I ON %%s IS %%L', k.conname, k.conrelid::regclass, d.description)
        FROM pg_constraint k
        JOIN pg_description d ON d.classoid = 'pg_constraint'::regclass AND d.objoid = k.oid
        WHERE k.conrelid = %(target)s::oid AND k.contype IN ('p', 'u', 'x', 'f')
    ) named (step, statement)
    ORDER BY step
    """
)
