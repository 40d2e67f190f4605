"""The declaration of a PostgreSQL table as a target. Knows no connection and imports no driver."""

from dataclasses import dataclass, fields
from typing import ClassVar

from airflow_provider_backpressure.core.config import Mode, check_quarantine, taken_key
from airflow_provider_backpressure.core.declaration_checks import Declared
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.ports.sink import Sink


@dataclass(frozen=True, kw_only=True)
class PostgresSink(Declared):
    """A table that rows go into; it is created where it is missing. Raises :class:`InvalidDeclaration`."""

    conn_types: ClassVar[tuple[str, ...]] = ("postgres",)
    """Types that the Airflow connection may be of."""

    templated: ClassVar[tuple[str, ...]] = ("conn_id", "table", "key", "system_schema")
    """Fields whose text may be a template. Not Airflow's own name for it: Airflow would assign to a frozen value."""

    modes: ClassVar[tuple[Mode, ...]] = tuple(Mode)
    """How rows may enter it."""

    in_sql: ClassVar[bool] = True
    """Whether its name is spelled as in SQL, with quotes where a part needs them."""

    takes_parts: ClassVar[bool] = True
    """Whether rows of a topic may enter it by parts of their keys."""

    conn_id: str
    table: str
    """``schema.table`` as in SQL: folded to lower case unless in double quotes; ``public`` where no schema is named."""
    key: tuple[str, ...] | None = None
    """Names of the columns that ``upsert`` goes by, exactly as the table has them; ``None`` for the source's key."""
    system_schema: str | None = None
    """Schema of the plan and marker tables, exactly as the catalogue has it; ``None`` for the target's own."""
    quarantine: int | None = None
    """Most rows of one plan that go into ``backpressure_quarantine`` where the target's types refuse them, with key and
    reason; ``None``: the first such row fails its range."""

    def __post_init__(self) -> None:
        """Take a list for a tuple, and refuse a lone name where several are meant."""
        object.__setattr__(self, "key", taken_key(self.key, "PostgresSink.key"))
        check_quarantine(self.quarantine, "PostgresSink.quarantine")

    def open(self, endpoint: Endpoint) -> Sink:
        """Return the sink at this endpoint; it connects at the first question. Names are checked here."""
        from airflow_provider_backpressure.connectors.postgres.sink.target import PostgresTarget

        return PostgresTarget(self, endpoint)

    def declare_stream(self, stream: str) -> "PostgresStreamSink":
        """Return the declaration of where that log is replayed, beside this target. ``stream``: its hydration's id."""
        from airflow_provider_backpressure.connectors.postgres.identifiers import QualifiedName

        own = {field.name: getattr(self, field.name) for field in fields(self) if field.init}
        schema = self.find_system_schema()
        name = QualifiedName(schema=schema, name=f"backpressure_{stream}")
        only = {"table": str(name), "key": None, "quarantine": None}
        return PostgresStreamSink(**{**own, **only, "system_schema": schema, "stream": stream})

    def find_system_schema(self) -> str:
        """Return the schema of the plan and marker tables."""
        from airflow_provider_backpressure.connectors.postgres.identifiers import QualifiedName

        return self.system_schema or QualifiedName.parse(self.table).schema

    def open_stream(self, endpoint: Endpoint, stream: str) -> Sink:
        """Return where a log is replayed that this target shares with others. ``stream``: the id of its hydration."""
        from airflow_provider_backpressure.connectors.postgres.sink.shared_log_target import PostgresStreamTarget

        return PostgresStreamTarget(self, endpoint, stream)


@dataclass(frozen=True, kw_only=True)
class PostgresStreamSink(PostgresSink):
    """Where a log that several tables share is replayed. Tasks declare it, DAGs do not."""

    stream: str = ""
    """The id of its hydration."""

    def open(self, endpoint: Endpoint) -> Sink:
        """Return it at this endpoint; it connects at the first question."""
        return self.open_stream(endpoint, self.stream)
