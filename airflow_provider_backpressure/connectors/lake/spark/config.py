"""Declaration of a table that Spark's own connector writes."""

import re
from dataclasses import dataclass, fields
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
KEEPER = "backpressure_"
"""Beginning of the name of the table that says how far a log is replayed that tables share."""


@dataclass(frozen=True, kw_only=True)
class SparkTableSink(Declared):
    """A table of a catalog that the Spark cluster knows, written by the cluster's own Iceberg or Delta connector.

    Over Spark Connect and spark-submit. Raises :class:`InvalidDeclaration`.
    """

    conn_types: ClassVar[tuple[str, ...]] = ("spark_connect", "spark")
    """Types that the Airflow connection may be of."""
    modes: ClassVar[tuple[Mode, ...]] = (Mode.APPEND, Mode.UPSERT, Mode.MIRROR)
    """How rows may enter it."""
    templated: ClassVar[tuple[str, ...]] = ("table", "spark_conn_id", "key", "system_schema")
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
    system_schema: str | None = None
    """``catalog.schema`` of the table that says how far a log is replayed that tables share; ``None``: their own."""

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

    @property
    def folds_names(self) -> bool:
        """Whether names of tables that differ in case alone are one: those of Spark's own catalog."""
        return self.table.lower().startswith("spark_catalog.")

    def open(self, endpoint: Endpoint) -> "SparkTableTarget":
        """Return the sink; it connects at the first question. The name is checked here."""
        from airflow_provider_backpressure.connectors.lake.sink.spark_target import SparkTableTarget

        return self.make_target(SparkTableTarget, endpoint)

    def make_target(self, target: "type[SparkTableTarget]", endpoint: Endpoint) -> "SparkTableTarget":
        """Return a sink of this class for the declared table."""
        from airflow_provider_backpressure.connectors.lake.spark.sql_session import SqlSession

        if not _NAME.fullmatch(self.table):
            raise InvalidDeclaration(f"SparkTableSink.table must be catalog.schema.table, not {self.table!r}.")
        return target(
            SqlSession(endpoint),
            self.table,
            conn_id=self.spark_conn_id,
            format_=self.format,
            tasks=self.tasks,
            key=self.key,
            maintain_every=self.maintain_every,
        )

    def declare_stream(self, stream: str) -> "SparkTableStreamSink":
        """Return the declaration of where that log is replayed, beside this table. ``stream``: its hydration's id."""
        if self.format is None:
            raise InvalidDeclaration(
                "Tables of Spark's catalog that share a log are of one format: name it, as "
                "SparkTableSink(format='iceberg')."
            )
        own = {field.name: getattr(self, field.name) for field in fields(self) if field.init}
        schema = self.find_system_schema()
        only = {"table": f"{schema}.{KEEPER}{stream}", "key": None, "system_schema": schema, "stream": stream}
        return SparkTableStreamSink(**{**own, **only})

    def find_system_schema(self) -> str:
        """Return the catalog and schema of the table that says how far a shared log is replayed."""
        return self.system_schema or self.table.rpartition(".")[0]


@dataclass(frozen=True, kw_only=True)
class SparkTableStreamSink(SparkTableSink):
    """Where a log that several tables share is replayed. Tasks declare it, DAGs do not."""

    stream: str = ""
    """The id of its hydration."""

    def open(self, endpoint: Endpoint) -> "SparkTableTarget":
        """Return it; it connects at the first question."""
        from airflow_provider_backpressure.connectors.lake.sink.shared_log_target import SparkStreamTarget

        return self.make_target(SparkStreamTarget, endpoint)
