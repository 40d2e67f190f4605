"""What declarations of tables of files share. Imports no library of any format."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from airflow_provider_backpressure.core.config import Mode, check_quarantine, taken_key
from airflow_provider_backpressure.core.declaration_checks import Declared
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.exceptions import InvalidDeclaration

if TYPE_CHECKING:
    from airflow_provider_backpressure.connectors.lake.base_table import LakeTable
    from airflow_provider_backpressure.connectors.lake.sink.target import LakeTarget


def open_lake(kind: str, address: str, endpoint: Endpoint) -> "LakeTable":
    """Return the table; :class:`InvalidDeclaration` names what has to be installed."""
    from airflow_provider_backpressure.connectors.lake.base_table import open_table

    try:
        return open_table(kind, address, endpoint)
    except ModuleNotFoundError as error:
        raise InvalidDeclaration(
            f"A target of kind {kind} needs the package {error.name}, here and on the executors: "
            f"pip install 'airflow-provider-backpressure[{kind}]'."
        ) from error


def _open_target(
    declared: "DeltaSink | IcebergSink | ParquetSink",
    kind: str,
    address: str,
    endpoint: Endpoint,
    *,
    modules: tuple[str, ...],
    beside: Callable[[str], "DeltaSink | IcebergSink | ParquetSink"],
) -> "LakeTarget":
    """Return the sink of a table at this address. ``beside``: returns the declaration whose name has this end."""
    from airflow_provider_backpressure.connectors.lake.sink.target import LakeTarget
    from airflow_provider_backpressure.connectors.lake.tasks.quarantine import address_beside

    return LakeTarget(
        open_lake(kind, address, endpoint),
        kind=kind,
        address=address,
        conn_id=declared.conn_id,
        modes=declared.modes,
        aside=open_lake(kind, address_beside(address), endpoint) if declared.quarantine else None,
        most_bad=declared.quarantine or 0,
        beside=lambda end: beside(end).open(endpoint),
        modules=modules,
        key=declared.key,
    )


@dataclass(frozen=True, kw_only=True)
class FolderSink(Declared, ABC):
    """A table of files at a path. Raises :class:`InvalidDeclaration`."""

    conn_types: ClassVar[tuple[str, ...]] = ("aws",)
    """Types that the Airflow connection may be of."""
    keeps_files: ClassVar[bool] = True
    """Whether appended rows are found by the files that they came in."""
    modes: ClassVar[tuple[Mode, ...]]
    """How rows may enter it."""

    path: str
    """Folder that Airflow and every executor reach by the same absolute path, or ``s3://bucket/prefix``."""
    conn_id: str = ""
    """Airflow connection with the bucket's login; empty for a local folder, or what the machines themselves have."""
    quarantine: int | None = None
    """Most rows of one plan that are kept in the table beside it, ``…_quarantine``, where they cannot go in;
    ``None``: the first such row fails its range."""

    def __post_init__(self) -> None:
        """Refuse what is no number."""
        check_quarantine(self.quarantine, f"{type(self).__name__}.quarantine")

    @property
    def table(self) -> str:
        """The path."""
        return self.path

    @abstractmethod
    def open(self, endpoint: Endpoint) -> "LakeTarget":
        """Return the sink; it looks at the first question. The path is checked here."""

    def _beside(self, end: str) -> Self:
        return replace(self, path=self.path.rstrip("/") + end)


@dataclass(frozen=True, kw_only=True)
class DeltaSink(FolderSink):
    """A Delta table at a path, which is created where it is missing. Raises :class:`InvalidDeclaration`."""

    modes: ClassVar[tuple[Mode, ...]] = (Mode.APPEND, Mode.UPSERT)
    """How rows may enter it."""
    templated: ClassVar[tuple[str, ...]] = ("path", "conn_id", "key")
    """Fields whose text may be a template."""

    key: tuple[str, ...] | None = None
    """Names of the columns that ``upsert`` goes by; ``None`` for the source's key."""

    def __post_init__(self) -> None:
        """Take a list for a tuple, and refuse a lone name where several are meant."""
        super().__post_init__()
        object.__setattr__(self, "key", taken_key(self.key, "DeltaSink.key"))

    def open(self, endpoint: Endpoint) -> "LakeTarget":
        """See :meth:`FolderSink.open`."""
        from airflow_provider_backpressure.connectors.lake.base_table import address_of
        from airflow_provider_backpressure.connectors.lake.storage import S3, check_characters, check_path

        path = check_path(self.path, "DeltaSink.path")
        check_characters(path, "DeltaSink.path", r"\\|%[0-9A-Fa-f]{2}" + (r"|[#?]" if path.startswith(S3) else ""))
        address = address_of(path=path)
        return _open_target(self, "delta", address, endpoint, modules=("deltalake",), beside=self._beside)


@dataclass(frozen=True, kw_only=True)
class IcebergSink(Declared):
    """An Iceberg table in a catalog, which is created where it is missing. Raises :class:`InvalidDeclaration`."""

    conn_types: ClassVar[tuple[str, ...]] = ("aws", "iceberg", "postgres")
    """Types that the Airflow connection may be of: a bucket's login, a REST catalog, a catalog in PostgreSQL."""
    keeps_files: ClassVar[bool] = True
    """Whether appended rows are found by the files that they came in."""
    modes: ClassVar[tuple[Mode, ...]] = (Mode.APPEND, Mode.UPSERT)
    """How rows may enter it."""
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
        from airflow_provider_backpressure.connectors.lake.base_table import address_of
        from airflow_provider_backpressure.connectors.lake.iceberg.catalog_properties import check_catalog, list_modules

        namespace, _, name = self.table.rpartition(".")
        if not namespace or not name:
            raise InvalidDeclaration(f"IcebergSink.table must be namespace.table, not {self.table!r}.")
        catalog = check_catalog(self.catalog or {})
        address = address_of(table=self.table, catalog=catalog)
        return _open_target(
            self,
            "iceberg",
            address,
            endpoint,
            modules=list_modules(catalog, endpoint),
            beside=lambda end: replace(self, table=self.table + end),
        )


@dataclass(frozen=True, kw_only=True)
class ParquetSink(FolderSink):
    """A folder that gets one file for each range; ``append`` only. Raises :class:`InvalidDeclaration`."""

    modes: ClassVar[tuple[Mode, ...]] = (Mode.APPEND,)
    """How rows may enter it."""
    templated: ClassVar[tuple[str, ...]] = ("path", "conn_id")
    """Fields whose text may be a template."""
    key: ClassVar[tuple[str, ...] | None] = None
    """Files have none."""

    def open(self, endpoint: Endpoint) -> "LakeTarget":
        """See :meth:`FolderSink.open`."""
        from airflow_provider_backpressure.connectors.lake.base_table import address_of
        from airflow_provider_backpressure.connectors.lake.storage import S3, check_path

        path = check_path(self.path, "ParquetSink.path")
        modules = ("boto3",) if path.startswith(S3) else ()
        return _open_target(self, "parquet", address_of(path=path), endpoint, modules=modules, beside=self._beside)
