"""The sink in memory."""

import json
import threading
from bisect import bisect_left
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from airflow_provider_backpressure.core.capacity.saturation_curve import format_suffix
from airflow_provider_backpressure.core.config import Log, Mode
from airflow_provider_backpressure.core.health_signal_declarations import Figure, Watched
from airflow_provider_backpressure.core.ports.sink import Activity, Marker, PlanRow
from airflow_provider_backpressure.core.snapshot.bounds import Bounds, KeyBounds, check_marked
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, RangeSpec, Slice, Window, WriteSpec
from airflow_provider_backpressure.exceptions import (
    ALLOW_DELETES,
    BackpressureError,
    PlanOutdated,
    PlanSuperseded,
    RangeFailed,
    SinkRefused,
)


@dataclass(kw_only=True)
class MemoryHealth:
    """Sees what a test says: a figure or an error by the name of each signal; without one it is 0.

    Implements ``Health``.
    """

    figures: dict[str, float | BackpressureError]
    watched: Sequence[Watched]
    closed: bool = False

    @property
    def key(self) -> Hashable:
        return id(self.figures)

    def look(self) -> dict[Watched, Figure | BackpressureError]:
        found = {each: self.figures.get(each.name, 0.0) for each in self.watched}
        return {
            each: value if isinstance(value, BackpressureError) else Figure(value=value)
            for each, value in found.items()
        }

    def close(self) -> None:
        self.closed = True


COLUMNS = (Column(name="id", type="bigint", nullable=False),)


def query_of(bounds: Bounds | None, window: Window | None) -> str:
    """Return what selects keys here: the least and the first too large one, and the window."""
    bounds = bounds or KeyBounds(columns=("id",), start=None, end=None)
    assert isinstance(bounds, KeyBounds), "what this module cuts"
    ends = [None if values is None else int(values[0]) for values in (bounds.start, bounds.end)]
    return json.dumps([*ends, None if window is None else [window.after, window.upto]])


def select_keys(keys: Sequence[int], query: str) -> list[int]:
    """Return those of the ascending keys that a query selects, in order."""
    start, end, window = json.loads(query)
    first = 0 if start is None else bisect_left(keys, start)
    last = len(keys) if end is None else bisect_left(keys, end)
    return [key for key in keys[first:last] if window is None or in_window(key, *window)]


def in_window(key: int, after: str | None, upto: str) -> bool:
    """Whether a key lies above the lower end of a window, and not above its upper one."""
    return (after is None or key > int(after)) and key <= int(upto)


def checksum_of(keys: Sequence[int]) -> str:
    """Return a checksum that the order of the keys does not change."""
    return f"memory:{sum(map(_hash_key, keys)) % 2**64:016x}"


def _hash_key(key: int) -> int:
    """Return a number whose sums differ where the keys do: sums of the keys themselves are often equal."""
    mixed = (key * 0x9E3779B97F4A7C15 + 1) % 2**64
    return (mixed ^ (mixed >> 29)) * 0xBF58476D1CE4E5B9 % 2**64


