"""What declarations of tables of files share. Imports no library of any format."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from airflow_provider_backpressure.core.config import check_quarantine, taken_key
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.exceptions import InvalidDeclaration

if TYPE_CHECKING:
    from airflow_provider_backpressure.connectors.lake.sink.target import LakeTarget
    from airflow_provider_backpressure.connectors.lake.table import LakeTable


def open_lake(kind: str, address: str, endpoint: Endpoint) -> "LakeTable":
    """Return the table; :class:`InvalidDeclaration` names what has to be installed."""
    from airflow_provider_backpressure.connectors.lake.table import open_table

    try:
        return open_table(kind, address, endpoint)
    except ModuleNotFoundError as error:
        raise InvalidDeclaration(
            f"A target of kind {kind} needs the package {error.name}, here and on the executors: "
            f"pip install 'airflow-provider-backpressure[{kind}]'."
        ) from error


@dataclass(frozen=True, kw_only=True)
class DeltaSink:
    """A Delta table at a path, which is created where it is missing. Raises :class:`InvalidDeclaration`."""

    conn_types: ClassVar[tuple[str, ...]] = ("aws",)
    """Types that the Airflow connection may be of."""
    templated: ClassVar[tuple[str, ...]] = ("path", "conn_id", "key")
    """Fields whose text may be a template."""

    path: str
    """Folder that Airflow and every executor reach by the same absolute path, or ``s3://bucket/prefix``."""
    conn_id: str = ""
    """Airflow connection with the bucket's login; empty for a local folder, or what the machines themselves have."""
    key: tuple[str, ...] | None = None
    """Names of the columns that ``upsert`` goes by; ``None`` for the source's key."""
    quarantine: int | None = None
    """Most rows of one plan that are kept in the table beside it, ``…_quarantine``, where they cannot go in;
    ``None``: the first such row fails its range."""

    def __post_init__(self) -> None:
        """Take a list for a tuple, and refuse a lone name where several are meant."""
        check_quarantine(self.quarantine, "DeltaSink.quarantine")
        object.__setattr__(self, "key", taken_key(self.key, "DeltaSink.key"))

    @property
    def table(self) -> str:
        """The path."""
        return self.path

    def open(self, endpoint: Endpoint) -> "LakeTarget":
        """Return the sink; it looks at the first question. The path is checked here."""
        from airflow_provider_backpressure.connectors.lake.sink.target import LakeTarget
        from airflow_provider_backpressure.connectors.lake.storage import S3, check_characters, check_path
        from airflow_provider_backpressure.connectors.lake.table import address_of
        from airflow_provider_backpressure.connectors.lake.tasks.quarantine import address_beside

        path = check_path(self.path, "DeltaSink.path")
        check_characters(path, "DeltaSink.path", r"\\|%[0-9A-Fa-f]{2}" + (r"|[#?]" if path.startswith(S3) else ""))
        address = address_of(path=path)
        return LakeTarget(
            open_lake("delta", address, endpoint),
            kind="delta",
            address=address,
            conn_id=self.conn_id,
            aside=open_lake("delta", address_beside(address), endpoint) if self.quarantine else None,
            most_bad=self.quarantine or 0,
            beside=lambda end: replace(self, path=self.path.rstrip("/") + end).open(endpoint),
            modules=("deltalake",),
            key=self.key,
        )


