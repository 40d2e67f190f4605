"""One suite over every transport: in the process, PostgreSQL, Kafka."""

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from airflow_provider_backpressure.channels.in_process import Exchange, LocalChannel
from airflow_provider_backpressure.channels.kafka import KafkaChannel
from airflow_provider_backpressure.channels.postgres import PostgresChannel, name_of
from airflow_provider_backpressure.core.push.channel_counters import PushCounts
from tests.conformance.channels.support import Ends, Open, Recorder
from tests.support.kafka import endpoint_of as broker
from tests.support.postgres import run

TRANSPORTS = ["local", *(pytest.param(name, marks=pytest.mark.integration) for name in ("postgres", "kafka"))]

Way = tuple[str, Open, Callable[[str, bytes], None]]


@pytest.fixture(params=TRANSPORTS)
def way(request: pytest.FixtureRequest) -> Way:
    """How to open an end of a channel of its own, and how to put anything on it."""
    if request.param == "local":
        exchange = Exchange()

        def hand(hydration_id: str, frame: bytes) -> None:
            for receiver in exchange.subscribers(hydration_id):
                receiver.heard(frame)

        return "local", lambda receiver, counts: LocalChannel(receiver, counts, exchange=exchange), hand
    if request.param == "postgres":
        place = request.getfixturevalue("database")

        def notify(hydration_id: str, frame: bytes) -> None:
            text = frame.decode("latin-1").replace("'", "''")
            run(place, f"SELECT pg_notify('{name_of(hydration_id)}', '{text}')")

        return "postgres", lambda receiver, counts: PostgresChannel(receiver, counts, endpoint=place), notify
    server, topic = request.getfixturevalue("kafka"), f"push-{uuid.uuid4().hex[:8]}"

    def produce(hydration_id: str, frame: bytes) -> None:
        client = Producer({"bootstrap.servers": server.url})
        client.produce(topic, key=hydration_id.encode(), value=frame)
        assert client.flush(10) == 0

    endpoint = broker(server)
    return "kafka", lambda receiver, counts: KafkaChannel(receiver, counts, endpoint=endpoint, topic=topic), produce


@pytest.fixture
def ends(way: Way) -> Iterator[Ends]:
    """Two ends."""
    transport, opened, inject = way
    heard, counts = Recorder(), PushCounts()
    here, there = opened(heard, counts), opened(Recorder(), PushCounts())
    yield Ends(here=here, there=there, heard=heard, counts=counts, transport=transport, inject=inject)
    here.close()
    there.close()


@pytest.fixture
def opened(way: Way) -> Iterator[Callable[[Any], Any]]:
    """Opens ends for any receiver, and closes them."""
    made: list[Any] = []

    def open_end(receiver: Any, counts: PushCounts | None = None) -> Any:
        made.append(way[1](receiver, counts or PushCounts()))
        return made[-1]

    yield open_end
    for each in made:
        each.close()
