"""The id of a topic: it differs from that of a later topic of the same name, created after a deletion."""

from airflow_provider_backpressure.connectors.kafka.metadata import Questions
from airflow_provider_backpressure.core.clock import PollPolicy, SystemClock
from airflow_provider_backpressure.core.remedies import RESTART
from airflow_provider_backpressure.exceptions import SourceRefused

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
