"""The declaration of a Delta table as a target."""

from dataclasses import dataclass
from typing import ClassVar

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.ports import Sink
from airflow_provider_backpressure.sinks.lake_declared import open_lake, taken_key


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

    def __post_init__(self) -> None:
        """Take a list for a tuple, and refuse a lone name where several are meant."""
        object.__setattr__(self, "key", taken_key(self.key, "DeltaSink.key"))

    @property
    def table(self) -> str:
        """The path."""
        return self.path

    def open(self, endpoint: Endpoint) -> Sink:
        """Return the sink; it looks at the first question. The path is checked here."""
        from airflow_provider_backpressure.lakes.places import check_path
        from airflow_provider_backpressure.lakes.table import address_of
        from airflow_provider_backpressure.sinks.lake_target import LakeTarget

        address = address_of(path=check_path(self.path, "DeltaSink.path"))
        return LakeTarget(
            open_lake("delta", address, endpoint),
            kind="delta",
            address=address,
            conn_id=self.conn_id,
            modules=("deltalake",),
            key=self.key,
        )
