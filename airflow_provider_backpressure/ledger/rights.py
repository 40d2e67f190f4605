"""What a role needs to use the ledger on PostgreSQL: our tables, and nothing else."""

from contextlib import closing

import sqlalchemy as sa
from sqlalchemy.engine import URL

from airflow_provider_backpressure.ledger.database import Database
from airflow_provider_backpressure.ledger.models import metadata

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


def granted(role: str, *, schema: str) -> list[str]:
    """Return the statements that give the rights. Both names are put in as they are: quote what needs it."""
    return [
        f"GRANT USAGE ON SCHEMA {schema} TO {role}",
        f"GRANT {', '.join(RIGHTS)} ON {', '.join(f'{schema}.{table}' for table in TABLES)} TO {role}",
        f"GRANT USAGE ON SEQUENCE {', '.join(f'{schema}.{name}' for name in SEQUENCES)} TO {role}",
    ]


def missing(url: str | URL) -> list[str]:
    """Return the rights that the role of this URL lacks, as ``RIGHT on table``; only PostgreSQL is asked."""
    with closing(Database(url)) as database:
        if database.engine.dialect.name != "postgresql":
            return []
        tables = [("has_table_privilege", table, right) for table in TABLES for right in RIGHTS]
        sequences = [("has_sequence_privilege", name, "USAGE") for name in SEQUENCES]
        with database.read() as connection:
            return [
                f"{right} on {name}"
                for function, name, right in tables + sequences
                if not connection.scalar(sa.select(getattr(sa.func, function)(name, right)))
            ]
