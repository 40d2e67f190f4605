"""The declaration of a folder of Parquet files as a target."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from airflow_provider_backpressure.connectors.declaration import check_quarantine
from airflow_provider_backpressure.connectors.lake.config import open_lake
from airflow_provider_backpressure.core.endpoints import Endpoint

if TYPE_CHECKING:
    from airflow_provider_backpressure.connectors.lake.sink.target import LakeTarget


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
        from airflow_provider_backpressure.connectors.lake.quarantine import address_beside
        from airflow_provider_backpressure.connectors.lake.sink.target import LakeTarget
        from airflow_provider_backpressure.connectors.lake.storage import S3, check_path
        from airflow_provider_backpressure.connectors.lake.table import address_of

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
