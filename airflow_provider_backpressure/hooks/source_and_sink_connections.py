"""Endpoints, from Airflow connections of the types that sources and sinks go by."""

import json
import logging
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from airflow.sdk import BaseHook, Connection

from airflow_provider_backpressure.airflow_compat import AirflowNotFoundException
from airflow_provider_backpressure.core.endpoints import CATALOG, NOWHERE, REGION, S3_ADDRESS, Endpoint
from airflow_provider_backpressure.exceptions import InvalidDeclaration

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
        secrets=_given(extra, secrets),
        executor_host=_servers(extra.get(EXECUTOR_SERVERS)) or None,
    )
    known = {SERVERS, EXECUTOR_SERVERS, *users, *passwords, *settings, *secrets}
    if by_oauth:
        _check_oauth(built, extra, known)
    _log_ignored(found, extra, known | ({GRANT} if by_oauth else set()))
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


MYSQL_EXTRAS = ("connect_timeout", "executor_host", "executor_port", "ssl", "ssl_mode")
"""Extras that are read."""
TLS_FILES = ("ca", "cert", "key", "cipher")
"""What the extra ``ssl`` may name, as the driver of Airflow's own provider has it."""
MODES = ("DISABLED", "PREFERRED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY")
_WITHOUT_MEANING = frozenset({"charset", "cursor", "local_infile"})


def mysql_endpoint(found: Connection, extra: Mapping[str, Any]) -> Endpoint:
    """Build the endpoint; :class:`InvalidDeclaration` names the field that is missing or cannot be meant."""
    _check_fields(found, {"host": found.host, "login": found.login})
    _log_ignored(found, extra, {*MYSQL_EXTRAS, *_WITHOUT_MEANING})
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


AWS_OPTIONS = (S3_ADDRESS, REGION)
"""Extras that are read."""


def from_aws(found: Connection, extra: Mapping[str, Any]) -> Endpoint:
    """Build the endpoint: key id and secret, region, and the address of what is not Amazon's own.

    Without login the machines' own rights are used (environment, instance profile). :class:`InvalidDeclaration` for a
    key id without its secret.
    """
    if bool(found.login) != bool(found.password):
        raise InvalidDeclaration(
            f"The Airflow connection {found.conn_id!r} needs both a key id (login) and its secret."
        )
    _log_ignored(found, extra, AWS_OPTIONS)
    return _without_address(found, _given(extra, AWS_OPTIONS))


def from_iceberg(found: Connection, extra: Mapping[str, Any]) -> Endpoint:
    """Build the endpoint: the catalog's address as host, client id and secret, or a token as password alone.

    :class:`InvalidDeclaration` without an address, or with a client id that has no secret.
    """
    if not found.host:
        raise InvalidDeclaration(f"The Airflow connection {found.conn_id!r} names no host: the catalog's address.")
    if found.login and not found.password:
        raise InvalidDeclaration(f"The Airflow connection {found.conn_id!r} names a client id (login) and no secret.")
    return _without_address(found, {CATALOG: found.host})


def from_spark_connect(found: Connection, extra: Mapping[str, Any]) -> Endpoint:
    """Build the endpoint of a Spark Connect server: its password is the whole address, which may hold a token."""
    from airflow_provider_backpressure.hooks.spark_and_yarn import remote

    return replace(NOWHERE, conn_id=found.conn_id, host=found.host or "", password=remote(found, extra))


REGISTRY_TLS = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location")
"""Extras that are read; files are those of the host that plans."""


def _without_address(found: Connection, options: Mapping[str, str]) -> Endpoint:
    login, password = found.login or "", found.password or ""
    return replace(NOWHERE, conn_id=found.conn_id, user=login, password=password, options=options)


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
    _log_ignored(found, extra, (*REGISTRY_TLS, KEY_SECRETS[0]))
    host = urlunsplit((place.scheme, netloc, place.path.rstrip("/"), "", ""))
    built = _without_address(found, _given(extra, REGISTRY_TLS))
    return replace(built, host=host, password=password, secrets=_given(extra, KEY_SECRETS[:1]))


