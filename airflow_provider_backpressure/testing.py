"""In-memory implementations of the ports, for tests of this package and of those who build on it.

They keep the contracts of :mod:`airflow_provider_backpressure.core.ports`; the conformance suites run over them too.
"""

import json
import threading
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from airflow_provider_backpressure.core.bounds import Bounds, KeyBounds, Values, cover, cut
from airflow_provider_backpressure.core.config import Consistency, Mode
from airflow_provider_backpressure.core.messages import (
    ChecksumSpec,
    Column,
    RangeResult,
    RangeSpec,
    ReadSpec,
    Slice,
    SliceResult,
    Transform,
    Window,
    WriteSpec,
)
from airflow_provider_backpressure.core.ports import ChangeLog, ExecutorEnvironment, Marker, PlanRow, Unread
from airflow_provider_backpressure.core.probe import ending
from airflow_provider_backpressure.core.ranges import PlannedRange, numbered
from airflow_provider_backpressure.core.signals import MemoryReading
from airflow_provider_backpressure.core.snapshot import Plan, Snapshot
from airflow_provider_backpressure.core.upstream import Unit, Upstream
from airflow_provider_backpressure.core.watched import Figure, Watched
from airflow_provider_backpressure.exceptions import (
    BackpressureError,
    PlanSuperseded,
    RangeFailed,
    SinkRefused,
    SnapshotLost,
    SourceRefused,
)
from airflow_provider_backpressure.ledger.memory import MemoryLedger as MemoryLedger

COLUMNS = (Column(name="id", type="bigint", nullable=False),)


class ManualClock:
    """A clock that moves only when it is slept on or told to; ``on_sleep`` lets a test act meanwhile."""

    def __init__(self, on_sleep: Callable[[float], None] | None = None) -> None:
        self.now = 0.0
        self.on_sleep = on_sleep

    def monotonic(self) -> float:
        """See ``Clock.monotonic``."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Move on without waiting."""
        self.now += seconds
        if self.on_sleep:
            self.on_sleep(seconds)


def _query(bounds: Bounds | None, window: Window | None) -> str:
    """Return what selects keys here: the least and the first too large one, and the window."""
    bounds = bounds or KeyBounds(columns=("id",), start=None, end=None)
    assert isinstance(bounds, KeyBounds), "what this module cuts"
    ends = [None if values is None else int(values[0]) for values in (bounds.start, bounds.end)]
    return json.dumps([*ends, None if window is None else [window.after, window.upto]])


def _selected(keys: Sequence[int], query: str) -> list[int]:
    """Return those of the ascending keys that a query selects, in order."""
    start, end, window = json.loads(query)
    first = 0 if start is None else bisect_left(keys, start)
    last = len(keys) if end is None else bisect_left(keys, end)
    return [key for key in keys[first:last] if window is None or _in_window(key, *window)]


def _in_window(key: int, after: str | None, upto: str) -> bool:
    return (after is None or key > int(after)) and key <= int(upto)


def _checksum(keys: Sequence[int]) -> str:
    return f"memory:{sum(key * 2654435761 + 1 for key in keys) % 2**64:016x}"


@dataclass(kw_only=True)
class MemoryKeeper:
    """A snapshot that is kept until it is closed, or lost because a test says so."""

    snapshot: str
    lost: bool = False
    closed: bool = False

    def check(self) -> None:
        """See ``Keeper.check``."""
        if self.lost or self.closed:
            raise SnapshotLost(f"The snapshot {self.snapshot} is gone.")

    def close(self) -> None:
        """See ``Keeper.close``."""
        self.closed = True


@dataclass(kw_only=True)
class MemoryHealth:
    """Sees what a test says: a figure or an error by the name of each signal; without one it is 0."""

    figures: dict[str, float | BackpressureError]
    watched: Sequence[Watched]
    closed: bool = False

    @property
    def key(self) -> Hashable:
        """See ``Health.key``."""
        return id(self.figures)

    def look(self) -> dict[Watched, Figure | BackpressureError]:
        """See ``Health.look``."""
        found = {each: self.figures.get(each.name, 0.0) for each in self.watched}
        return {
            each: value if isinstance(value, BackpressureError) else Figure(value=value)
            for each, value in found.items()
        }

    def close(self) -> None:
        """See ``Health.close``."""
        self.closed = True


