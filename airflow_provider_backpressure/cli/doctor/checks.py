"""What ``doctor`` looks at behind a connection, by the connection's type."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.messages import ChecksumSpec, Column, ReadSpec
from airflow_provider_backpressure.exceptions import SourceRefused, SourceUnavailable

Look = Callable[[Endpoint], Iterator[str]]
"""Yields what it found well; raises at the first problem."""


def postgres(place: Endpoint) -> Iterator[str]:
    """Check that the server accepts the login, and that no pooler shares its sessions."""
    from airflow_provider_backpressure.connectors.postgres.connect import CONTROL, connect
    from airflow_provider_backpressure.connectors.postgres.errors import Errors

    errors = Errors(refused=SourceRefused, unavailable=SourceUnavailable)
    with (
        connect(place, errors=errors, application_name=CONTROL) as first,
        connect(place, errors=errors, application_name=CONTROL) as second,
        errors.translate_errors(place),
    ):
        version = first.execute("SHOW server_version").fetchone()
        yield f"PostgreSQL {version[0] if version else ''} answers {place.user} at {place.address}."
        before = first.execute("SELECT pg_backend_pid()").fetchone()
        with second.transaction():
            after = second.execute("SELECT pg_backend_pid()").fetchone()
        if before == after:
            raise SourceRefused(
                f"{place.address} is a pooler in transaction mode, where sessions are not one's own: connect to the "
                "server itself, or to a pool in session mode."
            )
    yield "Each connection is a session of its own."


def postgres_slots(place: Endpoint, known: Collection[str]) -> Iterator[str]:
    """Check that each of our slots, which keep the server's log, belongs to a hydration that follows it."""
    from airflow_provider_backpressure.connectors.postgres.errors import Errors
    from airflow_provider_backpressure.connectors.postgres.replication_slots import PREFIX, slots_of_ours
    from airflow_provider_backpressure.connectors.postgres.shared_connection import Session
    from airflow_provider_backpressure.core.health_signals import size

    with closing(Session(place, errors=Errors(refused=SourceRefused, unavailable=SourceUnavailable))) as session:
        slots = slots_of_ours(session)
    orphans = [slot for slot in slots if slot.name.removeprefix(PREFIX) not in known]
    for slot in slots:
        if slot not in orphans:
            yield f"The slot {slot.name} keeps {size(slot.held_bytes)} of log for its hydration."
    if orphans:
        listed = ", ".join(f"{slot.name} ({size(slot.held_bytes)} of log)" for slot in orphans)
        raise SourceRefused(
            f"Slots keep log that no plan of this ledger follows: {listed}. Where no other Airflow has them, and "
            "nothing is being planned just now: "
            f"SELECT pg_drop_replication_slot('{orphans[0].name}'); DROP PUBLICATION IF EXISTS {orphans[0].name};"
        )


def kafka(place: Endpoint) -> Iterator[str]:
    """A broker that lets us in."""
    from airflow_provider_backpressure.connectors.kafka.connect import library_version
    from airflow_provider_backpressure.connectors.kafka.metadata import describe_cluster

    found = describe_cluster(place)
    yield f"Kafka answers {place.user or 'without a login'} at {place.host}: {found}."
    yield f"The client is librdkafka {library_version(place)}."


def mysql(place: Endpoint) -> Iterator[str]:
    """A server of a version that can be read from, and whether what it says is encrypted."""
    from airflow_provider_backpressure.connectors.mysql.connect import CONTROL, connect, is_mariadb, version
    from airflow_provider_backpressure.connectors.mysql.errors import Errors

    errors = Errors(refused=SourceRefused, unavailable=SourceUnavailable)
    with connect(place, errors=errors, name=CONTROL) as connection, errors.translate_errors(place):
        product = "MariaDB" if is_mariadb(connection) else "MySQL"
        number = ".".join(str(part) for part in version(connection))
        yield f"{product} {number} answers {place.user} at {place.host}:{place.port}."
        with connection.cursor() as cursor:
            cursor.execute("SHOW SESSION STATUS LIKE 'Ssl_cipher'")
            row = cursor.fetchone()
    yield f"The connection is encrypted ({row[1]})." if row and row[1] else "The connection is not encrypted."


CHECKS: Mapping[str, Look] = {"kafka": kafka, "mysql": mysql, "postgres": postgres}
"""How to look at a connection from here, by its type."""

SLOTS: Mapping[str, Callable[[Endpoint, Collection[str]], Iterator[str]]] = {"postgres": postgres_slots}
"""What looks for slots that keep a server's log, by its type; it is given the ids of the hydrations that are known."""

REACHES: Mapping[str, Callable[[str], ChecksumSpec]] = {
    "mysql": lambda conn_id: ChecksumSpec(
        kind="mysql",
        conn_id=conn_id,
        query="SELECT '1\\n'",
        read=ReadSpec(kind="mysql", conn_id=conn_id, columns=(Column(name="one", type="integer"),)),
    ),
    "postgres": lambda conn_id: ChecksumSpec(kind="postgres", conn_id=conn_id, query="SELECT 1 AS one"),
}
"""What a task on the executors is asked, to see that they reach it; a topic's broker is first asked by a range."""
