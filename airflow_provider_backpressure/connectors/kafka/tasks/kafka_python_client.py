"""A client of Kafka by kafka-python, for executors without confluent-kafka: it is pure Python and travels with a job.

It has as much of confluent-kafka's consumer as reading a slice needs, and the same settings.
"""

import base64
import logging
import re
import ssl
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from airflow_provider_backpressure.connectors.kafka.cluster_metadata import (
    PROPAGATION,
    is_known,
    is_same,
    topic_replaced_error,
)
from airflow_provider_backpressure.connectors.kafka.connect import OAUTH_LOGIN, OAUTHBEARER, login_settings
from airflow_provider_backpressure.connectors.kafka.errors import Failure, Heard, translate_error, where
from airflow_provider_backpressure.connectors.kafka.headers import UNREADABLE, Headers
from airflow_provider_backpressure.connectors.kafka.tasks.header_names import OddName, accept_odd_names
from airflow_provider_backpressure.connectors.kafka.tasks.oauth import METHOD, SCOPE, TOKEN_CA, TOKENS, token_provider
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.poll_policy import PollPolicy, SystemClock
from airflow_provider_backpressure.exceptions import InvalidDeclaration, strip_frames

_SETTINGS = {
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "sasl.kerberos.service.name": "sasl_kerberos_service_name",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
    "ssl.crl.location": "ssl_crlfile",
    "ssl.cipher.suites": "ssl_ciphers",
}
"""Settings of a connection, and what kafka-python calls them."""
_OAUTH = (*OAUTH_LOGIN, METHOD, TOKENS, SCOPE, TOKEN_CA)
"""Settings that :mod:`.oauth` acts on."""
_HOST_CHECK = "ssl.endpoint.identification.algorithm"
_OF_SECURITY = re.compile(r"(ssl|sasl|security|https|enable\.ssl|enable\.sasl)\..*|oauth.*")
"""Settings that must not be passed over. The others are about speed."""
_READING = {
    "group_id": None,
    "enable_auto_commit": False,
    "isolation_level": "read_committed",
    "auto_offset_reset": "none",
    "allow_auto_create_topics": False,
    # As confluent-kafka has it. Here it would be computed in Python, byte by byte.
    "check_crcs": False,
    "metrics_enabled": False,
    "fetch_max_wait_ms": 100,
    "fetch_max_bytes": 16 * 2**20,
    "max_partition_fetch_bytes": 2 * 2**20,
}
_STANDARD = str.maketrans("-_", "+/")
SECONDS = 20.0
"""Longest wait for a broker that answers."""
_NAMES = {
    "KafkaConfigurationError": "_INVALID_ARG",
    "UnsupportedCodecError": "_UNSUPPORTED_FEATURE",
    "UnknownTopicOrPartitionError": "UNKNOWN_TOPIC_OR_PART",
    "TopicAuthorizationFailedError": "TOPIC_AUTHORIZATION_FAILED",
    "ClusterAuthorizationFailedError": "CLUSTER_AUTHORIZATION_FAILED",
    "SaslAuthenticationFailedError": "SASL_AUTHENTICATION_FAILED",
    "UnsupportedSaslMechanismError": "_AUTHENTICATION",
    "UnsupportedVersionError": "UNSUPPORTED_VERSION",
}
"""Names that confluent-kafka has for errors of kafka-python; all others pass by themselves."""

_LATE = frozenset({"KafkaTimeoutError", "RequestTimedOutError"})
_KINDS = re.compile(r"^(\[Error \d+\] )?(\w+Error: )*")
"""What its texts begin with."""
_LOGGER = logging.getLogger("kafka")
# What the client says ends in an error's sentence. At the level DEBUG it shows its settings.
_LOGGER.setLevel(logging.WARNING)
_LOGGER.propagate = False


class _Causes(logging.Handler):
    """Keeps why no connection came about: the client only logs it, and raises that it was too late."""

    cause: Exception | None = None

    def emit(self, record: logging.LogRecord) -> None:
        given = record.args if isinstance(record.args, tuple) else ()
        for each in given:
            # A login that was refused goes before what came after it, as too little time for another try.
            if isinstance(each, Exception) and type(each).__name__ not in _LATE and not _is_login(self.cause):
                self.cause = each


