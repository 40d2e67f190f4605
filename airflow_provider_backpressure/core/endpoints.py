"""Where a database is reached. Made from an Airflow connection by the hooks; core and Spark never see Airflow."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


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
    """Further libpq parameters, each of a known name (``sslmode``, ``connect_timeout`` …)."""
    executor_host: str | None = None
    """Host by which executors reach the database, where it is another one than Airflow's."""
    executor_port: int | None = None

    @property
    def address(self) -> str:
        """``host:port/database``, fit for an identity or an error sentence."""
        return f"{self.host}:{self.port}/{self.database}"

    def for_executors(self) -> "Endpoint":
        """Return the endpoint as executors see it."""
        return replace(self, host=self.executor_host or self.host, port=self.executor_port or self.port)
