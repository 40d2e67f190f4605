"""The declaration of an Iceberg table as a target."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from airflow_provider_backpressure.connectors.declaration import check_quarantine, taken_key
from airflow_provider_backpressure.connectors.lake.config import open_lake
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.exceptions import InvalidDeclaration

if TYPE_CHECKING:
    from airflow_provider_backpressure.connectors.lake.sink.target import LakeTarget


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
        from airflow_provider_backpressure.connectors.lake.quarantine import address_beside
        from airflow_provider_backpressure.connectors.lake.sink.target import LakeTarget
        from airflow_provider_backpressure.connectors.lake.table import address_of

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
