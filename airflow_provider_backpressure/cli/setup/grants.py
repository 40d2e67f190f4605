"""``grants``: what ``setup`` would run on PostgreSQL or MySQL, for a database administrator."""

import re
from argparse import Namespace

from airflow.configuration import conf
from sqlalchemy.engine import make_url

from airflow_provider_backpressure.cli.command import command
from airflow_provider_backpressure.exceptions import InvalidDeclaration
from airflow_provider_backpressure.ledger.grants import write_grants, write_grants_on_mysql

NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
MYSQL_ROLE = 32
"""Longest name of an account on MySQL."""


@command
def grants(args: Namespace) -> None:
    """Print the SQL that makes the restricted role. Its administrator chooses the password."""
    metadata = make_url(conf.get_mandatory_value("database", "sql_alchemy_conn"))
    on_mysql = (args.dialect or metadata.get_backend_name()) == "mysql"
    role = check_name(args.role, longest=MYSQL_ROLE if on_mysql else None)
    if on_mysql:
        there = metadata.database if metadata.get_backend_name() == "mysql" else None
        schema, account = check_name(args.schema or there or "airflow"), f"'{role}'@'%'"
        make, gives = f"CREATE USER {account} IDENTIFIED BY '<password>'", write_grants_on_mysql(account, schema=schema)
    else:
        schema = check_name(args.schema or "public")
        make, gives = f"CREATE ROLE {role} LOGIN PASSWORD '<password>'", write_grants(role, schema=schema)
    for statement in (make, *gives):
        print(f"{statement};")


def check_name(name: str, *, longest: int | None = None) -> str:
    """Return a name that needs no quotes; :class:`InvalidDeclaration` for another."""
    if not NAME.fullmatch(name):
        raise InvalidDeclaration(f"A name must consist of small letters, digits and underscores here, not {name!r}.")
    if longest is not None and len(name) > longest:
        raise InvalidDeclaration(f"A name may have {longest} characters here; {name!r} has {len(name)}.")
    return name
