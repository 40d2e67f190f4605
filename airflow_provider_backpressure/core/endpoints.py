"""Where a database is reached. Made from an Airflow connection by the hooks; core and Spark never see Airflow."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Protocol

from airflow_provider_backpressure.exceptions import InvalidDeclaration

REGION, S3_ADDRESS = "region_name", "endpoint_url"
"""Options of an endpoint that leads to a bucket."""
CATALOG = "catalog_uri"
"""Option with the address of a REST catalog."""


class SessionServer(Protocol):
    """A Spark session that is served on this host for as long as somebody uses it. May be shared by threads."""

    def find_address(self) -> str:
        """Return its whole address, token included; it is started where none runs.

        Raises ``RunnerUnavailable``, or ``RunnerRefused`` where it cannot be started so.
        """
        ...

    def close(self) -> None:
        """Use it no longer; the last user's call ends it. Idempotent."""
        ...


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Address and login of one database. Secrets stay out of ``repr`` and are never part of a message's JSON."""

    conn_id: str
    host: str
    port: int
    database: str
    user: str
    password: str = field(default="", repr=False)
    options: Mapping[str, str] = field(default_factory=dict)
    """Further settings of the client, each of a known name (``sslmode``, ``connect_timeout`` …)."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Further settings whose values are secrets, as ``ssl.key.password`` of Kafka. They travel as the password does."""
    executor_host: str | None = None
    """Host by which executors reach the database, where it is another one than Airflow's."""
    executor_port: int | None = None
    related: Mapping[str, "Endpoint"] = field(default_factory=dict, repr=False)
    """Further places that the planning side needs, by connection id. They never travel to executors."""
    serve: Callable[[], SessionServer] | None = field(default=None, repr=False, compare=False)
    """Of a cluster that has no server for questions: starts using one of this host. It never leaves this process."""

    @property
    def address(self) -> str:
        """``host:port/database``, fit for an identity or an error sentence."""
        return f"{self.host}:{self.port}/{self.database}"

    def for_executors(self) -> "Endpoint":
        """Return the endpoint as executors see it."""
        host, port = self.executor_host or self.host, self.executor_port or self.port
        return replace(self, host=host, port=port, related={}, serve=None)


class DeclaredTable(Protocol):
    """A source or sink as a DAG declares it."""

    @property
    def conn_id(self) -> str:
        """Airflow connection; empty where it needs none."""
        ...

    @property
    def conn_types(self) -> tuple[str, ...]:
        """Types that the connection may be of."""
        ...

    @property
    def table(self) -> str:
        """What is read or written, by its name."""
        ...


NOWHERE = Endpoint(conn_id="", host="", port=0, database="", user="")
"""Of a source or sink that needs no connection: files that executors reach by themselves."""


def endpoint_of(endpoints: Mapping[str, Endpoint], conn_id: str) -> Endpoint:
    """Return the endpoint of a connection; an empty id leads nowhere."""
    return endpoints[conn_id] if conn_id else NOWHERE


def endpoints_to_json(endpoints: Mapping[str, Endpoint]) -> str:
    """Return endpoints by connection id, **with their passwords**: for a file that only its owner can read."""
    sent = {conn_id: replace(each, related={}, serve=None) for conn_id, each in endpoints.items()}
    return json.dumps({conn_id: asdict(each) for conn_id, each in sent.items()})


def endpoints_from_json(text: str) -> dict[str, Endpoint]:
    """Read :func:`endpoints_to_json`; :class:`InvalidDeclaration`, quoting nothing of it, where it is something else.

    An entry needs ``host``, ``port``, ``database`` and ``user``; its id may be left to the key.
    """
    try:
        return {conn_id: Endpoint(**{"conn_id": conn_id, **value}) for conn_id, value in json.loads(text).items()}
    except (TypeError, ValueError, AttributeError):
        raise InvalidDeclaration(
            "The file of logins is not an object of endpoints by connection id, each with host, port, database, user "
            "and password."
        ) from None
