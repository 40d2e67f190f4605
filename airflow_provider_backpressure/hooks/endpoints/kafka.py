"""The endpoint of a Kafka connection, as Airflow's own provider has it: every setting in the extra, by its own name."""

import logging
import re
from collections.abc import Mapping
from typing import Any

from airflow.sdk import Connection

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.exceptions import InvalidDeclaration

log = logging.getLogger(__name__)

SERVERS, EXECUTOR_SERVERS = "bootstrap.servers", "executor_bootstrap_servers"
USER, PASSWORD = "sasl.username", "sasl.password"
SETTINGS = (
    "security.protocol",
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.kerberos.service.name",
    "sasl.kerberos.principal",
    "sasl.kerberos.keytab",
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.certificate.location",
    "ssl.certificate.pem",
    "ssl.key.location",
    "ssl.cipher.suites",
    "ssl.endpoint.identification.algorithm",
    "enable.ssl.certificate.verification",
    "broker.address.family",
    "client.dns.lookup",
    "client.rack",
    "socket.timeout.ms",
    "socket.connection.setup.timeout.ms",
)
"""Extras that are handed to the client; files are those of the host that reads."""
_KERBEROS = ("sasl.kerberos.service.name", "sasl.kerberos.principal", "sasl.kerberos.keytab")
_WORD = re.compile(r"[\w.,:/@+=-]+")
"""librdkafka puts these into a command line of ``kinit`` that a shell reads."""
NOT_CARRIED = ("ssl.key.password", "ssl.key.pem", "ssl.keystore.password", "sasl.oauthbearer.client.secret")
"""Secrets that have no place on the way to a task."""


def from_connection(found: Connection, extra: Mapping[str, Any]) -> Endpoint:
    """Build the endpoint; :class:`InvalidDeclaration` names what is missing or cannot be carried.

    Host and port stand for ``bootstrap.servers`` where the extra has none, login and password for those of SASL.
    """
    servers = _servers(extra.get(SERVERS)) or _host(found)
    if not servers:
        raise InvalidDeclaration(f"The Airflow connection {found.conn_id!r} names no {SERVERS} in its extra.")
    secret = sorted(name for name in NOT_CARRIED if extra.get(name))
    if secret:
        raise InvalidDeclaration(
            f"The extra {', '.join(secret)} of connection {found.conn_id!r} cannot be carried to the executors: use "
            "SASL, or a key file without a password."
        )
    for name in _KERBEROS:
        if extra.get(name) and not _WORD.fullmatch(str(extra[name])):
            raise InvalidDeclaration(
                f"The extra {name} of connection {found.conn_id!r} has characters that a shell would read."
            )
    ignored = sorted(set(extra) - {SERVERS, EXECUTOR_SERVERS, USER, PASSWORD, *SETTINGS})
    if ignored:
        log.info("Extras of connection %s that have no meaning here: %s", found.conn_id, ", ".join(ignored))
    return Endpoint(
        conn_id=found.conn_id,
        host=servers,
        port=0,
        database="",
        user=str(extra.get(USER) or found.login or ""),
        password=str(extra.get(PASSWORD) or found.password or ""),
        options={name: _text(extra[name]) for name in SETTINGS if extra.get(name) not in (None, "")},
        executor_host=_servers(extra.get(EXECUTOR_SERVERS)) or None,
    )


def _servers(value: object) -> str:
    """Return a list of servers in one order, however it is written."""
    parts = value if isinstance(value, list) else str(value or "").split(",")
    return ",".join(sorted(str(part).strip() for part in parts if str(part).strip()))


def _host(found: Connection) -> str:
    return f"{found.host}:{found.port or 9092}" if found.host else ""


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
