"""The declaration of a PostgreSQL table as a source. Knows no connection and imports no driver."""

from dataclasses import dataclass
from typing import ClassVar

from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.ports import Source
from airflow_provider_backpressure.exceptions import InvalidDeclaration


@dataclass(frozen=True, kw_only=True)
class PostgresSource:
    """A table or view, or a part of it. Raises :class:`InvalidDeclaration`."""

    conn_types: ClassVar[tuple[str, ...]] = ("postgres",)
    """Types that the Airflow connection may be of."""

    consistencies: ClassVar[tuple[str, ...]] = (Consistency.SNAPSHOT, Consistency.STATIC)
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
    table: str
    """``schema.table`` as in SQL: folded to lower case unless in double quotes; ``public`` where no schema is named."""
    columns: tuple[str, ...] | None = None
    """Names of the columns to be read, exactly as the table has them; ``None`` for all."""
    where: str | None = None
    """A condition in SQL, evaluated by the source in UTC; rows for which it is true are read."""
    split_column: str | None = None
    """Column by which ranges are cut; ``None`` for the primary key or another unique one, else the table's blocks.

    It may hold NULLs and need not be unique, but should have an index. A view has to name one."""
    increment_column: str | None = None
    """A column that rises with every new or changed row: later runs read what lies above the value committed last.

    Rows that are committed late with a lower value, and deletes, are not seen."""
    as_text: tuple[str, ...] = ()
    """Names of columns that are read as the text PostgreSQL prints for them, whatever their type."""

    def __post_init__(self) -> None:
        """Take lists for tuples, and refuse a lone name where several are meant."""
        for name in ("columns", "as_text"):
            value = getattr(self, name)
            if isinstance(value, str):
                raise InvalidDeclaration(f"PostgresSource.{name} must be a tuple of names, not the text {value!r}.")
            if isinstance(value, list):
                object.__setattr__(self, name, tuple(value))
        if self.columns == ():
            raise InvalidDeclaration("PostgresSource.columns must name at least one column, or be None for all.")

    def open(self, endpoint: Endpoint) -> Source:
        """Return the source at this endpoint; it connects at the first question. Names are checked here."""
        from airflow_provider_backpressure.sources.postgres_table import PostgresTable

        return PostgresTable(self, endpoint)
