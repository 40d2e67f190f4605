"""Declaration of a table of the cluster's catalogs as a source."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from airflow_provider_backpressure.core.config import Consistency, check_some, take_tuples
from airflow_provider_backpressure.core.declaration_checks import Declared
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.exceptions import InvalidDeclaration

if TYPE_CHECKING:
    from airflow_provider_backpressure.connectors.lake.source.spark_catalog_table import SparkCatalogTable

MOST_TASKS = 64


@dataclass(frozen=True, kw_only=True)
class SparkSource(Declared):
    """A table or view of a catalog that the Spark cluster knows, read by the cluster's own connector.

    Over Spark Connect and spark-submit. The login of the catalog is the cluster's. Raises :class:`InvalidDeclaration`.
    """

    conn_types: ClassVar[tuple[str, ...]] = ("spark_connect", "spark")
    """Types that the Airflow connection may be of."""
    consistencies: ClassVar[tuple[str, ...]] = (Consistency.STATIC,)
    """What may be asked for. Ranges of an Iceberg or Delta table all read the version of the moment of the plan."""
    templated: ClassVar[tuple[str, ...]] = ("table", "spark_conn_id", "columns", "where", "split_column")
    """Fields whose text may be a template."""

    table: str
    """``catalog.schema.table``, as the cluster names it; a part with a dot in backticks."""
    spark_conn_id: str
    """Airflow connection to Spark, the same that the hydration runs on."""
    split_column: str | None = None
    """Column by which ranges are cut. It may hold NULLs and need not be unique."""
    columns: tuple[str, ...] | None = None
    """Names of the columns to be read, exactly as the table has them; ``None`` for all."""
    where: str | None = None
    """A condition in Spark's SQL; rows for which it is true are read. Times without a zone in it are in UTC."""
    whole: bool = False
    """Whether the table is read as one range, without a ``split_column``."""
    tasks: int = 1
    """Tasks that read one range side by side, each with a statement of its own."""

    def __post_init__(self) -> None:
        """Take lists for tuples; refuse a number of tasks that cannot be meant, and two ways to cut."""
        take_tuples(self, "columns")
        check_some(self, self.columns)
        if not 1 <= self.tasks <= MOST_TASKS:
            raise InvalidDeclaration(f"SparkSource.tasks must be from 1 to {MOST_TASKS}, not {self.tasks}.")
        if self.whole and self.split_column is not None:
            raise InvalidDeclaration("SparkSource takes either whole=True or a split_column, not both.")

    @property
    def conn_id(self) -> str:
        """The connection to Spark: the catalog's login is the cluster's."""
        return self.spark_conn_id

    def open(self, endpoint: Endpoint) -> "SparkCatalogTable":
        """Return the source; it connects at the first question. The name is checked here."""
        from airflow_provider_backpressure.connectors.lake.source.spark_catalog_table import SparkCatalogTable
        from airflow_provider_backpressure.connectors.lake.source.spark_sql_names import CatalogName
        from airflow_provider_backpressure.connectors.lake.spark.sql_session import SqlSession

        return SparkCatalogTable(self, SqlSession(endpoint), name=CatalogName.parse(self.table))
