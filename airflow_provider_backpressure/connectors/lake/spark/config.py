"""Declaration of a table that Spark's own connector writes."""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from airflow_provider_backpressure.core.config import Mode, taken_key
from airflow_provider_backpressure.core.declaration_checks import Declared
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.exceptions import InvalidDeclaration

if TYPE_CHECKING:
    from airflow_provider_backpressure.connectors.lake.sink.spark_target import SparkTableTarget

FORMATS = ("delta", "iceberg")
_NAME = re.compile(r"[\w-]+(\.[\w-]+){2,}")
MOST_TASKS = 64


@dataclass(frozen=True, kw_only=True)
class SparkTableSink(Declared):
    """A table of a catalog that the Spark cluster knows, written by the cluster's own Iceberg or Delta connector.

    Over Spark Connect and spark-submit. Raises :class:`InvalidDeclaration`.
    """

    conn_types: ClassVar[tuple[str, ...]] = ("spark_connect", "spark")
    """Types that the Airflow connection may be of."""
    modes: ClassVar[tuple[Mode, ...]] = (Mode.APPEND, Mode.UPSERT, Mode.MIRROR)
    """How rows may enter it."""
    templated: ClassVar[tuple[str, ...]] = ("table", "spark_conn_id", "key")
    """Fields whose text may be a template."""
    quarantine: ClassVar[int | None] = None
    """No row is kept aside: one that the table cannot take fails its range."""

    table: str
    """``catalog.schema.table``, as the cluster names it."""
    spark_conn_id: str
    """Airflow connection to Spark, the same that the hydration runs on."""
    format: str | None = None
    """``iceberg`` or ``delta``, for a table that is to be created; ``None`` where it is there already."""
    key: tuple[str, ...] | None = None
    """Names of the columns that ``upsert`` and ``mirror`` go by; ``None`` for the source's key."""
    tasks: int = 1
    """Tasks that read one range side by side, each over a connection of its own."""
    maintain_every: int = 20
    """Windows of changes after which files are compacted and old versions removed; 0: never."""

    def __post_init__(self) -> None:
        """Refuse another format, and numbers or a key that cannot be meant."""
        object.__setattr__(self, "key", taken_key(self.key, "SparkTableSink.key"))
        if self.format is not None and self.format not in FORMATS and "{{" not in self.format:
            raise InvalidDeclaration(f"SparkTableSink.format must be {' or '.join(FORMATS)}, not {self.format!r}.")
        if not 1 <= self.tasks <= MOST_TASKS:
            raise InvalidDeclaration(f"SparkTableSink.tasks must be from 1 to {MOST_TASKS}, not {self.tasks}.")
        if self.maintain_every < 0:
            raise InvalidDeclaration(f"SparkTableSink.maintain_every must not be negative: {self.maintain_every}.")

    @property
    def conn_id(self) -> str:
        """The connection to Spark: the table's login is the cluster's."""
        return self.spark_conn_id

    def open(self, endpoint: Endpoint) -> "SparkTableTarget":
        """Return the sink; it connects at the first question. The name is checked here."""
        from airflow_provider_backpressure.connectors.lake.sink.spark_target import SparkTableTarget
        from airflow_provider_backpressure.connectors.lake.spark.sql_session import SqlSession

        if not _NAME.fullmatch(self.table):
            raise InvalidDeclaration(f"SparkTableSink.table must be catalog.schema.table, not {self.table!r}.")
        return SparkTableTarget(
            SqlSession(endpoint),
            self.table,
            conn_id=self.spark_conn_id,
            format_=self.format,
            tasks=self.tasks,
            key=self.key,
            maintain_every=self.maintain_every,
        )
