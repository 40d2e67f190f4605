"""What hangs on a table: whether another may take its place, and the views that follow it there."""

from dataclasses import dataclass

from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.shared_connection import Connection


@dataclass(frozen=True, kw_only=True)
class View:
    """A view over the target, as statements with every name quoted by the catalogue."""

    lock: str
    """Locks it and changes nothing. LOCK TABLE would also lock every table that the view reads."""
    bind: str
    """Binds it to the table that bears the target's name by then; its rights and comments stay."""


def against_replacing(connection: Connection, target: int) -> list[str]:
    """Return the obstacles to another table taking this one's place, each as part of a sentence."""
    connection.execute(sql.SQL("SET LOCAL search_path TO ''"))
    against = [words for (words,) in connection.execute(_STATES, {"target": target}).fetchall()]
    dependents = [name for (name,) in connection.execute(_DEPENDENTS, {"target": target}).fetchall()]
    if dependents:
        verb = "depends" if len(dependents) == 1 else "depend"
        against.append(f"{' and '.join(dependents)} {verb} on it and would stay with the old table")
    return against


def views_over(connection: Connection, target: int) -> list[View]:
    """Return the views that read the table, those over other views not among them."""
    rows = connection.execute(_VIEWS, {"target": target}).fetchall()
    return [View(lock=lock, bind=bind) for lock, bind in rows]


_STATES = sql.SQL(
    """
    SELECT w.words
    FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace
    CROSS JOIN LATERAL (VALUES
        (NOT pg_has_role(c.relowner, 'USAGE'),
         format('it belongs to %%I and not to %%I', pg_get_userbyid(c.relowner), current_user)),
        (c.relkind = 'p', 'it is a partitioned table'),
        (c.relkind = 'r' AND c.reloftype <> 0, 'it is made of a type'),
        (c.relispartition, 'it is a partition'),
        (NOT c.relispartition AND EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = c.oid),
         'it inherits from another table'),
        (EXISTS (SELECT FROM pg_rewrite r WHERE r.ev_class = c.oid), 'it has rules'),
        (c.relrowsecurity OR EXISTS (SELECT FROM pg_policy p WHERE p.polrelid = c.oid), 'it has row security'),
        (EXISTS (SELECT FROM pg_seclabel l WHERE l.classoid = 'pg_class'::regclass AND l.objoid = c.oid),
         'it has security labels'),
        (EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND NOT i.indisvalid), 'it has an invalid index')
    ) w (holds, words)
    WHERE c.oid = %(target)s::oid AND w.holds
    UNION ALL
    SELECT format('it has the trigger %%I', t.tgname)
    FROM pg_trigger t WHERE t.tgrelid = %(target)s::oid AND NOT t.tgisinternal
    UNION ALL
    SELECT format('the publication %%I sends its rows out', p.pubname)
    FROM pg_publication_tables p
    JOIN pg_namespace n ON n.nspname = p.schemaname
    JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
    WHERE c.oid = %(target)s::oid
    UNION ALL
    SELECT format('it belongs to the extension %%I', e.extname)
    FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
    WHERE d.classid = 'pg_class'::regclass AND d.objid = %(target)s::oid AND d.deptype = 'e'
    """
)
# What DROP TABLE would stop at, but the table's own parts and the views that follow.
_DEPENDENTS = sql.SQL(
    """
    SELECT DISTINCT CASE WHEN r.oid IS NOT NULL AND r.rulename = '_RETURN'
                         THEN pg_describe_object('pg_class'::regclass, r.ev_class, 0)
                         ELSE pg_describe_object(d.classid, d.objid, d.objsubid) END
    FROM pg_class c
    JOIN pg_type y ON y.oid = c.reltype
    JOIN pg_depend d ON d.refclassid = 'pg_class'::regclass AND d.refobjid = c.oid
                     OR d.refclassid = 'pg_type'::regclass AND d.refobjid IN (y.oid, y.typarray)
    LEFT JOIN pg_rewrite r ON d.classid = 'pg_rewrite'::regclass AND r.oid = d.objid
    LEFT JOIN pg_class v ON v.oid = r.ev_class
    WHERE c.oid = %(target)s::oid AND d.deptype = 'n'
      AND NOT (r.rulename IS NOT DISTINCT FROM '_RETURN' AND v.relkind = 'v' AND pg_has_role(v.relowner, 'USAGE'))
      AND NOT EXISTS (SELECT FROM pg_constraint k WHERE d.classid = 'pg_constraint'::regclass AND k.oid = d.objid
                      AND k.conrelid = c.oid AND k.contype <> 'f')
      AND NOT EXISTS (SELECT FROM pg_attrdef a WHERE d.classid = 'pg_attrdef'::regclass AND a.oid = d.objid
                      AND a.adrelid = c.oid)
      AND NOT EXISTS (SELECT FROM pg_index i WHERE d.classid = 'pg_class'::regclass AND i.indexrelid = d.objid
                      AND i.indrelid = c.oid)
      AND NOT EXISTS (SELECT FROM pg_statistic_ext e WHERE d.classid = 'pg_statistic_ext'::regclass
                      AND e.oid = d.objid AND e.stxrelid = c.oid)
    ORDER BY 1
    """
)
# To change an owner into itself takes the view's lock and nothing else happens.
_VIEWS = sql.SQL(
    """
    SELECT format('ALTER VIEW %%I.%%I OWNER TO %%I', n.nspname, v.relname, pg_get_userbyid(v.relowner)),
           format('CREATE OR REPLACE VIEW %%I.%%I%%s AS %%s', n.nspname, v.relname,
                  (SELECT format(' WITH (%%s)', string_agg(format('%%I = %%L', o.option_name, o.option_value), ', '))
                   FROM pg_options_to_table(v.reloptions) o HAVING count(*) > 0),
                  pg_get_viewdef(v.oid))
    FROM pg_class v JOIN pg_namespace n ON n.oid = v.relnamespace
    WHERE v.relkind = 'v' AND EXISTS (
        SELECT FROM pg_rewrite r
        JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
        WHERE r.ev_class = v.oid AND r.rulename = '_RETURN'
          AND d.refclassid = 'pg_class'::regclass AND d.refobjid = %(target)s::oid)
    ORDER BY v.oid
    """
)