def _is_login(error: Exception | None) -> bool:
    return error is not None and _NAMES.get(type(error).__name__) == "SASL_AUTHENTICATION_FAILED"


class TopicPartition(NamedTuple):
    """A place in a topic."""

    topic: str
    partition: int
    offset: int = -1


class Message(NamedTuple):
    """A record, or what the client says of a partition, asked as a message of confluent-kafka is."""

    record: Any
    failure: Failure | None = None
    end: TopicPartition | None = None

    def error(self) -> Failure | None:
        """Return what the client says, ``None`` for a record."""
        return self.failure

    def topic(self) -> str:
        return str((self.end or self.record).topic)

    def partition(self) -> int:
        return int((self.end or self.record).partition)

    def offset(self) -> int:
        return int((self.end or self.record).offset)

    def key(self) -> bytes | None:
        return None if self.record.key is None else bytes(self.record.key)

    def value(self) -> bytes | None:
        return None if self.record.value is None else bytes(self.record.value)

    def headers(self) -> Headers:
        found = self.record.headers
        return UNREADABLE if any(isinstance(name, OddName) for name, _ in found) else list(found) or None

    def timestamp(self) -> tuple[int, int]:
        """Return the kind, 0 where there is none, and milliseconds."""
        kind = self.record.timestamp_type
        return (0, -1) if kind is None else (kind + 1, self.record.timestamp)

    def __len__(self) -> int:
        """Return the bytes of the value."""
        return len(self.record.value or b"")