@dataclass(kw_only=True)
class MemorySink:
    """A keyless target: rows are a list, so that a doubled row shows. ``replace`` fills another first.

    Implements ``Sink``.
    """

    modules: tuple[str, ...] = ()
    modes: tuple[Mode, ...] = tuple(Mode)

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
    files: str = "file"
    """Names what holds the rows."""
    confirmed: dict[str, int] = field(default_factory=dict)
    """Rows of ranges that did not change, by plan."""
    confirmations: dict[str, int] = field(default_factory=dict)
    """Epochs under which they were confirmed, by plan."""
    deleted: dict[str, int] = field(default_factory=dict)
    """Rows that ``mirror`` has deleted, by plan."""
    name: str = "rows"
    beside: dict[str, "MemoryScratch"] = field(default_factory=dict)
    """Targets of probes that are there, by name."""
    _markers: dict[tuple[str, str], Marker] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def fit(self, columns: Sequence[Column], *, mode: str, key: Sequence[str], log: Log | None = None) -> WriteSpec:
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
        self.widened += [column.name for column in columns]

    def prepare(self, write: WriteSpec) -> None:
        """See ``Sink.prepare``."""

    def holds_rows(self) -> bool:
        return bool(self.rows)

    def begin(self, plan: Plan, *, clear: str | None = None) -> int:
        with self._lock:
            taken = plan.check_turn(self.plan.plan_id if self.plan is not None else None)
            if clear is not None and plan.mode is Mode.APPEND and not taken:
                self.rows.clear()
            self.last_epoch += 1
            self.plan = plan
            if not taken:
                self.shadow = [] if plan.mode is Mode.REPLACE else None
            return self.last_epoch

    def renew(self, plan_id: str) -> int | None:
        with self._lock:
            if self.plan is None or self.plan.plan_id != plan_id:
                return None
            self.last_epoch += 1
            return self.last_epoch

    def epoch(self, plan_id: str) -> int | None:
        return self.last_epoch if self.plan is not None and self.plan.plan_id == plan_id else None

    def held(self) -> PlanRow | None:
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
                check_marked(known.bounds, piece.bounds, slice_id=piece.slice_id, plan_id=spec.plan_id)
                if known.epoch >= spec.since:
                    return known
                if known.epoch != spec.replaces:
                    raise RangeFailed(f"Slice {piece.slice_id} was committed in an earlier snapshot.")
            if spec.corrects:
                self._check_own_rows(spec, piece)
            if spec.write.mode == Mode.MIRROR or spec.corrects:
                self._exchange(spec, set(select_keys(sorted(self._written), piece.query)), keys)
            else:
                self._written.extend(keys)
            marker = Marker(
                plan_id=spec.plan_id,
                slice_id=piece.slice_id,
                epoch=spec.epoch,
                attempt=spec.attempt,
                bounds=piece.bounds,
                rows=len(keys),
                bytes=8 * len(keys),
                checksum=checksum_of(keys),
                committed_at=datetime.now(UTC),
            )
            self._markers[spec.plan_id, piece.slice_id] = marker
            return marker

    def _check_own_rows(self, spec: RangeSpec, piece: Slice) -> None:
        held, last = select_keys(sorted(self._written), piece.query), spec.last_write
        if last is None or (len(held), checksum_of(held)) != (last.rows, last.checksum):
            raise PlanOutdated(f"The rows of slice {piece.slice_id} are not those of plan {spec.plan_id}.")

    def _exchange(self, spec: RangeSpec, held: set[int], keys: Sequence[int]) -> None:
        """Let a range's keys take the place of those that are held, where the plan may delete so many."""
        deleted = self.deleted.get(spec.plan_id, 0) + len(held.difference(keys))
        if spec.write.most_deleted is not None and deleted > spec.write.most_deleted:
            raise SinkRefused(
                f"Range {spec.seq} would delete more than Budget(max_deletes=...) allows: {ALLOW_DELETES}."
            )
        self.deleted[spec.plan_id] = deleted
        self._written[:] = [*(key for key in self._written if key not in held), *keys]

    def markers(self, plan_id: str, slice_ids: Sequence[str] | None = None) -> dict[str, Marker]:
        with self._lock:
            if slice_ids is not None:
                found = ((key, self._markers.get((plan_id, key))) for key in slice_ids)
                return {key: marker for key, marker in found if marker is not None}
            return {key: marker for (plan, key), marker in self._markers.items() if plan == plan_id}

    def end_attempts(self, plan_id: str, slice_id: str) -> int:
        self.ended.append(slice_id)
        return 0

    def rows_in_flight(self, plan_id: str) -> dict[str, int]:
        return {}

    def activities(self, plan_id: str) -> dict[str, Activity]:
        return {}

    def slice_query(self, write: WriteSpec, bounds: Bounds | None, window: Window | None = None) -> str:
        return query_of(bounds, window)

    def read(self, query: str) -> list[int]:
        """Return the keys that a slice query selects."""
        with self._lock:
            return select_keys(sorted(self._written), query)

    def scan_queries(self, write: WriteSpec, bounds: Bounds, window: Window | None, *, parts: int) -> tuple[str, ...]:
        return ()

    def find_surplus(self, plan: Plan) -> str:
        if plan.mode is Mode.UPSERT or plan.increment:
            return ""
        held = len(self._written)
        written = sum(marker.rows for marker in self.markers(plan.plan_id).values())
        written += self.confirmed.get(plan.plan_id, 0)
        way = "remove the others, or empty the table and plan again"
        return f"{self.name} holds {held} rows, and the plan wrote {written} of them: {way}" if held > written else ""

    def read_quarantine(self, plan: Plan, slice_id: str) -> tuple[str, ...]:
        """See ``Sink.read_quarantine``: no row is refused here."""
        return ()

    def check_history(self) -> None:
        """See ``Sink.check_history``: nothing to do."""

    def discard(self, plan: Plan, slice_id: str, bounds: Bounds) -> int:
        with self._lock:
            if self.epoch(plan.plan_id) is None:
                raise PlanSuperseded(f"Plan {plan.plan_id} no longer holds the target.")
            gone = set(select_keys(sorted(self._written), query_of(bounds, None)))
            number = sum(key in gone for key in self._written)
            self._written[:] = [key for key in self._written if key not in gone]
            self._markers.pop((plan.plan_id, slice_id), None)
            if plan.mode is Mode.MIRROR:
                kept = {key: each for key, each in self._markers.items() if not each.has_bounds(bounds)}
                self._markers = kept
            return number

    def revoke(self, plan: Plan, slice_id: str, bounds: Bounds) -> bool:
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

    def prune(self, plan: Plan, plan_ids: Sequence[str]) -> int:
        with self._lock:
            if self.epoch(plan.plan_id) is None:
                raise PlanSuperseded(f"Plan {plan.plan_id} no longer holds the target.")
            kept = (plan.plan_id, plan.held_by)
            gone = [key for key in self._markers if key[0] in plan_ids and key[0] not in kept]
            for key in gone:
                del self._markers[key]
            return len(gone)

    def complete(self, plan: Plan) -> None:
        """See ``Sink.complete``."""

    def publish(self, plan: Plan) -> None:
        if plan.mode is not Mode.REPLACE:
            return
        with self._lock:
            if self.epoch(plan.plan_id) != plan.epoch:
                raise PlanSuperseded(f"Plan {plan.plan_id} no longer holds the target.")
            if self.shadow is not None:
                self.rows, self.shadow = self.shadow, None

    def scratch(self, digits: str, *, indexes: bool = True) -> "MemoryScratch":
        name, identity = self.name + format_suffix(digits), self.identity + format_suffix(digits)
        return self.beside.get(name) or MemoryScratch(identity=identity, name=name, of=self)

    def mirror(self, write: WriteSpec | None = None) -> "MemoryMirror":
        return MemoryMirror(sink=self)

    def traces(self) -> tuple[str, ...]:
        beside = [f"{name}: filled by a probe of {self.name}" for name in self.beside]
        return (*([f"the plan of {self.name}"] if self.plan is not None else ()), *beside)

    def erase(self) -> None:
        with self._lock:
            self.plan = self.shadow = None
            self._markers.clear()
            self.beside.clear()

    @property
    def _written(self) -> list[int]:
        return self.rows if self.shadow is None else self.shadow

    def health(self, watched: Sequence[Watched], *, seconds: float) -> MemoryHealth:
        return MemoryHealth(figures=self.figures, watched=watched)

    def close(self) -> None:
        """See ``Sink.close``."""