@dataclass(kw_only=True)
class MemorySource:
    """A table of one integer key, given in ascending order."""

    modules: tuple[str, ...] = ()

    keys: Sequence[int]
    identity: str = "memory://source"
    columns: tuple[Column, ...] = COLUMNS
    increments: bool = False
    """Read later runs by the key itself, as a rising column."""
    keepers: list[MemoryKeeper] = field(default_factory=list)
    """Every snapshot that was ever kept, in order."""
    figures: dict[str, float | BackpressureError] = field(default_factory=dict)
    """What a look at its health sees, by the signal's name."""
    asked: int = 0
    """How often it was asked how far it is."""

    def snapshot(self, consistency: Consistency | None = None, *, after: str | None = None) -> Snapshot:
        """See ``Source.snapshot``."""
        keys = [key for key in self.keys if after is None or key > int(after)]
        upto = str(max(keys)) if keys else after
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
            window=Window(column="id", after=after, upto=upto) if self.increments and upto is not None else None,
        )

    def ranges(self, snapshot: Snapshot, *, rows: int, bytes: int) -> Iterator[PlannedRange]:
        """See ``Source.ranges``."""
        window = snapshot.window
        keys = [key for key in self.keys if window is None or _in_window(key, window.after, window.upto)]
        if not keys:
            return iter(())
        boundaries = ((str(keys[at]),) for at in range(rows, len(keys), rows))
        return numbered(cover(("id",), boundaries), rows=rows, row_bytes=snapshot.row_bytes)

    def cut(self, read: ReadSpec, bounds: Bounds, *, parts: int) -> Sequence[Bounds]:
        """See ``Source.cut``."""
        assert isinstance(bounds, KeyBounds), "what this module cuts"
        keys = self.read(_query(bounds, read.window))
        step = -(-len(keys) // parts)
        return list(cut(bounds, ((str(key),) for key in keys[step::step]))) if step else [bounds]

    def in_order(self, read: ReadSpec, columns: Sequence[str], values: Sequence[Values]) -> list[Values]:
        """See ``Source.in_order``."""
        return sorted(values, key=lambda value: int(value[0]))

    def keep(self, plan: Plan) -> MemoryKeeper:
        """See ``Source.keep``."""
        self.keepers.append(MemoryKeeper(snapshot=f"memory-{len(self.keepers)}"))
        return self.keepers[-1]

    def read_spec(self, snapshot: Snapshot) -> ReadSpec:
        """See ``Source.read_spec``."""
        return ReadSpec(kind="memory", conn_id="source", columns=snapshot.columns, window=snapshot.window)

    def slice(self, read: ReadSpec, bounds: Bounds, slice_id: str) -> Slice:
        """See ``Source.slice``."""
        return Slice(slice_id=slice_id, query=_query(bounds, read.window), bounds=bounds.to_json())

    def read(self, query: str) -> list[int]:
        """Return the keys that a slice's query selects."""
        return _selected(self.keys, query)

    def log(self, hydration_id: str) -> ChangeLog:
        """See ``Source.log``."""
        raise SourceRefused("The memory source has no log to be replayed.")

    def health(self, watched: Sequence[Watched], *, seconds: float, unread: Unread | None = None) -> MemoryHealth:
        """See ``Source.health``."""
        return MemoryHealth(figures=self.figures, watched=watched)

    def upstream(self) -> Upstream:
        """See ``Source.upstream``. The rows there are; each question is counted in ``asked``."""
        self.asked += 1
        return Upstream(unit=Unit.ROWS, at={self.identity: len(self.keys)})

    def close(self) -> None:
        """See ``Source.close``."""


@dataclass(kw_only=True)
class MemorySink:
    """A keyless target: rows are a list, so that a doubled row shows. ``replace`` fills another first."""

    modules: tuple[str, ...] = ()

    identity: str = "memory://sink"
    rows: list[int] = field(default_factory=list)
    plan: Plan | None = None
    last_epoch: int = 0
    shadow: list[int] | None = None
    """Rows of a plan that replaces the target, until it is published."""
    widened: list[str] = field(default_factory=list)
    """Names of the columns that were added, in order."""
    ended: list[str] = field(default_factory=list)
    """Slices whose attempts were ended, in order."""
    figures: dict[str, float | BackpressureError] = field(default_factory=dict)
    """What a look at its health sees, by the signal's name."""
    name: str = "rows"
    beside: dict[str, "MemoryScratch"] = field(default_factory=dict)
    """Targets of probes that are there, by name."""
    _markers: dict[tuple[str, str], Marker] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def fit(self, columns: Sequence[Column], *, mode: str, key: Sequence[str], replayed: bool = False) -> WriteSpec:
        """See ``Sink.fit``."""
        if any(column.type != "bigint" for column in columns):
            raise SinkRefused("The memory sink takes bigint columns only.")
        return WriteSpec(
            kind="memory",
            conn_id="sink",
            target=self.name,
            columns=tuple(columns),
            mode=mode,
            key=tuple(key),
            plan_table="plan",
            commit_table="commit",
            fence=self.name,
        )

    def widen(self, columns: Sequence[Column]) -> None:
        """See ``Sink.widen``."""
        self.widened += [column.name for column in columns]

    def prepare(self, write: WriteSpec) -> None:
        """See ``Sink.prepare``."""

    def holds_rows(self) -> bool:
        """See ``Sink.holds_rows``."""
        return bool(self.rows)

    def begin(self, plan: Plan, *, clear: str | None = None) -> int:
        """See ``Sink.begin``."""
        with self._lock:
            if clear is not None and plan.mode is Mode.APPEND:
                self.rows.clear()
            self.last_epoch += 1
            self.plan = plan
            self.shadow = [] if plan.mode is Mode.REPLACE else None
            return self.last_epoch

    def renew(self, plan_id: str) -> int | None:
        """See ``Sink.renew``."""
        with self._lock:
            if self.plan is None or self.plan.plan_id != plan_id:
                return None
            self.last_epoch += 1
            return self.last_epoch

    def epoch(self, plan_id: str) -> int | None:
        """See ``Sink.epoch``."""
        return self.last_epoch if self.plan is not None and self.plan.plan_id == plan_id else None

    def held(self) -> PlanRow | None:
        """See ``Sink.held``."""
        plan = self.plan
        if plan is None:
            return None
        committed = sum(not marker.revoked for marker in self.markers(plan.plan_id).values())
        return PlanRow(
            plan_id=plan.plan_id,
            epoch=self.last_epoch,
            source_identity=plan.source_identity,
            plan=plan,
            committed=committed,
        )

    def commit(self, spec: RangeSpec, piece: Slice, keys: Sequence[int]) -> Marker:
        """Make a slice's rows and marker visible in one step, or refuse: what a writer in Spark does."""
        with self._lock:
            if self.epoch(spec.plan_id) != spec.epoch:
                raise PlanSuperseded(f"Plan {spec.plan_id} no longer holds the target.")
            known = self._markers.get((spec.plan_id, piece.slice_id))
            if known is not None:
                if known.revoked:
                    raise PlanSuperseded(f"Slice {piece.slice_id} of plan {spec.plan_id} was revoked.")
                return known
            self._written.extend(keys)
            marker = Marker(
                plan_id=spec.plan_id,
                slice_id=piece.slice_id,
                epoch=spec.epoch,
                attempt=spec.attempt,
                bounds=piece.bounds,
                rows=len(keys),
                bytes=8 * len(keys),
                checksum=_checksum(keys),
                committed_at=datetime.now(UTC),
            )
            self._markers[spec.plan_id, piece.slice_id] = marker
            return marker

    def markers(self, plan_id: str, slice_ids: Sequence[str] | None = None) -> dict[str, Marker]:
        """See ``Sink.markers``."""
        with self._lock:
            if slice_ids is not None:
                found = ((key, self._markers.get((plan_id, key))) for key in slice_ids)
                return {key: marker for key, marker in found if marker is not None}
            return {key: marker for (plan, key), marker in self._markers.items() if plan == plan_id}

    def end_attempts(self, plan_id: str, slice_id: str) -> int:
        """See ``Sink.end_attempts``."""
        self.ended.append(slice_id)
        return 0

    def rows_in_flight(self, plan_id: str) -> dict[str, int]:
        """See ``Sink.rows_in_flight``."""
        return {}

    def slice_query(self, write: WriteSpec, bounds: Bounds | None, window: Window | None = None) -> str:
        """See ``Sink.slice_query``."""
        return _query(bounds, window)

    def read(self, query: str) -> list[int]:
        """Return the keys that a slice query selects."""
        with self._lock:
            return _selected(sorted(self._written), query)

    def discard(self, plan: Plan, slice_id: str, bounds: Bounds) -> int:
        """See ``Sink.discard``."""
        with self._lock:
            if self.epoch(plan.plan_id) is None:
                raise PlanSuperseded(f"Plan {plan.plan_id} no longer holds the target.")
            gone = set(_selected(sorted(self._written), _query(bounds, None)))
            number = sum(key in gone for key in self._written)
            self._written[:] = [key for key in self._written if key not in gone]
            self._markers.pop((plan.plan_id, slice_id), None)
            return number

    def revoke(self, plan: Plan, slice_id: str, bounds: Bounds) -> bool:
        """See ``Sink.revoke``."""
        with self._lock:
            if self.epoch(plan.plan_id) is None:
                raise PlanSuperseded(f"Plan {plan.plan_id} no longer holds the target.")
            revoked = Marker(
                plan_id=plan.plan_id,
                slice_id=slice_id,
                epoch=plan.epoch,
                attempt=0,
                bounds=bounds.to_json(),
                rows=0,
                bytes=0,
                checksum="",
                committed_at=datetime.now(UTC),
                revoked=True,
            )
            return self._markers.setdefault((plan.plan_id, slice_id), revoked).revoked

    def complete(self, plan: Plan) -> None:
        """See ``Sink.complete``."""

    def publish(self, plan: Plan) -> None:
        """See ``Sink.publish``."""
        if plan.mode is not Mode.REPLACE:
            return
        with self._lock:
            if self.epoch(plan.plan_id) != plan.epoch:
                raise PlanSuperseded(f"Plan {plan.plan_id} no longer holds the target.")
            if self.shadow is not None:
                self.rows, self.shadow = self.shadow, None

    def scratch(self, digits: str, *, indexes: bool = True) -> "MemoryScratch":
        """See ``Sink.scratch``."""
        name, identity = self.name + ending(digits), self.identity + ending(digits)
        return self.beside.get(name) or MemoryScratch(identity=identity, name=name, of=self)

    def traces(self) -> tuple[str, ...]:
        """See ``Sink.traces``."""
        beside = [f"{name}: filled by a probe of {self.name}" for name in self.beside]
        return (*([f"the plan of {self.name}"] if self.plan is not None else ()), *beside)

    def erase(self) -> None:
        """See ``Sink.erase``."""
        with self._lock:
            self.plan = self.shadow = None
            self._markers.clear()
            self.beside.clear()

    @property
    def _written(self) -> list[int]:
        return self.rows if self.shadow is None else self.shadow

    def health(self, watched: Sequence[Watched], *, seconds: float) -> MemoryHealth:
        """See ``Sink.health``."""
        return MemoryHealth(figures=self.figures, watched=watched)

    def close(self) -> None:
        """See ``Sink.close``."""


@dataclass(kw_only=True)
class MemoryScratch(MemorySink):
    """A target beside another one, which is there from ``prepare`` until it is dropped."""

    of: MemorySink

    def prepare(self, write: WriteSpec) -> None:
        """See ``Sink.prepare``."""
        self.of.beside[self.name] = self

    def drop(self, plan_id: str) -> None:
        """See ``ScratchSink.drop``."""
        if self.plan is not None and self.plan.plan_id != plan_id:
            raise SinkRefused(f"{self.name} is held by plan {self.plan.plan_id}: it is not dropped.")
        self.of.beside.pop(self.name, None)


@dataclass(kw_only=True)
class MemoryRunner:
    """Copies from a :class:`MemorySource` into a :class:`MemorySink`, at once or when a test says so."""

    source: MemorySource
    sink: MemorySink
    session_id: str = "memory-session"
    overhead_seconds: float = 0.0
    held: bool = False
    """Keep jobs pending until :meth:`complete`; else each is done when it is submitted."""
    reading: MemoryReading | None = field(
        default_factory=lambda: MemoryReading(used_bytes=0, limit_bytes=2**30, age_seconds=0.0)
    )
    failures: dict[int, list[Exception]] = field(default_factory=dict)
    """Errors to raise, by range, one per attempt, before the sink is written."""
    submitted: list[RangeSpec] = field(default_factory=list)
    interrupted: list[str] = field(default_factory=list)
    modules: Mapping[str, str | None] = field(
        default_factory=lambda: {"numpy": "2", "psycopg": "3", "pyarrow": "15", "xxhash": "3"}
    )
    _pending: list[tuple[RangeSpec, "Future[RangeResult]"]] = field(default_factory=list)

    def probe(self, modules: Sequence[str] = ()) -> ExecutorEnvironment:
        """See ``Runner.probe``."""
        return ExecutorEnvironment(python="3.11", modules=self.modules)

    def describe(self, read: ReadSpec, transform: Transform) -> tuple[Column, ...]:
        """See ``Runner.describe``."""
        return read.columns

    def run(self, spec: RangeSpec) -> "Future[RangeResult]":
        """See ``Runner.run``."""
        future: Future[RangeResult] = Future()
        self.submitted.append(spec)
        self._pending.append((spec, future))
        if not self.held:
            self.complete()
        return future

    def complete(self, count: int | None = None) -> int:
        """Carry out pending jobs, the oldest first, and return how many there were."""
        todo = self._pending[: len(self._pending) if count is None else count]
        del self._pending[: len(todo)]
        for spec, future in todo:
            self._carry_out(spec, future)
        return len(todo)

    def _carry_out(self, spec: RangeSpec, future: "Future[RangeResult]") -> None:
        errors = self.failures.get(spec.seq)
        if errors:
            future.set_exception(errors.pop(0))
            return
        try:
            results = tuple(self._copy(spec, piece) for piece in spec.slices)
        except (PlanSuperseded, RangeFailed) as error:
            future.set_exception(error)
            return
        future.set_result(RangeResult(plan_id=spec.plan_id, seq=spec.seq, attempt=spec.attempt, slices=results))

    def _copy(self, spec: RangeSpec, piece: Slice) -> SliceResult:
        sink = self.sink.beside.get(spec.write.fence, self.sink)
        marker = sink.commit(spec, piece, self.source.read(piece.query))
        return SliceResult(
            slice_id=piece.slice_id,
            rows=marker.rows,
            bytes=marker.bytes,
            checksum=marker.checksum,
            peak_memory_bytes=2**20,
        )

    def checksum(self, spec: ChecksumSpec) -> "Future[SliceResult]":
        """See ``Runner.checksum``; the connection id says whether source or sink is read."""
        side: Any = self.sink if spec.conn_id == "sink" else self.source
        keys = side.read(spec.query)
        future: Future[SliceResult] = Future()
        future.set_result(SliceResult(slice_id="", rows=len(keys), bytes=8 * len(keys), checksum=_checksum(keys)))
        return future

    def interrupt(self, session_id: str, tag: str) -> None:
        """See ``Runner.interrupt``: pending jobs of this tag never run."""
        self.interrupted.append(tag)
        self._pending = [(spec, future) for spec, future in self._pending if spec.tag != tag]

    def memory(self) -> MemoryReading | None:
        """See ``Runner.memory``."""
        return self.reading

    def close(self) -> None:
        """See ``Runner.close``."""
