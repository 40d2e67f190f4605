"""Kafka's errors as one plain sentence, without secrets: refused for good, or unavailable for now."""

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.exceptions import SourceRefused, SourceUnavailable

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

_LOGIN = frozenset({"_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "_SSL"})
_ALERT = "SSL alert number"
"""Of a broker that does not like the client's certificate; to the client that is just another broken connection."""
_ACQUIRING = "Failed to acquire SASL OAUTHBEARER token: "
"""Of a login by OAuth, before the words of the token endpoint, or of the library that asked it."""
_NO_ANSWER = (
    *("Failed to connect ", "Could not connect ", "Couldn't connect ", "Could not resolve ", "Couldn't resolve "),
    *("Connection ", "Operation timed out", "Resolving timed out", "SSL connection timeout", "Timeout was reached"),
    *("Empty reply from server", "Recv failure", "Send failure", "Failed sending data", "Failure when receiving"),
    *("transfer closed", "OpenSSL SSL_connect: SSL_ERROR_SYSCALL", "OpenSSL SSL_read: SSL_ERROR_SYSCALL"),
)
"""What that library (libcurl) says where the token endpoint is not reached: librdkafka asks again in ten seconds."""
_REFUSED = frozenset(
    {
        "TOPIC_AUTHORIZATION_FAILED",
        "CLUSTER_AUTHORIZATION_FAILED",
        "GROUP_AUTHORIZATION_FAILED",
        "UNKNOWN_TOPIC_OR_PART",
        "_UNKNOWN_TOPIC",
        "_UNKNOWN_PARTITION",
        "TOPIC_EXCEPTION",
        "_INVALID_ARG",
        "_BAD_MSG",
        "UNSUPPORTED_VERSION",
        "_UNSUPPORTED_FEATURE",
    }
)
_NOISE = re.compile(r"\s*\((after|\d+ identical)[^)]*\)\s*$")
_PLACE = re.compile(r"^\w+://[^ ]+/(bootstrap|\d+): ")


@dataclass(frozen=True)
class Failure:
    """An error of no client library, or of another one, asked as one of confluent-kafka is."""

    code: str
    text: str

    def name(self) -> str:
        return self.code

    def str(self) -> str:
        return self.text


@dataclass(kw_only=True)
class Heard:
    """What a client said on its own while it was asked something: most often why no answer came."""

    login: "KafkaError | None" = None
    """The login was refused; the client would try it again for ever."""
    last: "KafkaError | None" = field(default=None)

    def hear(self, error: "KafkaError") -> None:
        """Keep an error; those that say why go before those that say that nobody is left."""
        if _is_login(error):
            self.login = error
        elif error.name() != "_ALL_BROKERS_DOWN" or self.last is None:
            self.last = error


def translate_error(
    error: "KafkaError | Failure", endpoint: Endpoint, *, heard: Heard | None = None, about: str = ""
) -> SourceRefused | SourceUnavailable:
    """Return our error for Kafka's. ``about``: what was asked for, as ``topic orders``."""
    if heard is not None and heard.login is not None:
        error = heard.login
    elif heard is not None and heard.last is not None and error.name() in ("_TRANSPORT", "_TIMED_OUT"):
        error = heard.last
    of, said = f" ({about})" if about else "", without_secrets(words(error), endpoint)
    if _is_login(error):
        return SourceRefused(f"Kafka at {where(endpoint)} does not let {endpoint.user or 'us'} in: {said}.")
    if error.name() in ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC"):
        return SourceRefused(
            f"Kafka at {where(endpoint)} has no {about or 'such topic'}, or {_user(endpoint)} sees none."
        )
    if error.name() in _REFUSED:
        return SourceRefused(f"Kafka at {where(endpoint)} refused{of}: {said}.")
    return SourceUnavailable(f"Kafka at {where(endpoint)} does not answer{of}: {said}.")


def _is_login(error: "KafkaError | Failure") -> bool:
    """Whether a login was refused. A token endpoint that is not reached refuses nothing, and a token may be left."""
    if _ALERT in error.str():
        return True
    _, acquiring, said = error.str().partition(_ACQUIRING)
    return error.name() in _LOGIN and not (acquiring and said.startswith(_NO_ANSWER))


def where(endpoint: Endpoint) -> str:
    """Return the place for a sentence."""
    return f"{endpoint.host} (connection {endpoint.conn_id})"


def words(error: "KafkaError | Failure") -> str:
    """Return what the client says, as part of one sentence."""
    text = _PLACE.sub("", " ".join(error.str().split()))
    while (shorter := _NOISE.sub("", text)) != text:
        text = shorter
    return text.removesuffix(".") or str(error.name())


def without_secrets(text: str, endpoint: Endpoint) -> str:
    """Return a text without the secrets of an endpoint: an answer of a token's server may repeat what it was sent."""
    for secret in filter(None, (endpoint.password, *endpoint.secrets.values())):
        text = text.replace(secret, "***")
    return text


def loss(topic: str, partition: int, start: int, end: int) -> str:
    """Return the sentence that names offsets that the log no longer holds."""
    return f"Offsets [{start}, {end}) of partition {partition} of topic {topic} are gone: the log begins later now."


def shortfall(topic: str, partition: int, end: int, offset: int) -> str:
    """Return the sentence about a log that ends before an offset at which reading is to begin or ended."""
    return (
        f"Partition {partition} of topic {topic} ends at offset {end}, before offset {offset}: the log was cut off or "
        "restored, or never came so far."
    )


def _user(endpoint: Endpoint) -> str:
    return endpoint.user or "this connection"
