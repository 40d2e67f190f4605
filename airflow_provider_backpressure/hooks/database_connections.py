"""Endpoints of PostgreSQL and MySQL, from Airflow connections."""

import json
from collections.abc import Mapping
from typing import Any

from airflow.sdk import Connection

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.exceptions import InvalidDeclaration
from airflow_provider_backpressure.hooks.connection_types_and_fields import (
    check_fields,
    given_extras,
    log_ignored,
    parse_port,
)

OPTIONS = (
    "connect_timeout",
    "keepalives_count",
    "keepalives_idle",
    "keepalives_interval",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslrootcert",
)
"""Extras that are handed to libpq."""
ADDRESS = ("executor_host", "executor_port")
"""Extras that say where executors find the same database."""


def from_connection(found: Connection, extra: Mapping[str, Any]) -> Endpoint:
    """Build the endpoint; :class:`InvalidDeclaration` names the field that is missing or cannot be meant."""
    check_fields(found, {"host": found.host, "database (schema)": found.schema, "login": found.login})
    log_ignored(found, extra, {*OPTIONS, *ADDRESS})
    return _database(found, extra, port=5432, options=given_extras(extra, OPTIONS))


def _database(found: Connection, extra: Mapping[str, Any], *, port: int, options: Mapping[str, str]) -> Endpoint:
    """Return the endpoint of a database; ``port``: where the connection names none."""
    return Endpoint(
        conn_id=found.conn_id,
        host=found.host or "",
        port=found.port or port,
        database=found.schema or "",
        user=found.login or "",
        password=found.password or "",
        options=options,
        executor_host=extra.get("executor_host") or None,
        executor_port=parse_port(found.conn_id, extra.get("executor_port")),
    )


MYSQL_EXTRAS = ("connect_timeout", "executor_host", "executor_port", "ssl", "ssl_mode")
"""Extras that are read."""
TLS_FILES = ("ca", "cert", "key", "cipher")
"""What the extra ``ssl`` may name, as the driver of Airflow's own provider has it."""
MODES = ("DISABLED", "PREFERRED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY")
_WITHOUT_MEANING = frozenset({"charset", "cursor", "local_infile"})


def mysql_endpoint(found: Connection, extra: Mapping[str, Any]) -> Endpoint:
    """Build the endpoint; :class:`InvalidDeclaration` names the field that is missing or cannot be meant."""
    check_fields(found, {"host": found.host, "login": found.login})
    log_ignored(found, extra, {*MYSQL_EXTRAS, *_WITHOUT_MEANING})
    options = {**_timeout(found.conn_id, extra), **_tls(found.conn_id, extra)}
    return _database(found, extra, port=3306, options=options)


def _timeout(conn_id: str, extra: Mapping[str, Any]) -> dict[str, str]:
    value = str(extra.get("connect_timeout") or "")
    if value and not (value.isdecimal() and int(value) > 0):
        raise InvalidDeclaration(f"The extra connect_timeout of connection {conn_id!r} is no number of seconds.")
    return {"connect_timeout": value} if value else {}


def _tls(conn_id: str, extra: Mapping[str, Any]) -> dict[str, str]:
    """Return the options for TLS: a mode by MySQL's own names, and files; Airflow's form may hold ``ssl`` as text."""
    files = extra.get("ssl") or {}
    try:
        named = dict(json.loads(files) if isinstance(files, str) else files)
    except (TypeError, ValueError):
        raise InvalidDeclaration(f"The extra ssl of connection {conn_id!r} is no object of ca, cert and key.") from None
    options = {f"ssl_{name}": str(named[name]) for name in TLS_FILES if named.get(name)}
    mode = str(extra.get("ssl_mode") or named.get("mode") or "").upper().replace("-", "_")
    if mode and mode not in MODES:
        raise InvalidDeclaration(
            f"The extra ssl_mode of connection {conn_id!r} must be one of {', '.join(MODES)}, not {mode!r}."
        )
    return {**options, **({"ssl_mode": mode} if mode else {})}
