"""The channel of a ledger: which one it has, and the one end of it that all of a process share."""

import os
import threading
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow.sdk import Connection

from airflow_provider_backpressure import settings
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.ports import Channel, Receiver
from airflow_provider_backpressure.core.push.channel_counters import PushCounts
from airflow_provider_backpressure.core.push.hub import Push
from airflow_provider_backpressure.exceptions import InvalidDeclaration
from airflow_provider_backpressure.hooks import kafka_connection as kafka
from airflow_provider_backpressure.hooks.database_connections import OPTIONS, from_connection

if TYPE_CHECKING:
    from sqlalchemy import URL

AUTO, NONE, LOCAL, POSTGRES, KAFKA = "auto", "none", "local", "postgres", "kafka"
TRANSPORTS = (AUTO, NONE, LOCAL, POSTGRES, KAFKA)
"""``auto``: PostgreSQL's where the ledger is there, otherwise none."""
EXTRAS = ("push", "push_conn_id", "push_topic")
"""Extras of the ledger's connection that are about push."""
TOPIC = "backpressure-push"

Open = Callable[[Receiver, PushCounts], Channel]


@dataclass(frozen=True, kw_only=True)
class Transport:
    """How changes of one ledger's gates travel."""

    kind: str
    ledger: Hashable
    """Identifies the ledger."""
    place: Endpoint | None = None
    """The ledger's PostgreSQL."""
    conn_id: str = ""
    """Airflow connection of the broker."""
    topic: str = TOPIC


def transport(found: Connection, extra: Mapping[str, Any]) -> Transport:
    """Return the transport of a ledger's connection: its extra ``push``, or Airflow's ``[backpressure] push``."""
    kind = extra.get("push") or settings.push()
    if kind not in TRANSPORTS:
        raise InvalidDeclaration(
            f"The push of connection {found.conn_id!r} must be one of {', '.join(TRANSPORTS)}, not {kind!r}."
        )
    on_postgres = not extra.get("path") and extra.get("dialect") in (None, "", "postgresql")
    if kind == POSTGRES and not on_postgres:
        raise InvalidDeclaration(
            f"The ledger of connection {found.conn_id!r} is not on PostgreSQL: its push can be local, kafka or none."
        )
    if kind == AUTO:
        kind = POSTGRES if on_postgres else NONE
    if kind == KAFKA and not extra.get("push_conn_id"):
        raise InvalidDeclaration(f"The connection {found.conn_id!r} names no push_conn_id: the Kafka of its push.")
    ledger = (found.host, found.port, found.schema, extra.get("path"))
    place = from_connection(found, libpq(extra)) if kind == POSTGRES else None
    conn_id, topic = str(extra.get("push_conn_id") or ""), str(extra.get("push_topic") or TOPIC)
    return Transport(kind=kind, ledger=ledger, place=place, conn_id=conn_id, topic=topic)


def push_at(address: "URL") -> Push | None:
    """Return the end of the channel of a ledger that no connection names, by its address: PostgreSQL's, or none."""
    if settings.push() not in (AUTO, POSTGRES) or address.get_backend_name() != "postgresql" or not address.host:
        return None
    place = Endpoint(
        conn_id="",
        host=address.host,
        port=address.port or 5432,
        database=address.database or "",
        user=address.username or "",
        password=str(address.password or ""),
        options={name: str(value) for name, value in address.query.items() if name in OPTIONS},
    )
    ledger = (place.host, place.port, place.database, None)
    return push_over(Transport(kind=POSTGRES, ledger=ledger, place=place), None)


def libpq(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return the extras of a ledger's connection that any database's connection may have."""
    return {name: value for name, value in extra.items() if name not in ("path", "dialect", *EXTRAS)}


def push_over(chosen: Transport, broker: Connection | None) -> Push | None:
    """Return the process's end of a channel; ``None`` where nothing is pushed. ``broker``: of Kafka's transport."""
    if chosen.kind == NONE:
        return None
    endpoint = kafka.from_kafka(broker, broker.extra_dejson) if broker is not None else chosen.place

    def make() -> Push:
        return Push(_choose_open(chosen, endpoint), transport=chosen.kind, paces=settings.paces())

    return _ends.get((chosen, endpoint), make)


def _choose_open(chosen: Transport, endpoint: Endpoint | None) -> Open:
    if chosen.kind == LOCAL:
        from airflow_provider_backpressure.channels.in_process import LocalChannel

        # Other tasks are other processes, of which nothing is heard.
        return lambda receiver, counts: LocalChannel(receiver, counts, alone=False)
    assert endpoint is not None
    if chosen.kind == KAFKA:
        from airflow_provider_backpressure.channels.kafka import KafkaChannel

        return lambda receiver, counts: KafkaChannel(receiver, counts, endpoint=endpoint, topic=chosen.topic)
    from airflow_provider_backpressure.channels.postgres import PostgresChannel

    return lambda receiver, counts: PostgresChannel(receiver, counts, endpoint=endpoint)


class _Ends:
    """The ends of this process, by their channel. A fork begins with none: threads and connections are the parent's."""

    def __init__(self) -> None:
        self.forget()
        os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        """Have none."""
        self._lock = threading.Lock()
        self._known: list[tuple[object, Push]] = []

    def get(self, key: object, make: Callable[[], Push]) -> Push:
        """Return the one for a channel, made where it is missing."""
        with self._lock:
            found = next((push for known, push in self._known if known == key), None)
            if found is None:
                found = make()
                self._known.append((key, found))
            return found


_ends = _Ends()
