"""Questions to a cluster, each answered within seconds or by a sentence that says why not."""

from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TooLate
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_backpressure.connectors.kafka.connect import CONTROL, admin
from airflow_provider_backpressure.connectors.kafka.errors import Heard, translate_error
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.poll_policy import PollPolicy, SystemClock
from airflow_provider_backpressure.exceptions import RESTART, SourceRefused

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

SECONDS = 10.0
"""Longest wait for an answer."""
LOOK = 0.1
"""Seconds between two looks at what the client heard meanwhile."""


@dataclass(frozen=True, kw_only=True)
class Questions:
    """An open client. Errors: ``SourceRefused``, ``SourceUnavailable``."""

    client: "AdminClient"
    heard: Heard
    endpoint: Endpoint
    about: str = ""
    """What is asked about, for a sentence: ``topic orders``."""
    seconds: float = SECONDS
    """Longest wait for an answer."""

    def answer(self, asked: "Future[Any]") -> Any:
        """Return the answer, or raise why there is none.

        A refused login is raised only by an explicit check: the client would retry for ever.
        """
        from confluent_kafka import KafkaError, KafkaException

        for _ in range(int(self.seconds / LOOK)):
            try:
                return asked.result(timeout=LOOK)
            except TooLate:
                self.client.poll(0)
                if self.heard.login is not None:
                    raise self._error(self.heard.login) from None
            except KafkaException as error:
                self.client.poll(0)
                raise self._error(error.args[0]) from error
        raise self._error(KafkaError(KafkaError._TIMED_OUT))

    def _error(self, error: Any) -> Exception:
        return translate_error(error, self.endpoint, heard=self.heard, about=self.about)


@contextmanager
def open_client(
    endpoint: Endpoint, about: str = "", *, name: str = CONTROL, seconds: float = SECONDS
) -> Iterator[Questions]:
    """Give a client for questions. ``name``: its ``client.id``."""
    with admin(endpoint, name) as (client, heard):
        yield Questions(client=client, heard=heard, endpoint=endpoint, about=about, seconds=seconds)


def describe_cluster(endpoint: Endpoint) -> str:
    """Return what a cluster says of itself, as part of a sentence."""
    with open_client(endpoint) as questions:
        found = questions.answer(questions.client.describe_cluster(request_timeout=SECONDS))
    return f"cluster {found.cluster_id}, {len(found.nodes)} broker{'s' * (len(found.nodes) != 1)}"


PROPAGATION = 5.0
"""Longest wait in seconds until a broker knows a topic that was just created."""
_UNKNOWN = frozenset({"", "None", "A" * 22})
"""Ids of topics whose brokers have none: Kafka before 2.8, and those that imitate it."""
_MISSING = frozenset({"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC"})


def is_same(planned: str, found: str) -> bool:
    """Whether both ids are of one topic, as far as the brokers have ids."""
    return planned == found or bool({planned, found} & _UNKNOWN)


def is_known(topic_id: str) -> bool:
    """Whether this is the id of a topic."""
    return topic_id not in _UNKNOWN


def topic_replaced_error(topic: str) -> SourceRefused:
    """Return the error for a topic that was deleted and created again in the middle of its hydration."""
    return SourceRefused(
        f"Topic {topic} is not the topic that was planned: it was deleted and created again. The ranges that are "
        f"committed stay in the target; {RESTART}."
    )


def check(questions: Questions, topic: str, planned: str) -> None:
    """Raise ``SourceRefused`` where the topic of this name is another one than planned, or is gone."""

    from confluent_kafka import KafkaException

    def found() -> str | None:
        try:
            return _topic_id(questions, topic)
        except SourceRefused as error:
            cause = error.__cause__
            if isinstance(cause, KafkaException) and cause.args[0].name() in _MISSING:
                return None
            raise

    now = PollPolicy().until(found, timeout=PROPAGATION, clock=SystemClock()) or _topic_id(questions, topic)
    if not is_same(planned, now):
        raise topic_replaced_error(topic)


def _topic_id(questions: Questions, topic: str) -> str:
    from confluent_kafka import TopicCollection

    asked = questions.client.describe_topics(TopicCollection([topic]), request_timeout=questions.seconds)
    return str(questions.answer(asked[topic]).topic_id)
