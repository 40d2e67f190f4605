"""What the ledger's restricted role may do: the statements that grant it, and which of these rights a role lacks."""

from contextlib import closing

import sqlalchemy as sa
from sqlalchemy.engine import URL

from airflow_provider_backpressure.ledger.database import Database, MissingRight
from airflow_provider_backpressure.ledger.models import metadata
from airflow_provider_backpressure.ledger.revision import VERSION_TABLE

RIGHTS = ("SELECT", "INSERT", "UPDATE", "DELETE")


TABLES = tuple(sorted(metadata.tables))


SEQUENCES = tuple(
    sorted(
        f"{table.name}_{column.name}_seq"
        for table in metadata.tables.values()
        if (column := table.autoincrement_column) is not None
    )
)
"""Sequences behind the tables' own numbers, as PostgreSQL names them."""


def write_grants(role: str, *, schema: str) -> list[str]:
    """Return PostgreSQL's statements that give the rights. Both names are put in as they are: quote what needs it."""
    return [
        f"GRANT USAGE ON SCHEMA {schema} TO {role}",
        f"GRANT {', '.join(RIGHTS)} ON {', '.join(f'{schema}.{table}' for table in TABLES)} TO {role}",
        f"GRANT USAGE ON SEQUENCE {', '.join(f'{schema}.{name}' for name in SEQUENCES)} TO {role}",
        f"GRANT SELECT ON {schema}.{VERSION_TABLE} TO {role}",
    ]


def write_grants_on_mysql(account: str, *, schema: str) -> list[str]:
    """Return MySQL's statements that give the rights; its GRANT takes one table at a time. Names as in ``granted``."""
    written = [f"GRANT {', '.join(RIGHTS)} ON {schema}.{table} TO {account}" for table in TABLES]
    return [*written, f"GRANT SELECT ON {schema}.{VERSION_TABLE} TO {account}"]


def find_missing_rights(url: str | URL) -> list[str]:
    """Return the rights that the role of this URL lacks, as ``RIGHT on table``; SQLite has none to lack."""
    with closing(Database(url)) as database:
        if database.engine.dialect.name == "sqlite":
            return []
        if database.engine.dialect.name == "postgresql":
            return _find_missing_on_postgresql(database)
        return _find_missing_on_mysql(database)


def _find_missing_on_postgresql(database: Database) -> list[str]:
    tables = [("has_table_privilege", table, right) for table in TABLES for right in RIGHTS]
    sequences = [("has_sequence_privilege", name, "USAGE") for name in SEQUENCES]
    with database.read() as connection:
        return [
            f"{right} on {name}"
            for function, name, right in tables + sequences
            if not connection.scalar(sa.select(getattr(sa.func, function)(name, right)))
        ]


def _find_missing_on_mysql(database: Database) -> list[str]:
    """Ask the server to explain statements, for which it wants the same rights: it has no function that lists them."""
    return [f"{right} on {table}" for table in TABLES for right in RIGHTS if not _may(database, right, table)]


def _may(database: Database, right: str, table: str) -> bool:
    column = next(iter(metadata.tables[table].columns)).name
    statement = {
        "SELECT": f"SELECT 1 FROM {table}",  # noqa: S608
        "INSERT": f"INSERT INTO {table} ({column}) VALUES ('0')",  # noqa: S608
        "UPDATE": f"UPDATE {table} SET {column} = '0'",  # noqa: S608
        "DELETE": f"DELETE FROM {table}",  # noqa: S608
    }[right]
    try:
        with database.read() as connection:
            connection.exec_driver_sql(f"EXPLAIN {statement}")
    except MissingRight:
        return False
    return True
