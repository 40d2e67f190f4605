"""The declaration of a Delta table as a target."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from airflow_provider_backpressure.connectors.declaration import check_quarantine, taken_key
from airflow_provider_backpressure.connectors.lake.config import open_lake
from airflow_provider_backpressure.core.endpoints import Endpoint

if TYPE_CHECKING:
    from airflow_provider_backpressure.connectors.lake.sink.target import LakeTarget


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
        from airflow_provider_backpressure.connectors.lake.quarantine import address_beside
        from airflow_provider_backpressure.connectors.lake.sink.target import LakeTarget
        from airflow_provider_backpressure.connectors.lake.storage import S3, check_characters, check_path
        from airflow_provider_backpressure.connectors.lake.table import address_of

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
