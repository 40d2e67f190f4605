"""The declaration of a folder of Parquet files as a target."""

from dataclasses import dataclass
from typing import ClassVar

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.ports import Sink
from airflow_provider_backpressure.sinks.lake_declared import open_lake


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

    @property
    def table(self) -> str:
        """The folder."""
        return self.path

    def open(self, endpoint: Endpoint) -> Sink:
        """Return the sink; it looks at the first question. The path is checked here."""
        from airflow_provider_backpressure.lakes.places import S3, check_path
        from airflow_provider_backpressure.lakes.table import address_of
        from airflow_provider_backpressure.sinks.lake_target import LakeTarget

        path = check_path(self.path, "ParquetSink.path")
        address = address_of(path=path)
        return LakeTarget(
            open_lake("parquet", address, endpoint),
            kind="parquet",
            address=address,
            conn_id=self.conn_id,
            modules=("boto3",) if path.startswith(S3) else (),
        )