def with_related(found: Endpoint, declared: object) -> Endpoint:
    """Return a source's endpoint with those of the further connections that its planning side needs."""
    related: Mapping[str, tuple[str, ...]] = getattr(declared, "related", {})
    return replace(found, related={conn_id: endpoint(conn_id, *types) for conn_id, types in related.items()})


def connection(conn_id: str, *types: str) -> Connection:
    """Return a connection of one of the given types; :class:`InvalidDeclaration` where there is none."""
    try:
        found = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise unknown_connection_error(conn_id, *types) from error
    check_type(found, *types)
    return found


def unknown_connection_error(conn_id: str, *types: str) -> InvalidDeclaration:
    """Return the error of a connection that does not exist."""
    # That of the ledger has a default, which a command makes.
    how = " (`airflow backpressure setup` does)" if types == ("backpressure",) else ""
    return InvalidDeclaration(
        f"There is no Airflow connection {conn_id!r}: create one of type {' or '.join(types)}{how}."
    )


def check_type(found: Connection, *types: str) -> None:
    """Raise :class:`InvalidDeclaration` where a connection is of another type."""
    if found.conn_type not in types:
        # What Airflow's page and commands make, without an error, of a type whose provider they do not find.
        generic = " Airflow makes a connection generic where the provider of its type is not installed."
        raise InvalidDeclaration(
            f"The Airflow connection {found.conn_id!r} is of type {found.conn_type!r}; "
            f"type {' or '.join(types)} is needed here.{generic if found.conn_type == 'generic' else ''}"
        )


def parse_port(conn_id: str, value: object) -> int | None:
    """Return an extra's port; ``None`` where it is left out, :class:`InvalidDeclaration` where it is none."""
    if value in (None, ""):
        return None
    text = str(value)
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise InvalidDeclaration(f"The extra executor_port of connection {conn_id!r} is no port number: {value!r}.")
    return int(text)


log = logging.getLogger(__name__)

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


def endpoint(conn_id: str, *types: str) -> Endpoint:
    """Return where a connection of one of these types leads to (``postgres`` where none is named).

    Of its extras only those that have a meaning are read, each by its name.
    """
    found = connection(conn_id, *(types or ("postgres",)))
    return BUILDERS[str(found.conn_type)](found, found.extra_dejson)


def from_connection(found: Connection, extra: Mapping[str, Any]) -> Endpoint:
    """Build the endpoint; :class:`InvalidDeclaration` names the field that is missing or cannot be meant."""
    _check_fields(found, {"host": found.host, "database (schema)": found.schema, "login": found.login})
    _log_ignored(found, extra, {*OPTIONS, *ADDRESS})
    return _database(found, extra, port=5432, options=_given(extra, OPTIONS))


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


def _check_fields(found: Connection, needed: Mapping[str, str | None]) -> None:
    for field, value in needed.items():
        if not value:
            raise InvalidDeclaration(f"The Airflow connection {found.conn_id!r} names no {field}.")


def _log_ignored(found: Connection, extra: Mapping[str, Any], known: Collection[str]) -> None:
    ignored = sorted(set(extra) - set(known))
    if ignored:
        log.info("Extras of connection %s that have no meaning here: %s", found.conn_id, ", ".join(ignored))


def _given(extra: Mapping[str, Any], names: Sequence[str]) -> dict[str, str]:
    """Return the extras of these names that have a value."""
    return {name: str(extra[name]) for name in names if extra.get(name) not in (None, "")}


BUILDERS: dict[str, Callable[[Connection, Mapping[str, Any]], Endpoint]] = {
    "aws": from_aws,
    "http": from_registry,
    "kafka": from_kafka,
    "mysql": mysql_endpoint,
    "postgres": from_connection,
    "iceberg": from_iceberg,
    "spark_connect": from_spark_connect,
}
"""How to read a connection, by its type."""
