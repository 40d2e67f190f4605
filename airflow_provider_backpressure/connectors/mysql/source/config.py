"""The declaration of a MySQL table as a source. Knows no connection and imports no driver."""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import ClassVar

from airflow_provider_backpressure.core.config import Consistency, check_some, take_tuples
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.ports import Source
from airflow_provider_backpressure.core.table_selection import TableName, one_of
from airflow_provider_backpressure.exceptions import InvalidDeclaration, SourceRefused

ZERO_DATES = ("refuse", "null")


@dataclass(frozen=True, kw_only=True)
class MySQLSource:
    """A table or view, or a part of it. Raises :class:`InvalidDeclaration`."""

    conn_types: ClassVar[tuple[str, ...]] = ("mysql",)
    """Types that the Airflow connection may be of."""
    consistencies: ClassVar[tuple[str, ...]] = (Consistency.STATIC, Consistency.CATCH_UP)
    """What may be asked for, the default first: MySQL has no snapshot that several connections could read in."""
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
    """``database.table``, or ``table`` in the connection's schema; a part that needs it is in backticks."""
    tables: tuple[str, ...] | str = ()
    """Several: their names, or a pattern over ``database.table`` as ``shop.order_*``, looked up in each run.

    Each is a hydration of its own; the sink says where it goes by ``{table}`` and ``{schema}`` in its name."""
    columns: tuple[str, ...] | None = None
    """Names of the columns to be read, exactly as the table has them; ``None`` for all that are visible."""
    where: str | None = None
    """A condition in SQL, evaluated by the source in UTC; rows for which it is true are read."""
    split_column: str | None = None
    """Column by which ranges are cut; ``None`` for the primary key or another unique one.

    It may hold NULLs and need not be unique, but should have an index. A view has to name one."""
    whole: bool = False
    """Read a table without a key in one range, whatever its size, streamed."""
    increment_column: str | None = None
    """A column that rises with every new or changed row: later runs read what lies above the value committed last.

    Rows that are committed late with a lower value, and deletes, are not seen."""
    as_text: tuple[str, ...] = ()
    """Names of columns that are read as the text MySQL prints for them."""
    zero_dates: str = "refuse"
    """What becomes of dates like 0000-00-00 and 2024-00-00: ``refuse`` the range by the column's name, or ``null``."""

    def __post_init__(self) -> None:
        """Take lists for tuples, and refuse a lone name where several are meant."""
        one_of(self.table, self.tables, "MySQLSource")
        take_tuples(self, "columns", "as_text", texts=("tables",))
        check_some(self, self.columns)
        if self.zero_dates not in ZERO_DATES:
            raise InvalidDeclaration(f"MySQLSource.zero_dates must be 'refuse' or 'null', not {self.zero_dates!r}.")
        if self.whole and self.split_column is not None:
            raise InvalidDeclaration("MySQLSource reads a table whole or by a split_column, not both.")

    def parse_name(self, table: str) -> TableName:
        """Return a table's names; :class:`InvalidDeclaration` for what is none."""
        from airflow_provider_backpressure.connectors.mysql.identifiers import parts

        database, name = parts(table)
        return TableName(schema=database, name=name, spelled=table)

    def found(self, endpoint: Endpoint) -> list[TableName]:
        """Return the tables that the pattern meets and the user may see."""
        self._check_installed()
        from airflow_provider_backpressure.connectors.mysql.source.table import found

        return found(endpoint, str(self.tables))

    def open(self, endpoint: Endpoint) -> Source:
        """Return the source at this endpoint; it connects at the first question. Names are checked here."""
        self._check_installed()
        from airflow_provider_backpressure.connectors.mysql.source.table import MySQLTable

        return MySQLTable(self, endpoint)

    @staticmethod
    def _check_installed() -> None:
        if find_spec("pymysql") is None:
            raise SourceRefused(
                "MySQLSource needs the Python package pymysql: `pip install 'airflow-provider-backpressure[mysql]'`."
            )