class Consumer:
    """Reads assigned partitions."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._at: dict[Any, int] = {}
        """Offset behind the last message of each partition."""

    def assign(self, places: Sequence[TopicPartition]) -> None:
        self._at = {}
        self.incremental_assign(places)

    def incremental_assign(self, places: Sequence[TopicPartition]) -> None:
        new = {self._name(place): place.offset for place in places}
        self._at |= new
        self._client.assign(list(self._at))
        for name, offset in new.items():
            self._client.seek(name, offset)

    def incremental_unassign(self, places: Sequence[TopicPartition]) -> None:
        for place in places:
            del self._at[self._name(place)]
        self._client.assign(list(self._at))

    def consume(self, most: int, seconds: float) -> list[Message]:
        """Return up to so many records. A partition whose position moved on without one is reported as its end."""
        from kafka.errors import OffsetOutOfRangeError

        try:
            found = self._client.poll(timeout_ms=int(seconds * 1000), max_records=most)
        except OffsetOutOfRangeError as error:
            gone = Failure("OFFSET_OUT_OF_RANGE", "the offset is gone")
            return [
                Message(None, gone, TopicPartition(name.topic, name.partition, at))
                for name, at in error.args[0].items()
            ]
        messages = [Message(record) for records in found.values() for record in records]
        self._at |= {name: records[-1].offset + 1 for name, records in found.items()}
        for name, at in self._at.items():
            position = self._client.position(name, timeout_ms=0)
            if position is not None and position > at:
                self._at[name] = position
                end = TopicPartition(name.topic, name.partition, position)
                messages.append(Message(None, Failure("_PARTITION_EOF", ""), end))
        return messages

    def get_watermark_offsets(self, place: TopicPartition, timeout: float, cached: bool) -> tuple[int, int]:
        name, millis = self._name(place), int(timeout * 1000)
        first = self._client.beginning_offsets([name], timeout_ms=millis)[name]
        return first, self._client.end_offsets([name], timeout_ms=millis)[name]

    def _name(self, place: TopicPartition) -> Any:
        from kafka import TopicPartition as Name

        return Name(place.topic, place.partition)


@contextmanager
def consumer(endpoint: Endpoint, name: str) -> Iterator[tuple[Consumer, Heard]]:
    """Give a client that reads, without a group and only what was committed."""
    from kafka import KafkaConsumer

    with _translate(endpoint):
        client = KafkaConsumer(**settings(endpoint, name), **_READING)
        accept_odd_names(client)
        try:
            yield Consumer(client), Heard()
        finally:
            client.close()


@contextmanager
def identity(endpoint: Endpoint, what: Mapping[str, Any], name: str) -> Iterator[Callable[[], None]]:
    """Give the check that the topic is the planned one; it checks nothing where the plan has no id of it."""
    from kafka import KafkaAdminClient

    topic, planned = what["topic"], what.get("topic_id", "")
    if not is_known(planned):
        yield lambda: None
        return
    with _translate(endpoint, f"topic {topic}"):
        client = KafkaAdminClient(**settings(endpoint, name))
        try:
            yield lambda: _check(client, topic, planned)
        finally:
            client.close()


def _check(client: Any, topic: str, planned: str) -> None:
    from kafka.errors import UnknownTopicOrPartitionError

    def found() -> str | None:
        (described,) = client.describe_topics([topic])
        return None if described["error_code"] else _to_text(described["topic_id"])

    now = PollPolicy().until(found, timeout=PROPAGATION, clock=SystemClock())
    if now is None:
        raise UnknownTopicOrPartitionError()
    if not is_same(planned.translate(_STANDARD), now):
        raise topic_replaced_error(topic)


def _to_text(topic_id: object) -> str:
    """Return an id as librdkafka has it, in base64; Java has two other characters."""
    return "" if topic_id is None else base64.b64encode(uuid.UUID(str(topic_id)).bytes).decode().rstrip("=")


def settings(endpoint: Endpoint, name: str) -> dict[str, Any]:
    """Return the settings of a client; ``InvalidDeclaration`` for one of security that kafka-python does not have."""
    mine = {*endpoint.options, *login_settings(endpoint)} - set(_OAUTH)
    others = sorted(name for name in mine if _OF_SECURITY.fullmatch(name) and name not in {*_SETTINGS, _HOST_CHECK})
    if others:
        raise InvalidDeclaration(
            f"The settings of {where(endpoint)} hold {', '.join(others)}, which kafka-python does not have: install "
            "confluent-kafka where Spark runs."
        )
    # Before the secrets are in a variable: frames of an error are shown by some logs.
    _check_key(endpoint)
    by_oauth = METHOD in endpoint.options
    by_token = (
        {"sasl_mechanism": OAUTHBEARER, "sasl_oauth_token_provider": token_provider(endpoint)} if by_oauth else {}
    )
    given = {**endpoint.options, **login_settings(endpoint)}
    found: dict[str, Any] = {_SETTINGS[setting]: value for setting, value in given.items() if setting in _SETTINGS}
    if _HOST_CHECK in given:
        found["ssl_check_hostname"] = str(given[_HOST_CHECK]).lower() == "https"
    if "ssl_keyfile" in found:
        # Without one, OpenSSL would ask a person for the password of a key that has one.
        found.setdefault("ssl_password", "")
    return {
        **found,
        **by_token,
        "bootstrap_servers": str(endpoint.host).split(","),
        "client_id": name,
        "bootstrap_timeout_ms": int(SECONDS * 1000),
        "request_timeout_ms": int(SECONDS * 1000),
    }


def _check_key(endpoint: Endpoint) -> None:
    """Raise where key and certificate cannot be loaded: the client would leave a socket open at each of many tries."""
    certificate, key = (endpoint.options.get(f"ssl.{each}.location") for each in ("certificate", "key"))
    if certificate is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(
            str(certificate),
            None if key is None else str(key),
            str(login_settings(endpoint).get("ssl.key.password", "")),
        )
    except OSError as error:
        text = f"ssl.certificate.location, ssl.key.location and ssl.key.password do not fit: {error}"
        raise translate_error(Failure("_SSL", text), endpoint) from strip_frames(error)


@contextmanager
def _translate(endpoint: Endpoint, about: str = "") -> Iterator[None]:
    from kafka.errors import KafkaError, KafkaTimeoutError

    causes = _Causes()
    _LOGGER.addHandler(causes)
    try:
        yield
    except KafkaError as error:
        cause = causes.cause if isinstance(error, KafkaTimeoutError) and causes.cause else error
        raise translate_error(_failure(cause, endpoint), endpoint, about=about) from strip_frames(error)
    finally:
        _LOGGER.removeHandler(causes)


def _failure(error: Exception, endpoint: Endpoint) -> Failure:
    kind, text = type(error).__name__, _KINDS.sub("", " ".join(str(error).split()))
    by_tls = "_SSL" if "SSL" in f"{kind} {text}" else "_TRANSPORT"
    if "disconnected" in text and "SASL" in str(endpoint.options.get("security.protocol")).upper():
        # The client may see the end of the connection before the broker's reason for it.
        text += ", as after a refused login"
    return Failure(_NAMES.get(kind, by_tls), text or kind)
