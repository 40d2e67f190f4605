"""The declaration of an Iceberg table as a target."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.ports import Sink
from airflow_provider_backpressure.exceptions import InvalidDeclaration
from airflow_provider_backpressure.sinks.lake_declared import open_lake, taken_key


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

    def __post_init__(self) -> None:
        """Take a list for a tuple, and refuse a lone name where several are meant."""
        object.__setattr__(self, "key", taken_key(self.key, "IcebergSink.key"))

    def open(self, endpoint: Endpoint) -> Sink:
        """Return the sink; it connects at the first question. Names and properties are checked here."""
        from airflow_provider_backpressure.lakes.iceberg_catalog import check_catalog, needed_modules
        from airflow_provider_backpressure.lakes.table import address_of
        from airflow_provider_backpressure.sinks.lake_target import LakeTarget

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
            modules=needed_modules(catalog, endpoint),
            key=self.key,
        )
