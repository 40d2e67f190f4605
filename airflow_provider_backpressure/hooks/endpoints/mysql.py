"""Endpoints of MySQL, from Airflow connections of its own provider's type."""

import json
import logging
from collections.abc import Mapping
from typing import Any

from airflow.sdk import Connection

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.exceptions import InvalidDeclaration
from airflow_provider_backpressure.hooks.endpoints.connection import port

log = logging.getLogger(__name__)

MYSQL_EXTRAS = ("connect_timeout", "executor_host", "executor_port", "ssl", "ssl_mode")
"""Extras that are read."""
TLS_FILES = ("ca", "cert", "key", "cipher")
"""What the extra ``ssl`` may name, as the driver of Airflow's own provider has it."""
MODES = ("DISABLED", "PREFERRED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY")
_WITHOUT_MEANING = frozenset({"charset", "cursor", "local_infile"})


def mysql_endpoint(found: Connection, extra: Mapping[str, Any]) -> Endpoint:
    """Build the endpoint; :class:`InvalidDeclaration` names the field that is missing or cannot be meant."""
    for field, value in (("host", found.host), ("login", found.login)):
        if not value:
            raise InvalidDeclaration(f"The Airflow connection {found.conn_id!r} names no {field}.")
    ignored = sorted(set(extra) - {*MYSQL_EXTRAS, *_WITHOUT_MEANING})
    if ignored:
        log.info("Extras of connection %s that have no meaning here: %s", found.conn_id, ", ".join(ignored))
    return Endpoint(
        conn_id=found.conn_id,
        host=found.host or "",
        port=found.port or 3306,
        database=found.schema or "",
        user=found.login or "",
        password=found.password or "",
        options={**_timeout(found.conn_id, extra), **_tls(found.conn_id, extra)},
        executor_host=extra.get("executor_host") or None,
        executor_port=port(found.conn_id, extra.get("executor_port")),
    )


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
