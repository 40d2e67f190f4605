"""The declaration of a PostgreSQL table as a source. Knows no connection and imports no driver."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import ClassVar

from airflow_provider_backpressure.connectors.relational.config import TableSource, make_stream
from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.default_limits import HEADROOM_HOURS
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.health_signal_declarations import WalHeadroom, Watched
from airflow_provider_backpressure.core.ports import Source
from airflow_provider_backpressure.core.table_selection import TableName
from airflow_provider_backpressure.exceptions import InvalidDeclaration

STOP_AND_KEEP, DROP_AND_RESTART = "stop_and_keep", "drop_slot_and_restart"


@dataclass(frozen=True, kw_only=True)
class PostgresSource(TableSource):
    """A table or view, or a part of it. Raises :class:`InvalidDeclaration`.

    ``table``: ``schema.table`` as in SQL: folded to lower case unless in double quotes; ``public`` where no schema is
    named. Without a ``split_column`` and without a unique key, ranges are cut by the table's blocks.
    """

    conn_types: ClassVar[tuple[str, ...]] = ("postgres",)
    """Types that the Airflow connection may be of."""
    compares_followed: ClassVar[bool] = True
    """Whether ``verify="full"`` compares a table by value while its changes are followed."""
    consistencies: ClassVar[tuple[str, ...]] = (Consistency.SNAPSHOT, Consistency.STATIC, Consistency.CATCH_UP)
    """What may be asked for, the default first."""

    wal_limit: int | None = None
    """Bytes of its log that the source may keep for a hydration under ``catch_up``; ``None``: what it allows itself
    (``max_slot_wal_keep_size``), if it does."""
    at_wal_limit: str = DROP_AND_RESTART
    """What happens at that limit, after warnings at 50 and 80 % of it: ``drop_slot_and_restart`` gives the log up at
    once and reads the table again, ``stop_and_keep`` stops the reading of ranges and keeps the log for a person to
    decide."""

    def __post_init__(self) -> None:
        """See :meth:`TableSource.__post_init__`; what the log may take is checked too."""
        super().__post_init__()
        if self.at_wal_limit not in (STOP_AND_KEEP, DROP_AND_RESTART):
            raise InvalidDeclaration(
                f"PostgresSource.at_wal_limit must be {STOP_AND_KEEP} or {DROP_AND_RESTART}, not {self.at_wal_limit!r}."
            )
        most = self.wal_limit
        if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
            raise InvalidDeclaration(f"PostgresSource.wal_limit must be a number of bytes above 0, not {most!r}.")

    def safety_signals(self, consistency: str | None) -> tuple[Watched, ...]:
        """Return what is watched without being asked for: under ``catch_up`` the source's disk."""
        return (WalHeadroom(hours=HEADROOM_HOURS),) if consistency == Consistency.CATCH_UP else ()

    def agree_on_limit(self, other: "PostgresSource") -> "PostgresSource":
        """Return this source with the policy that harms neither: a log that one of them wants to keep is kept."""
        policies, limits = {self.at_wal_limit, other.at_wal_limit}, (self.wal_limit, other.wal_limit)
        return replace(
            self,
            at_wal_limit=STOP_AND_KEEP if STOP_AND_KEEP in policies else DROP_AND_RESTART,
            wal_limit=min((each for each in limits if each is not None), default=None),
        )

    def parse_name(self, table: str) -> TableName:
        """Return a table's names; :class:`InvalidDeclaration` for what is none."""
        from airflow_provider_backpressure.connectors.postgres.identifiers import QualifiedName

        name = QualifiedName.parse(table)
        return TableName(schema=name.schema, name=name.name, spelled=str(name))

    def found(self, endpoint: Endpoint) -> list[TableName]:
        """Return the tables that the pattern meets and the role may read."""
        from airflow_provider_backpressure.connectors.postgres.source.table import found

        return found(endpoint, str(self.tables))

    def expect(self, tables: Sequence[str]) -> AbstractContextManager[None]:
        """Expect these to be asked for soon, so that the catalogue is asked for many at once."""
        from airflow_provider_backpressure.connectors.postgres.identifiers import QualifiedName
        from airflow_provider_backpressure.connectors.postgres.source.catalog_lookup_batch import expect

        return expect([QualifiedName.parse(table) for table in tables])

    def open(self, endpoint: Endpoint) -> Source:
        """Return the source at this endpoint; it connects at the first question. Names are checked here."""
        from airflow_provider_backpressure.connectors.postgres.source.table import PostgresTable

        return PostgresTable(self, endpoint)

    def declare_stream(self, stream: str, tables: Sequence[str]) -> "PostgresStreamSource":
        """Return the declaration of the log that ``tables`` of this database share. ``stream``: its hydration's id."""
        return make_stream(self, PostgresStreamSource, stream, tables)

    def open_stream(self, endpoint: Endpoint, stream: str, tables: Sequence[str]) -> Source:
        """Return the log that ``tables`` of this database share. ``stream``: the id of its hydration."""
        from airflow_provider_backpressure.connectors.postgres.identifiers import QualifiedName
        from airflow_provider_backpressure.connectors.postgres.source.shared_log_source import PostgresStream

        return PostgresStream(self, endpoint, stream, [QualifiedName.parse(table) for table in tables])


@dataclass(frozen=True, kw_only=True)
class PostgresStreamSource(PostgresSource):
    """The log that several tables share, which is a hydration of its own. Tasks declare it, DAGs do not."""

    stream: str = ""
    """The id of its hydration."""
    members: tuple[str, ...] = ()
    """Tables with which the log begins."""

    def open(self, endpoint: Endpoint) -> Source:
        """Return the log at this endpoint; it connects at the first question."""
        return self.open_stream(endpoint, self.stream, self.members)
