"""The source in memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.health_signal_declarations import Watched
from airflow_provider_backpressure.core.ports import ChangeLog, Unread
from airflow_provider_backpressure.core.progress.source_position import Unit, Upstream
from airflow_provider_backpressure.core.snapshot.bounds import Bounds, KeyBounds, Values, cover, cut
from airflow_provider_backpressure.core.snapshot.plan import Plan, Snapshot
from airflow_provider_backpressure.core.snapshot.ranges import PlannedRange, number_ranges
from airflow_provider_backpressure.core.snapshot.schema_change import check_columns
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, ReadSpec, Slice, Window
from airflow_provider_backpressure.exceptions import BackpressureError, SnapshotLost, SourceRefused
from airflow_provider_backpressure.testing.sink import COLUMNS, MemoryHealth, in_window, query_of, select_keys


@dataclass(kw_only=True)
class MemoryKeeper:
    """A snapshot that is kept until it is closed, or lost because a test says so. Implements ``Keeper``."""

    snapshot: str
    lost: bool = False
    closed: bool = False

    def check(self) -> None:
        if self.lost or self.closed:
            raise SnapshotLost(f"The snapshot {self.snapshot} is gone.")

    def count(self) -> int | None:
        """See ``Keeper.count``. Not counted: the keys may change while they are read."""
        return None

    def close(self) -> None:
        self.closed = True


@dataclass(kw_only=True)
class MemorySource:
    """A table of one integer key, given in ascending order. Implements ``Source``."""

    modules: tuple[str, ...] = ()

    keys: Sequence[int]
    identity: str = "memory://source"
    columns: tuple[Column, ...] = COLUMNS
    increments: bool = False
    """Read later runs by the key itself, as a rising column."""
    increment_column: str | None = None
    """Another name under which the key is declared as the rising column."""
    keepers: list[MemoryKeeper] = field(default_factory=list)
    """Every snapshot that was ever kept, in order."""
    figures: dict[str, float | BackpressureError] = field(default_factory=dict)
    """What a look at its health sees, by the signal's name."""
    asked: int = 0
    """How often it was asked how far it is."""

    def snapshot(
        self,
        consistency: Consistency | None = None,
        *,
        after: str | None = None,
        previous: Window | None = None,
        counted: bool = True,
    ) -> Snapshot:
        keys = [key for key in self.keys if after is None or key > int(after)]
        upto = str(max(keys)) if keys else after
        column = self.increment_column or "id"
        return Snapshot(
            source_identity=self.identity,
            columns=self.columns,
            key=("id",),
            split=("id",),
            unique=True,
            frontier={self.identity: len(keys)},
            total=len(keys),
            total_exact=True,
            row_bytes=8.0,
            consistency=consistency or Consistency.STATIC,
            window=Window(column=column, after=after, upto=upto) if self.increments and upto is not None else None,
        )

    def ranges(self, snapshot: Snapshot, *, rows: int, bytes: int) -> Iterator[PlannedRange]:
        window = snapshot.window
        keys = [key for key in self.keys if window is None or in_window(key, window.after, window.upto)]
        if not keys:
            return iter(())
        boundaries = ((str(keys[at]),) for at in range(rows, len(keys), rows))
        return number_ranges(cover(("id",), boundaries), rows=rows, row_bytes=snapshot.row_bytes)

    def cut(self, read: ReadSpec, bounds: Bounds, *, parts: int) -> Sequence[Bounds]:
        assert isinstance(bounds, KeyBounds), "what this module cuts"
        keys = self.read(query_of(bounds, read.window))
        step = -(-len(keys) // parts)
        return list(cut(bounds, ((str(key),) for key in keys[step::step]))) if step else [bounds]

    def in_order(self, read: ReadSpec, columns: Sequence[str], values: Sequence[Values]) -> list[Values]:
        return sorted(values, key=lambda value: int(value[0]))

    def keep(self, plan: Plan) -> MemoryKeeper:
        self.keepers.append(MemoryKeeper(snapshot=f"memory-{len(self.keepers)}"))
        return self.keepers[-1]

    def read_spec(self, snapshot: Snapshot) -> ReadSpec:
        return ReadSpec(kind="memory", conn_id="source", columns=snapshot.columns, window=snapshot.window)

    def slice(self, read: ReadSpec, bounds: Bounds, slice_id: str) -> Slice:
        return Slice(slice_id=slice_id, query=query_of(bounds, read.window), bounds=bounds.to_json())

    def check_range(self, plan: Plan, bounds: Bounds) -> None:
        """See ``Source.check_range``. By the columns."""
        check_columns(plan, {column.name: column.type for column in self.columns}, self.identity)

    def read(self, query: str) -> list[int]:
        """Return the keys that a slice's query selects."""
        return select_keys(self.keys, query)

    def log(self, hydration_id: str) -> ChangeLog:
        raise SourceRefused("The memory source has no log to be replayed.")

    def health(self, watched: Sequence[Watched], *, seconds: float, unread: Unread | None = None) -> MemoryHealth:
        return MemoryHealth(figures=self.figures, watched=watched)

    def upstream(self) -> Upstream:
        """See ``Source.upstream``. The rows there are; each question is counted in ``asked``."""
        self.asked += 1
        return Upstream(unit=Unit.ROWS, at={self.identity: len(self.keys)})

    def close(self) -> None:
        """See ``Source.close``."""