@dataclass(kw_only=True)
class MemoryScratch(MemorySink):
    """A target beside another one, which is there from ``prepare`` until it is dropped.

    Implements ``Sink`` and ``ScratchSink``.
    """

    of: MemorySink

    def prepare(self, write: WriteSpec) -> None:
        self.of.beside[self.name] = self

    def drop(self, plan_id: str) -> None:
        if self.plan is not None and self.plan.plan_id != plan_id:
            raise SinkRefused(f"{self.name} is held by plan {self.plan.plan_id}: it is not dropped.")
        self.of.beside.pop(self.name, None)


@dataclass(frozen=True, kw_only=True)
class MemoryMirror:
    """Implements ``MirrorTarget``."""

    sink: MemorySink

    def check(self, write: WriteSpec, split: Sequence[str]) -> None:
        """See ``MirrorTarget.check``: integers are ordered alike."""

    def rows(self, near: int | None = None) -> int:
        return len(self.sink.rows)

    def files(self) -> str:
        return self.sink.files

    def count_deleted(self, plan_id: str) -> int:
        return self.sink.deleted.get(plan_id, 0)

    def writes(self, since: int) -> list[Marker]:
        found: dict[str, Marker] = {}
        for marker in self.sink._markers.values():
            if marker.epoch >= since and not marker.revoked:
                found[json.dumps(dict(marker.bounds))] = marker
        return list(found.values())

    def confirm(self, plan: Plan, *, rows: int) -> None:
        if plan.files != self.sink.files:
            raise SinkRefused(f"The rows of {self.sink.name} lie in other files than when the plan was made.")
        self.sink.confirmed[plan.plan_id] = rows
        self.sink.confirmations[plan.plan_id] = plan.epoch

    def find_confirmation(self, plan_id: str) -> int:
        return self.sink.confirmations.get(plan_id, 0)

    def check_rewrites(self, write: WriteSpec, key: Sequence[str], split: Sequence[str]) -> None:
        """See ``MirrorTarget.check_rewrites``: by what it fits."""
        if write.mode in (Mode.APPEND, Mode.UPSERT):
            fitted = self.sink.fit(write.columns, mode=Mode.MIRROR, key=key)
            if set(fitted.key) != set(key):
                raise SinkRefused("The target is declared with another key.")

    def index_ranges(self, key: Sequence[str]) -> None:
        """See ``MirrorTarget.index_ranges``: nothing to do."""


class ManualClock:
    """A clock that moves only by ``sleep`` or when a test moves it; ``on_sleep`` lets a test act meanwhile.

    Implements ``Clock``.
    """

    def __init__(self, on_sleep: Callable[[float], None] | None = None) -> None:
        self.now = 0.0
        self.on_sleep = on_sleep

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        """Move on without waiting."""
        self.now += seconds
        if self.on_sleep:
            self.on_sleep(seconds)
