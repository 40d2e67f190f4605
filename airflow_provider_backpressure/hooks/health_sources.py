"""What a budget watches, opened: of the hydration's own source and sink, and of any other connection."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.health_signals import Query, Watched
from airflow_provider_backpressure.core.ports import Health, Sink, Source, Unread
from airflow_provider_backpressure.exceptions import InvalidDeclaration, SourceRefused, SourceUnavailable
from airflow_provider_backpressure.hooks.endpoints import BUILDERS
from airflow_provider_backpressure.hooks.endpoints.connection import connection


def _postgres(endpoint: Endpoint, watched: Sequence[Watched], seconds: float) -> Health:
    from airflow_provider_backpressure.connectors.postgres.errors import Errors
    from airflow_provider_backpressure.connectors.postgres.health import PostgresHealth

    errors = Errors(refused=SourceRefused, unavailable=SourceUnavailable)
    return PostgresHealth(endpoint, watched, errors=errors, seconds=seconds)


def _mysql(endpoint: Endpoint, watched: Sequence[Watched], seconds: float) -> Health:
    if find_spec("pymysql") is None:
        raise InvalidDeclaration(
            f"Queries on connection {endpoint.conn_id} need the Python package pymysql: "
            "`pip install 'airflow-provider-backpressure[mysql]'`."
        )
    from airflow_provider_backpressure.connectors.mysql.errors import Errors
    from airflow_provider_backpressure.connectors.mysql.health import MySQLHealth

    errors = Errors(refused=SourceRefused, unavailable=SourceUnavailable)
    return MySQLHealth(endpoint, watched, errors=errors, seconds=seconds)


DATABASES: dict[str, Callable[[Endpoint, Sequence[Watched], float], Health]] = {"mysql": _mysql, "postgres": _postgres}
"""What looks at a database that is neither source nor sink, by the type of its connection."""


@dataclass(frozen=True, kw_only=True)
class Places:
    """Opens what looks at each place that a budget names."""

    source: Callable[[], Source]
    sink: Callable[[], Sink]
    unread: Callable[[], Unread | None] = lambda: None
    """How far the source's log has been committed, where there is a plan."""

    def open(self, watched: Sequence[Watched], seconds: float) -> Health:
        """Return what looks at signals of one place; terminal errors name what cannot be watched."""
        first = watched[0]
        if isinstance(first, Query) and first.conn_id is not None:
            return open_database(first.conn_id, watched, seconds)
        if first.on == "sink":
            return self.sink().health(watched, seconds=seconds)
        return self.source().health(watched, seconds=seconds, unread=self.unread())


def open_database(conn_id: str, watched: Sequence[Watched], seconds: float) -> Health:
    """Return what looks at a database by its Airflow connection."""
    found = connection(conn_id, *DATABASES)
    kind = str(found.conn_type)
    return DATABASES[kind](BUILDERS[kind](found, found.extra_dejson), watched, seconds)