@dataclass(frozen=True, kw_only=True)
class IcebergSink:
    """An Iceberg table in a catalog, which is created where it is missing. Raises :class:`InvalidDeclaration`."""

    conn_types: ClassVar[tuple[str, ...]] = ("aws", "iceberg", "postgres")
    """Types that the Airflow connection may be of: a bucket's login, a REST catalog, a catalog in PostgreSQL."""
    templated: ClassVar[tuple[str, ...]] = ("table", "catalog", "conn_id", "key")
    """Fields whose text may be a template."""

    table: str
    """``namespace.table``."""
    catalog: Mapping[str, str] | None = None
    """Properties of the catalog as pyiceberg names them, without secrets; ``name`` is the catalog's own name."""
    conn_id: str = ""
    """Airflow connection with what is secret; empty where nothing is."""
    key: tuple[str, ...] | None = None
    """Names of the columns that ``upsert`` goes by; ``None`` for the source's key."""
    quarantine: int | None = None
    """Most rows of one plan that are kept in the table beside it, ``…_quarantine``, where they cannot go in;
    ``None``: the first such row fails its range."""

    def __post_init__(self) -> None:
        """Take a list for a tuple, and refuse a lone name where several are meant."""
        check_quarantine(self.quarantine, "IcebergSink.quarantine")
        object.__setattr__(self, "key", taken_key(self.key, "IcebergSink.key"))

    def open(self, endpoint: Endpoint) -> "LakeTarget":
        """Return the sink; it connects at the first question. Names and properties are checked here."""
        from airflow_provider_backpressure.connectors.lake.iceberg.catalog import check_catalog, list_modules
        from airflow_provider_backpressure.connectors.lake.sink.target import LakeTarget
        from airflow_provider_backpressure.connectors.lake.table import address_of
        from airflow_provider_backpressure.connectors.lake.tasks.quarantine import address_beside

        namespace, _, name = self.table.rpartition(".")
        if not namespace or not name:
            raise InvalidDeclaration(f"IcebergSink.table must be namespace.table, not {self.table!r}.")
        catalog = check_catalog(self.catalog or {})
        address = address_of(table=self.table, catalog=catalog)
        return LakeTarget(
            open_lake("iceberg", address, endpoint),
            kind="iceberg",
            address=address,
            conn_id=self.conn_id,
            aside=open_lake("iceberg", address_beside(address), endpoint) if self.quarantine else None,
            most_bad=self.quarantine or 0,
            beside=lambda end: replace(self, table=self.table + end).open(endpoint),
            modules=list_modules(catalog, endpoint),
            key=self.key,
        )


@dataclass(frozen=True, kw_only=True)
class ParquetSink:
    """A folder that gets one file for each range; ``append`` only. Raises :class:`InvalidDeclaration`."""

    conn_types: ClassVar[tuple[str, ...]] = ("aws",)
    """Types that the Airflow connection may be of."""
    templated: ClassVar[tuple[str, ...]] = ("path", "conn_id")
    """Fields whose text may be a template."""
    key: ClassVar[tuple[str, ...] | None] = None
    """Files have none."""

    path: str
    """Folder that Airflow and every executor reach by the same absolute path, or ``s3://bucket/prefix``."""
    conn_id: str = ""
    """Airflow connection with the bucket's login; empty for a local folder, or what the machines themselves have."""

    quarantine: int | None = None
    """Most rows of one plan that are kept in the folder beside it, ``…_quarantine``, where they cannot go in;
    ``None``: the first such row fails its range."""

    def __post_init__(self) -> None:
        """Refuse what is no number."""
        check_quarantine(self.quarantine, "ParquetSink.quarantine")

    @property
    def table(self) -> str:
        """The folder."""
        return self.path

    def open(self, endpoint: Endpoint) -> "LakeTarget":
        """Return the sink; it looks at the first question. The path is checked here."""
        from airflow_provider_backpressure.connectors.lake.sink.target import LakeTarget
        from airflow_provider_backpressure.connectors.lake.storage import S3, check_path
        from airflow_provider_backpressure.connectors.lake.table import address_of
        from airflow_provider_backpressure.connectors.lake.tasks.quarantine import address_beside

        path = check_path(self.path, "ParquetSink.path")
        address = address_of(path=path)
        return LakeTarget(
            open_lake("parquet", address, endpoint),
            kind="parquet",
            address=address,
            conn_id=self.conn_id,
            aside=open_lake("parquet", address_beside(address), endpoint) if self.quarantine else None,
            most_bad=self.quarantine or 0,
            beside=lambda end: replace(self, path=self.path.rstrip("/") + end).open(endpoint),
            modules=("boto3",) if path.startswith(S3) else (),
        )
