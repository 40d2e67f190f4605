"""``grants``: what ``setup`` would run on PostgreSQL or MySQL, for a database administrator."""

import argparse
import contextlib
import io
import json
import os
import re
import secrets
import tempfile
from argparse import Namespace
from contextlib import closing
from typing import Any

import psycopg
from airflow.cli.commands.connection_command import connections_import
from airflow.configuration import conf
from psycopg import sql
from sqlalchemy.engine import URL, make_url

from airflow_provider_backpressure.cli.command import command
from airflow_provider_backpressure.exceptions import (
    BackpressureError,
    InvalidDeclaration,
    LedgerRefused,
    LedgerUnavailable,
)
from airflow_provider_backpressure.hooks.backpressure import (
    CONN_TYPE,
    DIALECTS,
    MYSQL_OPTIONS,
    BackpressureHook,
    open_ledger,
)
from airflow_provider_backpressure.hooks.connection_types_and_fields import connection
from airflow_provider_backpressure.ledger.database import Database, MissingRight
from airflow_provider_backpressure.ledger.role_grants import write_grants, write_grants_on_mysql

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


def make_role(address: URL, role: str, password: str) -> None:
    """Make the role for any host, or give it a new password, and let it use the ledger's tables.

    ``MissingRight`` where the account of ``address`` may not do that, otherwise the ledger's other errors. MySQL
    commits each of the statements by itself; all may be run again.
    """
    try:
        with closing(Database(address)) as database:
            _grant_on_mysql(database, role, password)
    except BackpressureError as error:
        # Its causes show the statement, and that the password.
        raise type(error)(str(error)) from None


def _grant_on_mysql(database: Database, role: str, password: str) -> None:
    account = f"'{role}'@'%%'"
    schema = database.engine.dialect.identifier_preparer.quote_identifier(str(database.engine.url.database))
    with database.write() as link:
        # Literals, since not every driver takes parameters here. The server hides passwords in its logs.
        link.exec_driver_sql(f"CREATE USER IF NOT EXISTS {account} IDENTIFIED BY '{password}'")
        link.exec_driver_sql(f"ALTER USER {account} IDENTIFIED BY '{password}'")
        for statement in write_grants_on_mysql(account, schema=schema):
            link.exec_driver_sql(statement)


def extras(address: URL) -> dict[str, str]:
    """Return the extras that the ledger's connection needs to reach the same server."""
    return {"dialect": "mysql", **{name: str(address.query[name]) for name in MYSQL_OPTIONS if name in address.query}}


TABLE = "backpressure_hydration"


@command
def setup(args: Namespace) -> None:
    """Check the migrations; make role and connection where there is none that works."""
    address = make_url(conf.get_mandatory_value("database", "sql_alchemy_conn"))
    with closing(open_ledger(address)) as ledger:
        ledger.hydrations()
    print(f"The ledger's tables are in {_place(address)}.")
    if not args.overwrite and _works(args.backpressure_conn_id):
        return
    values = _file(address) if address.get_backend_name() == "sqlite" else _role(address, check_name(args.role))
    _store(args.backpressure_conn_id, values)
    print(f"The connection {args.backpressure_conn_id} leads to them.")


def _works(conn_id: str) -> bool:
    """Whether the connection is there and reaches a ledger; an error where it is there and does not."""
    try:
        connection(conn_id, CONN_TYPE)
    except InvalidDeclaration:
        return False
    good, sentence = BackpressureHook(conn_id).test_connection()
    if not good:
        raise LedgerRefused(f"The connection {conn_id} is there but does not work ({sentence}); --overwrite renews it.")
    print(f"The connection {conn_id} is there and works.")
    return True


def _file(address: URL) -> dict[str, Any]:
    if not address.database or address.database == ":memory:":
        raise LedgerRefused("A metadata database in memory cannot hold the ledger.")
    return {"conn_type": CONN_TYPE, "extra": json.dumps({"path": os.path.abspath(address.database)})}


def _role(address: URL, role: str) -> dict[str, Any]:
    """Make the role, or give it a new password, and return the connection's values."""
    kind = address.get_backend_name()
    if kind not in DIALECTS:
        raise LedgerRefused(f"The ledger cannot be in a metadata database on {kind}: PostgreSQL or MySQL is needed.")
    password = secrets.token_urlsafe(24)
    try:
        if kind == "mysql":
            make_role(address, check_name(role, longest=MYSQL_ROLE), password)
        else:
            _make_on_postgresql(address, role, password)
    except (MissingRight, psycopg.errors.InsufficientPrivilege) as error:
        raise LedgerRefused(
            f"{address.username} may not make the role {role}: have a database administrator run what "
            "`airflow backpressure grants` prints, and add the connection yourself."
        ) from error
    print(f"The role {role} may use the ledger's tables, and nothing else.")
    return {
        "conn_type": CONN_TYPE,
        "host": address.host or "localhost",
        "port": address.port or DIALECTS[kind],
        "schema": address.database,
        "login": role,
        "password": password,
        "extra": json.dumps(extras(address) if kind == "mysql" else _tls(address)),
    }


def _make_on_postgresql(address: URL, role: str, password: str) -> None:
    try:
        with psycopg.connect(**_libpq(address)) as link:
            _grant_on_postgres(link, role, password)
    except psycopg.errors.InsufficientPrivilege:
        raise
    except psycopg.OperationalError as error:
        raise LedgerUnavailable(f"The metadata database at {_place(address)} does not answer.") from error
    except psycopg.Error as error:
        raise LedgerRefused(f"The role {role} could not be made at {_place(address)}: {error}.") from error


def _libpq(address: URL) -> dict[str, Any]:
    return {
        "host": address.host,
        "port": address.port,
        "dbname": address.database,
        "user": address.username,
        "password": str(address.password) if address.password else None,
        "connect_timeout": 10,
        **_tls(address),
    }


def _tls(address: URL) -> dict[str, str]:
    return {name: str(value) for name, value in address.query.items() if name.startswith("ssl")}


def _grant_on_postgres(link: "psycopg.Connection[Any]", role: str, password: str) -> None:
    there = link.execute("SELECT FROM pg_roles WHERE rolname = %s", (role,)).fetchone()
    # Hashed here: a server that logs its statements would keep the password itself.
    hashed = link.pgconn.encrypt_password(password.encode(), role.encode(), b"scram-sha-256").decode()
    verb = sql.SQL("CREATE" if there is None else "ALTER")
    link.execute(sql.SQL("{} ROLE {} LOGIN PASSWORD {}").format(verb, sql.Identifier(role), sql.Literal(hashed)))
    found = link.execute(
        "SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)",
        (TABLE,),
    ).fetchone()
    for statement in write_grants(role, schema=sql.Identifier(found[0] if found else "public").as_string(link)):
        link.execute(statement.encode())


def _store(conn_id: str, values: dict[str, Any]) -> None:
    """Write the connection into Airflow's metadata database by its own import, from a file that only we can read."""
    with tempfile.NamedTemporaryFile("w", suffix=".json", prefix="connection-") as file:
        file.write(json.dumps({conn_id: values}))
        file.flush()
        told = io.StringIO()
        with contextlib.redirect_stdout(told):
            connections_import(argparse.Namespace(file=file.name, overwrite=True, verbose=False))


def _place(address: URL) -> str:
    port = address.port or DIALECTS.get(address.get_backend_name())
    return f"{address.host}:{port}/{address.database}" if address.host else str(address.database)
