"""What is so of every table of files, whether a task or Spark's own connector writes it."""

from collections.abc import Sequence

from airflow_provider_backpressure.connectors.lake.last_row_per_key import of_window
from airflow_provider_backpressure.connectors.lake.markers import Holder
from airflow_provider_backpressure.core.health_signal_declarations import Watched
from airflow_provider_backpressure.core.ports import Health
from airflow_provider_backpressure.core.snapshot.bounds import Bounds
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, Window, WriteSpec
from airflow_provider_backpressure.exceptions import SinkRefused


class FilesTarget:
    """Base of the sinks of tables of files: an attempt holds no connection, and no server counts its rows."""

    modules: tuple[str, ...] = ()

    def find_holder(self) -> Holder | None:
        """Return the plan that holds the table."""
        raise NotImplementedError

    def epoch(self, plan_id: str) -> int | None:
        holder = self.find_holder()
        return holder.epoch if holder is not None and holder.plan_id == plan_id else None

    def end_attempts(self, plan_id: str, slice_id: str) -> int:
        """See :meth:`..core.ports.Sink.end_attempts`: an attempt ends with its Spark job."""
        return 0

    def rows_in_flight(self, plan_id: str) -> dict[str, int]:
        """See :meth:`..core.ports.Sink.rows_in_flight`: not known of files that grow."""
        return {}

    def activities(self, plan_id: str) -> None:
        """See :meth:`..core.ports.Sink.activities`: not known of files that grow."""

    def scan_queries(self, write: WriteSpec, bounds: Bounds, window: Window | None, *, parts: int) -> tuple[str, ...]:
        return ()

    def publish(self, plan: Plan) -> None:
        """See :meth:`..core.ports.Sink.publish`: there is no ``replace`` here."""

    def health(self, watched: Sequence[Watched], *, seconds: float) -> Health:
        """Raise ``SinkRefused``: files have no server."""
        raise SinkRefused(
            f"A table of files has no server whose {watched[0].kind} could be watched: leave {watched[0].name} out, or "
            "watch a database by its conn_id."
        )


def check_key(name: str, key: Sequence[str], columns: Sequence[Column]) -> None:
    """Raise ``SinkRefused`` for an upsert without a key, or by columns that do not arrive."""
    if not key:
        raise SinkRefused(
            f"{name} cannot be upserted without a key, and its source has none: declare key= of the sink."
        )
    missing = [each for each in key if each not in {column.name for column in columns}]
    if missing:
        raise SinkRefused(f"The key of {name} has columns that do not arrive: {', '.join(missing)}.")


def check_window(name: str, write: WriteSpec, window: Window | None) -> None:
    """Raise ``SinkRefused`` where the table lacks a column by which the rows of a window are found."""
    lacking = set(of_window(window)) - {column.name for column in write.columns} if window else ()
    if lacking:
        raise SinkRefused(
            f"{name} has no column {', '.join(sorted(lacking))}, by which rows of this plan are found beside those of "
            "earlier ones: keep it, or use verify='none'."
        )
