"""``setup``: on the host that has the metadata database, make the restricted role and the connection to the ledger."""

import argparse
import contextlib
import io
import json
import os
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
from airflow_provider_backpressure.cli.setup.grants import MYSQL_ROLE, check_name
from airflow_provider_backpressure.cli.setup.mysql_role import extras, make_role
from airflow_provider_backpressure.exceptions import InvalidDeclaration, LedgerRefused, LedgerUnavailable
from airflow_provider_backpressure.hooks.backpressure import CONN_TYPE, DIALECTS, BackpressureHook, open_ledger
from airflow_provider_backpressure.hooks.endpoints.connection import connection
from airflow_provider_backpressure.ledger.database import MissingRight
from airflow_provider_backpressure.ledger.grants import write_grants

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
            _grant(link, role, password)
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


def _grant(link: "psycopg.Connection[Any]", role: str, password: str) -> None:
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
