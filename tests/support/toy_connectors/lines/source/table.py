"""A text file as a source, opened: cut by line numbers."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.health_signal_declarations import Watched
from airflow_provider_backpressure.core.ports import ChangeLog, Health, Keeper, Unread
from airflow_provider_backpressure.core.progress.source_position import Unit, Upstream
from airflow_provider_backpressure.core.snapshot.bounds import Bounds, KeyBounds, Values, cover, cut
from airflow_provider_backpressure.core.snapshot.plan import Plan, Snapshot
from airflow_provider_backpressure.core.snapshot.ranges import PlannedRange, number_ranges
from airflow_provider_backpressure.core.snapshot.schema_change import check_columns
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, ReadSpec, Slice, Window
from airflow_provider_backpressure.exceptions import SourceRefused

COLUMNS = (Column(name="line", type="bigint", nullable=False), Column(name="text", type="text"))


@dataclass(kw_only=True)
class LinesTable:
    """Implements ``Source``."""

    conn_id: str
    path: str
    modules: tuple[str, ...] = ()
    increments: bool = False
    increment_column: str | None = None

    @property
    def identity(self) -> str:
        return f"lines://{self.path}"

    def snapshot(
        self,
        consistency: Consistency | None = None,
        *,
        after: str | None = None,
        previous: Window | None = None,
        counted: bool = True,
    ) -> Snapshot:
        lines = self._count()
        return Snapshot(
            source_identity=self.identity,
            columns=COLUMNS,
            key=("line",),
            split=("line",),
            unique=True,
            frontier={self.identity: lines},
            total=lines,
            total_exact=True,
            row_bytes=20.0,
            consistency=consistency or Consistency.STATIC,
        )

    def ranges(self, snapshot: Snapshot, *, rows: int, bytes: int) -> Iterator[PlannedRange]:
        cuts = ((str(at),) for at in range(rows, snapshot.total or 0, rows))
        return number_ranges(cover(("line",), cuts), rows=rows, row_bytes=snapshot.row_bytes)

    def cut(self, read: ReadSpec, bounds: Bounds, *, parts: int) -> Sequence[Bounds]:
        assert isinstance(bounds, KeyBounds)
        start, end = (
            int(edge[0]) if edge else other for edge, other in ((bounds.start, 0), (bounds.end, self._count()))
        )
        return list(cut(bounds, ((str(start + (end - start) * part // parts),) for part in range(1, parts))))

    def in_order(self, read: ReadSpec, columns: Sequence[str], values: Sequence[Values]) -> list[Values]:
        return sorted(values, key=lambda value: int(value[0]))

    def keep(self, plan: Plan) -> Keeper:
        raise SourceRefused("A text file has no snapshots.")

    def read_spec(self, snapshot: Snapshot) -> ReadSpec:
        return ReadSpec(kind="lines", conn_id=self.conn_id, columns=snapshot.columns)

    def slice(self, read: ReadSpec, bounds: Bounds, slice_id: str) -> Slice:
        assert isinstance(bounds, KeyBounds)
        edges = [int(edge[0]) if edge else None for edge in (bounds.start, bounds.end)]
        return Slice(slice_id=slice_id, query=json.dumps([self.path, *edges]), bounds=bounds.to_json())

    def check_range(self, plan: Plan, bounds: Bounds) -> None:
        check_columns(plan, {column.name: column.type for column in COLUMNS}, self.identity)

    def log(self, hydration_id: str) -> ChangeLog:
        raise SourceRefused("A text file has no log.")

    def health(self, watched: Sequence[Watched], *, seconds: float, unread: Unread | None = None) -> Health:
        raise SourceRefused("A text file has no health.")

    def upstream(self) -> Upstream:
        return Upstream(unit=Unit.ROWS, at={self.identity: self._count()})

    def close(self) -> None:
        """Nothing is open."""

    def _count(self) -> int:
        return len(Path(self.path).read_text().splitlines())
