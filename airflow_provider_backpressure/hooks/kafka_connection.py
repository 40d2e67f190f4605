"""Endpoints of Kafka's brokers and of schema registries, from Airflow connections: which settings reach the client."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from airflow.sdk import Connection

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.exceptions import InvalidDeclaration
from airflow_provider_backpressure.hooks.connection_types_and_fields import given_extras, log_ignored, without_address

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
    "ssl.keystore.location",
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
KEY_SECRETS = ("ssl.key.password", "ssl.key.pem", "ssl.keystore.password")
"""Extras that are handed to the client, and that nothing shows."""
OAUTH = "sasl.oauthbearer."
CLIENT_ID = (f"{OAUTH}client.id", f"{OAUTH}client.credentials.client.id")
CLIENT_SECRET = (f"{OAUTH}client.secret", f"{OAUTH}client.credentials.client.secret")
METHOD, GRANT, TOKENS, EXTENSIONS = (
    f"{OAUTH}{name}" for name in ("method", "grant.type", "token.endpoint.url", "extensions")
)
OAUTH_SETTINGS = (METHOD, TOKENS, f"{OAUTH}scope", "https.ca.location", "https.ca.pem")
"""Further extras of a login by OAuth's client credentials."""
CALLBACK = "oauth_cb"
"""Extra of Airflow's own provider: the path of a function that returns tokens."""


def from_kafka(found: Connection, extra: Mapping[str, Any]) -> Endpoint:
    """Build the endpoint; :class:`InvalidDeclaration` names what is missing or cannot be carried.

    Host and port stand for ``bootstrap.servers`` where the extra has none, login and password for those of SASL.
    """
    servers = _servers(extra.get(SERVERS)) or _host(found)
    if not servers:
        raise InvalidDeclaration(f"The Airflow connection {found.conn_id!r} names no {SERVERS} in its extra.")
    for name in _KERBEROS:
        if extra.get(name) and not _WORD.fullmatch(str(extra[name])):
            raise InvalidDeclaration(
                f"The extra {name} of connection {found.conn_id!r} has characters that a shell would read."
            )
    by_oauth = _is_oauth(extra)
    users, passwords = (CLIENT_ID, CLIENT_SECRET) if by_oauth else ((USER,), (PASSWORD,))
    settings = (*SETTINGS, *OAUTH_SETTINGS) if by_oauth else SETTINGS
    secrets = (*KEY_SECRETS, EXTENSIONS) if by_oauth else KEY_SECRETS
    built = Endpoint(
        conn_id=found.conn_id,
        host=servers,
        port=0,
        database="",
        user=_first(extra, users) or found.login or "",
        password=_first(extra, passwords) or found.password or "",
        options={name: _text(extra[name]) for name in settings if extra.get(name) not in (None, "")},
        secrets=given_extras(extra, secrets),
        executor_host=_servers(extra.get(EXECUTOR_SERVERS)) or None,
    )
    known = {SERVERS, EXECUTOR_SERVERS, *users, *passwords, *settings, *secrets}
    if by_oauth:
        _check_oauth(built, extra, known)
    log_ignored(found, extra, known | ({GRANT} if by_oauth else set()))
    return built


def _is_oauth(extra: Mapping[str, Any]) -> bool:
    mechanism = extra.get("sasl.mechanism") or extra.get("sasl.mechanisms") or ""
    return str(mechanism).upper() == "OAUTHBEARER"


def _check_oauth(built: Endpoint, extra: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise :class:`InvalidDeclaration` for a login by OAuth other than by complete client credentials."""
    of = f"of connection {built.conn_id!r}"
    if extra.get(CALLBACK):
        raise InvalidDeclaration(
            f"The extra {CALLBACK} {of} is a function of this host and cannot be carried to the executors. Use OAuth's "
            f"client credentials: {METHOD} = oidc with {CLIENT_ID[0]}, {CLIENT_SECRET[0]} and {TOKENS}."
        )
    if str(built.options.get(METHOD, "")).lower() != "oidc":
        raise InvalidDeclaration(
            f"The mechanism OAUTHBEARER {of} needs {METHOD} = oidc: tokens are fetched by OAuth's client credentials. "
            "Tokens of other kinds, such as those of a cloud's own login, cannot be carried to the executors."
        )
    others = sorted(name for name in extra if name.startswith(OAUTH) and name not in {*known, GRANT} and extra[name])
    if others or str(extra.get(GRANT) or "client_credentials") != "client_credentials":
        raise InvalidDeclaration(
            f"The extra {', '.join(others) or GRANT} {of} cannot be carried to the executors. Of OAuth only the grant "
            "client_credentials is supported, with a client's id and secret."
        )
    needed = {CLIENT_ID[0]: built.user, CLIENT_SECRET[0]: built.password, TOKENS: built.options.get(TOKENS)}
    if missing := [name for name, value in needed.items() if not value]:
        raise InvalidDeclaration(f"The mechanism OAUTHBEARER {of} also needs the extra {', '.join(missing)}.")
    place = urlsplit(built.options[TOKENS])
    if place.scheme not in ("http", "https") or "@" in place.netloc or not place.hostname or place.query:
        raise InvalidDeclaration(
            f"The extra {TOKENS} {of} is no address that can be shown: give one as https://login/token, without a "
            "login or parameters in it."
        )


def _first(extra: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return the first of these extras that has a value, as text."""
    return next((str(extra[name]) for name in names if extra.get(name)), "")


def _servers(value: object) -> str:
    """Return a list of servers in one order, however it is written."""
    parts = value if isinstance(value, list) else str(value or "").split(",")
    return ",".join(sorted(str(part).strip() for part in parts if str(part).strip()))


def _host(found: Connection) -> str:
    return f"{found.host}:{found.port or 9092}" if found.host else ""


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


REGISTRY_TLS = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location")
"""Extras that are read; files are those of the host that plans."""


def from_registry(found: Connection, extra: Mapping[str, Any]) -> Endpoint:
    """Build the endpoint of a schema registry: its whole address as host, or host, port and protocol.

    Login and password are those of the registry; a password alone is a bearer token. Spaces and ends of lines around it
    are no part of it. :class:`InvalidDeclaration` names what is missing or cannot be meant.
    """
    if not found.host:
        raise InvalidDeclaration(f"The Airflow connection {found.conn_id!r} names no host: the registry's address.")
    address = found.host if "://" in found.host else f"{found.schema or 'http'}://{found.host}"
    place = urlsplit(address)
    if place.scheme not in ("http", "https") or "@" in place.netloc or not place.hostname:
        raise InvalidDeclaration(
            f"The host of connection {found.conn_id!r} is no address of a schema registry: give one as "
            "https://registry:8081, with login and password in fields of their own."
        )
    netloc = f"{place.netloc}:{found.port}" if found.port and place.port is None else place.netloc
    password = (found.password or "").strip()
    if not found.login and not (password.isascii() and password.isprintable()):
        raise InvalidDeclaration(
            f"The password of connection {found.conn_id!r} cannot be a bearer token: it holds characters that are no "
            "printable ASCII. Paste the token alone."
        )
    log_ignored(found, extra, (*REGISTRY_TLS, KEY_SECRETS[0]))
    host = urlunsplit((place.scheme, netloc, place.path.rstrip("/"), "", ""))
    built = without_address(found, given_extras(extra, REGISTRY_TLS))
    return replace(built, host=host, password=password, secrets=given_extras(extra, KEY_SECRETS[:1]))
