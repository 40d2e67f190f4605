"""The declaration of a lake that one of our hydrations has landed, as a source. Imports no library of any format."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.declaration_checks import Declared
from airflow_provider_backpressure.core.endpoints import DeclaredTable, Endpoint
from airflow_provider_backpressure.exceptions import InvalidDeclaration

if TYPE_CHECKING:
    from airflow_provider_backpressure.core.ports import Source
    from airflow_provider_backpressure.core.ports.sink import Sink


class Lake(DeclaredTable, Protocol):
    """What declares a table of files: a ``ParquetSink``, ``DeltaSink`` or ``IcebergSink``."""

    def open(self, endpoint: Endpoint) -> "Sink":
        """Open it."""
        ...


@dataclass(frozen=True, kw_only=True)
class LandedSource(Declared):
    """Rows that a hydration has landed in a table of files, read without their upstream. Its files are the ranges.

    Raises :class:`InvalidDeclaration`.
    """

    consistencies: ClassVar[tuple[str, ...]] = (Consistency.STATIC,)
    """What may be asked for: the files of a plan never change."""
    templated: ClassVar[tuple[str, ...]] = ("lake",)
    """Fields that may hold templates."""

    lake: Lake
    """The very declaration by which the lake was written."""

    def __post_init__(self) -> None:
        """Refuse what is no declaration of a table of files."""
        if not any(hasattr(self.lake, name) for name in ("path", "catalog")):
            raise InvalidDeclaration(
                "LandedSource.lake must be a ParquetSink, DeltaSink or IcebergSink, as the hydration that has landed "
                f"the rows declares it, not {type(self.lake).__name__}."
            )

    @property
    def conn_id(self) -> str:
        """The lake's."""
        return self.lake.conn_id

    @property
    def conn_types(self) -> tuple[str, ...]:
        """The lake's."""
        return self.lake.conn_types

    @property
    def table(self) -> str:
        """The lake's."""
        return self.lake.table

    def open(self, endpoint: Endpoint) -> "Source":
        """Return the source; it looks at the first question."""
        from airflow_provider_backpressure.connectors.lake.source.landed_table import LandedTable

        return LandedTable(self.lake.open(endpoint), endpoint=endpoint, conn_id=self.lake.conn_id)
