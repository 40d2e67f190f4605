"""The declaration of a PostgreSQL table as a source. Knows no connection and imports no driver."""

from dataclasses import dataclass
from typing import ClassVar

from airflow_provider_backpressure.core.config import Consistency, check_some, take_tuples
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.ports import Source
from airflow_provider_backpressure.core.table_selection import TableName, one_of
from airflow_provider_backpressure.exceptions import InvalidDeclaration

STOP_AND_KEEP, DROP_AND_RESTART = "stop_and_keep", "drop_slot_and_restart"


@dataclass(frozen=True, kw_only=True)
class PostgresSource:
    """A table or view, or a part of it. Raises :class:`InvalidDeclaration`."""

    conn_types: ClassVar[tuple[str, ...]] = ("postgres",)
    """Types that the Airflow connection may be of."""

    consistencies: ClassVar[tuple[str, ...]] = (
        Consistency.SNAPSHOT,
        Consistency.STATIC,
        Consistency.CATCH_UP,
    )
    """What may be asked for, the default first."""
    templated: ClassVar[tuple[str, ...]] = (
        "conn_id",
        "table",
        "columns",
        "where",
        "split_column",
        "increment_column",
        "as_text",
    )
    """Fields whose text may be a template. Not Airflow's own name for it: Airflow would assign to a frozen value."""

    conn_id: str
    table: str = ""
    """``schema.table`` as in SQL: folded to lower case unless in double quotes; ``public`` where no schema is named."""
    tables: tuple[str, ...] | str = ()
    """Several: their names, or a pattern over ``schema.table`` as ``public.order_*``, looked up in each run.

    Each is a hydration of its own; the sink says where it goes by ``{table}`` and ``{schema}`` in its name."""
    columns: tuple[str, ...] | None = None
    """Names of the columns to be read, exactly as the table has them; ``None`` for all."""
    where: str | None = None
    """A condition in SQL, evaluated by the source in UTC; rows for which it is true are read."""
    split_column: str | None = None
    """Column by which ranges are cut; ``None`` for the primary key or another unique one, otherwise the table's blocks.

    It may hold NULLs and need not be unique, but should have an index. A view has to name one."""
    increment_column: str | None = None
    """A column that rises with every new or changed row: later runs read what lies above the value committed last.

    Rows that are committed late with a lower value, and deletes, are not seen."""
    wal_limit: int | None = None
    """Bytes of its log that the source may keep for a hydration under ``catch_up``; ``None``: what it allows itself
    (``max_slot_wal_keep_size``), if it does."""
    at_wal_limit: str = STOP_AND_KEEP
    """What happens at that limit: ``stop_and_keep`` stops the reading of ranges and keeps the log for a person to
    decide, ``drop_slot_and_restart`` gives the log up at once and reads the table again."""
    as_text: tuple[str, ...] = ()
    """Names of columns that are read as the text PostgreSQL prints for them, whatever their type."""

    def __post_init__(self) -> None:
        """Take lists for tuples, and refuse a lone name where several are meant."""
        one_of(self.table, self.tables, "PostgresSource")
        take_tuples(self, "columns", "as_text", texts=("tables",))
        check_some(self, self.columns)
        if self.at_wal_limit not in (STOP_AND_KEEP, DROP_AND_RESTART):
            raise InvalidDeclaration(
                f"PostgresSource.at_wal_limit must be {STOP_AND_KEEP} or {DROP_AND_RESTART}, not {self.at_wal_limit!r}."
            )
        most = self.wal_limit
        if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
            raise InvalidDeclaration(f"PostgresSource.wal_limit must be a number of bytes above 0, not {most!r}.")

    def parse_name(self, table: str) -> TableName:
        """Return a table's names; :class:`InvalidDeclaration` for what is none."""
        from airflow_provider_backpressure.connectors.postgres.identifiers import QualifiedName

        name = QualifiedName.parse(table)
        return TableName(schema=name.schema, name=name.name, spelled=str(name))

    def found(self, endpoint: Endpoint) -> list[TableName]:
        """Return the tables that the pattern meets and the role may read."""
        from airflow_provider_backpressure.connectors.postgres.source.table import found

        return found(endpoint, str(self.tables))

    def open(self, endpoint: Endpoint) -> Source:
        """Return the source at this endpoint; it connects at the first question. Names are checked here."""
        from airflow_provider_backpressure.connectors.postgres.source.table import PostgresTable

        return PostgresTable(self, endpoint)
