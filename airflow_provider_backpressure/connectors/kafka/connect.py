"""Clients of Kafka: the settings of a connection, and the settings that all our clients share."""

import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_backpressure.connectors.kafka.errors import Heard, translate_error, where
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.spark_messages import Substitute
from airflow_provider_backpressure.exceptions import InvalidDeclaration, strip_frames

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Producer
    from confluent_kafka.admin import AdminClient

NEEDED = "confluent_kafka"
"""The module of the client library."""
SUBSTITUTE = Substitute(module=NEEDED, package="kafka", cost="at about a fifth of the speed")
"""kafka-python."""
CONTROL = "backpressure control"
"""``client.id`` of the control side; a task goes by its attempt's name."""
GROUP = "backpressure"
"""The client wants a group's name; nothing is ever committed under it, and the group is never joined."""
OAUTHBEARER = "OAUTHBEARER"
OIDC = "sasl.oauthbearer.method"
OAUTH_LOGIN = ("sasl.oauthbearer.client.id", "sasl.oauthbearer.client.secret")
"""Settings that user and password of an endpoint are for a login by OAuth's client credentials."""
HTTPS_CA = ("https.ca.location", "https.ca.pem")
"""Settings with the authorities of a token endpoint."""
_AUTHORITIES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
"""Files with those that a host trusts: of Debian, Red Hat and Alpine."""
_QUIET = {
    # What a client says is heard by us and ends in an error's sentence; it must not write to a task's stderr too.
    "log_level": 0,
    "socket.keepalive.enable": True,
    "reconnect.backoff.max.ms": 2000,
}

_SETTING = re.compile(r"\b(?:ssl|sasl|security|enable)(?:\.[a-z]+)+")


@contextmanager
def admin(endpoint: Endpoint, name: str = CONTROL) -> "Iterator[tuple[AdminClient, Heard]]":
    """Give a client for questions about topics; it connects at the first of them."""
    library = _library(endpoint)
    from confluent_kafka.admin import AdminClient

    heard = Heard()
    _check_files(endpoint)
    try:
        client = AdminClient(_settings(endpoint, name, heard))
    except library.KafkaException as error:
        raise _unfit(error, endpoint) from strip_frames(error)
    yield client, heard


@contextmanager
def consumer(endpoint: Endpoint, name: str, **settings: Any) -> "Iterator[tuple[Consumer, Heard]]":
    """Give a client that reads, without a group and only what was committed; ``settings`` with ``_`` for ``.``."""
    library = _library(endpoint)
    heard = Heard()
    _check_files(endpoint)
    chosen = {setting.replace("_", "."): value for setting, value in settings.items()}
    reading = {
        "group.id": GROUP,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        # What is no longer there must not be passed over in silence.
        "auto.offset.reset": "error",
        "allow.auto.create.topics": False,
        # A broker holds an answer back for so long where it has nothing, which is also what an end takes to be seen.
        "fetch.wait.max.ms": 100,
        # By itself the client rests for a second whenever its queue was full: several times as long as it takes to
        # empty. Where few records are asked for, of many partitions, it rests again and again.
        "fetch.queue.backoff.ms": 10,
    }
    try:
        client = library.Consumer({**_settings(endpoint, name, heard), **reading, **chosen})
    except library.KafkaException as error:
        raise _unfit(error, endpoint) from strip_frames(error)
    try:
        yield client, heard
    except library.KafkaException as error:
        raise translate_error(error.args[0], endpoint, heard=heard) from error
    finally:
        client.close()


def producer(endpoint: Endpoint, name: str, **settings: Any) -> "tuple[Producer, Heard]":
    """Return a client that writes, to be flushed in the end; ``settings`` with ``_`` for ``.``."""
    library = _library(endpoint)
    heard = Heard()
    _check_files(endpoint)
    chosen = {setting.replace("_", "."): value for setting, value in settings.items()}
    try:
        return library.Producer({**_settings(endpoint, name, heard), **chosen}), heard
    except library.KafkaException as error:
        raise _unfit(error, endpoint) from strip_frames(error)


def library_version(endpoint: Endpoint) -> str:
    """Return the version of librdkafka, which the client library brings with it."""
    return str(_library(endpoint).libversion()[0])


def login_settings(endpoint: Endpoint) -> dict[str, str]:
    """Return the settings of a client that are its login, with its secrets. Never log or keep them."""
    mechanism = endpoint.options.get("sasl.mechanism") or endpoint.options.get("sasl.mechanisms") or ""
    names = OAUTH_LOGIN if mechanism.upper() == OAUTHBEARER else ("sasl.username", "sasl.password")
    login = dict(zip(names, (endpoint.user, endpoint.password), strict=True))
    return {**endpoint.secrets, **{setting: value for setting, value in login.items() if value}}


def _check_files(endpoint: Endpoint) -> None:
    """Raise :class:`InvalidDeclaration` where a client with a login by OAuth could not load its keys and certificates.

    librdkafka (2.16.0) ends the whole process then. Without that login it returns the error, so it is asked first.
    """
    if OIDC in endpoint.options and (error := _load_files(endpoint)) is not None:
        raise _unfit(error, endpoint) from strip_frames(error)


def _load_files(endpoint: Endpoint) -> Any:
    """Return the error of a client that has no login and never connects; ``None`` where it takes the settings."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    by_tls = "SSL" in endpoint.options.get("security.protocol", "").upper()
    given = {**endpoint.options, **endpoint.secrets, "security.protocol": "ssl" if by_tls else "plaintext"}
    settings = {name: value for name, value in given.items() if not name.startswith(("sasl.", "https."))}
    try:
        AdminClient({**_QUIET, **settings})
    except KafkaException as error:
        return error
    return None


def _trust(endpoint: Endpoint) -> dict[str, str]:
    """Return the authorities that this host trusts, for a token endpoint without its own.

    librdkafka's packages (2.16.0) look for them only where Red Hat has them, and fetch no token on Debian.
    """
    if OIDC not in endpoint.options or any(name in endpoint.options for name in HTTPS_CA):
        return {}
    named = ssl.get_default_verify_paths().cafile
    found = [each for each in (named, *_AUTHORITIES) if each and Path(each).is_file()]
    return {HTTPS_CA[0]: found[0]} if found else {}


def _settings(endpoint: Endpoint, name: str, heard: Heard) -> dict[str, Any]:
    return {
        **_QUIET,
        **_trust(endpoint),
        **endpoint.options,
        **login_settings(endpoint),
        "bootstrap.servers": endpoint.host,
        "client.id": name,
        "error_cb": heard.hear,
    }


def _library(endpoint: Endpoint) -> Any:
    try:
        import confluent_kafka
    except ImportError as error:
        raise InvalidDeclaration(
            f"The connection {endpoint.conn_id} is one to Kafka, and the package confluent-kafka is missing: "
            "install airflow-provider-backpressure[kafka]."
        ) from error
    return confluent_kafka


def _unfit(error: Any, endpoint: Endpoint) -> InvalidDeclaration:
    """Return the error of settings that the client does not take: the names of settings, and never a value."""
    said, _, rest = error.args[0].str().partition(":")
    named = sorted(set(_SETTING.findall(rest)))
    which = f" ({', '.join(named)})" if named else ""
    return InvalidDeclaration(f"The settings of {where(endpoint)} are none that a client takes: {said}{which}.")
