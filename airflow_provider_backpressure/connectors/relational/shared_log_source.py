"""What logs that several tables of a database share have in common as sources: they have windows only."""

from typing import Any

from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.snapshot.bounds import Bounds
from airflow_provider_backpressure.core.snapshot.plan import Plan, Snapshot
from airflow_provider_backpressure.core.snapshot.spark_messages import ReadSpec, Window
from airflow_provider_backpressure.exceptions import SourceRefused


class StreamSource:
    """A log as the source of a hydration of its own. What is asked of rows is asked of its tables' own sources."""

    identity: str
    kind: str
    """Of its reader."""
    _declared: Any
    _position: Any
    """Returns the server's position in its log."""

    def snapshot(
        self,
        consistency: Consistency | None = None,
        *,
        after: str | None = None,
        previous: Window | None = None,
        counted: bool = True,
    ) -> Snapshot:
        """See :meth:`..core.ports.Source.snapshot`: there is nothing but the log."""
        return Snapshot(
            source_identity=self.identity,
            columns=(),
            key=(),
            split=(),
            unique=False,
            frontier={},
            total=0,
            total_exact=True,
            row_bytes=0.0,
            consistency=Consistency.CATCH_UP,
            position=self._position(),
        )

    def read_spec(self, snapshot: Snapshot) -> ReadSpec:
        return ReadSpec(kind=self.kind, conn_id=self._declared.conn_id, columns=snapshot.columns)

    def check_range(self, plan: Plan, bounds: Bounds) -> None:
        """Refuse: a window is not read again by itself."""
        raise SourceRefused(f"Windows of {self.identity} are replayed one after another, and none by itself.")
