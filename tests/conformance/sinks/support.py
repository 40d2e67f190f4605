"""A plan begun on a sink, and attempts at its ranges."""

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow

from airflow_provider_backpressure.core.config import Consistency, Log, Mode
from airflow_provider_backpressure.core.ports.sink import Marker
from airflow_provider_backpressure.core.snapshot.bounds import KeyBounds
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.ranges import attempt_tag, slice_id
from airflow_provider_backpressure.core.snapshot.spark_messages import (
    RangeSpec,
    ReadSpec,
    Slice,
    SliceResult,
    Window,
    WriteSpec,
)
from airflow_provider_backpressure.spark.column_types import carrier
from airflow_provider_backpressure.spark.stream_end import END
from tests.conformance.sinks.cases import Case, opened


def batches(
    case: Case, ids: Sequence[int], *, word: str = "row", whole: bool = True, size: int = 4
) -> Iterator[pyarrow.RecordBatch]:
    """Yield rows as the frame path hands them over; not ``whole``: they break off before the end."""
    names = [f"{word} {key}" if key % 3 else None for key in ids]
    columns = [pyarrow.array(ids, pyarrow.int64()), pyarrow.array(names, pyarrow.string())][: len(case.columns)]
    schema = pyarrow.schema([(each.name, carrier(each.type)[0]) for each in case.columns] + [(END, pyarrow.bool_())])
    for at in range(0, len(ids), size):
        rows = [column.slice(at, size) for column in columns]
        yield pyarrow.record_batch([*rows, pyarrow.array([False] * len(rows[0]))], schema=schema)
    if whole:
        nulls = [pyarrow.nulls(1, field.type) for field in schema][:-1]
        yield pyarrow.record_batch([*nulls, pyarrow.array([True])], schema=schema)


def bounds(seq: int) -> KeyBounds:
    """The ids of a range: ten for each."""
    return KeyBounds.of_column(column="id", start=str(seq * 10), end=str(seq * 10 + 10))


def ids(seq: int) -> list[int]:
    """The ids in a range's bounds."""
    return list(range(seq * 10, seq * 10 + 10))


@dataclass(kw_only=True)
class Begun:
    """A plan that holds the target."""

    case: Case
    plan: Plan

    def spec(self, seq: int, *, attempt: int = 1, **changes: Any) -> RangeSpec:
        """The message of an attempt at a range."""
        key = slice_id(seq)
        spec = RangeSpec(
            hydration_id="h",
            plan_id=self.plan.plan_id,
            epoch=self.plan.epoch,
            seq=seq,
            attempt=attempt,
            tag=attempt_tag(self.plan.plan_id, key, attempt),
            path="frame",
            read=self.plan.read,
            write=self.plan.write,
            slices=(Slice(slice_id=key, query="", bounds=bounds(seq).to_json()),),
        )
        return replace(spec, **changes)

    def write(self, seq: int, *, word: str = "row", whole: bool = True, **changes: Any) -> SliceResult:
        """Make an attempt at a range."""
        return self.case.write(self.spec(seq, **changes), batches(self.case, ids(seq), word=word, whole=whole))

    def markers(self, *seqs: int) -> dict[str, Marker]:
        """The plan's markers, or those of these ranges, as a new process finds them."""
        with opened(self.case) as sink:
            return sink.markers(self.plan.plan_id, [slice_id(seq) for seq in seqs] if seqs else None)

    def read_back(self, seq: int | None, window: Window | None = None) -> SliceResult:
        """Count and hash a range, or all, by the sink's own query."""
        with opened(self.case) as sink:
            query = sink.slice_query(self.plan.write, None if seq is None else bounds(seq), window)
        return self.case.checksum(self.plan.write, query)


def begin(
    case: Case,
    *,
    mode: str = "append",
    clear: str | None = None,
    window: Window | None = None,
    plan_id: str = "",
    ranges: int | None = None,
    versions: tuple[str, ...] = (),
    fitted: Callable[[WriteSpec], WriteSpec] = lambda write: write,
    log: Log | None = None,
) -> Begun:
    """Let a new plan hold the target; ``fitted``: what the planner makes of the sink's answer."""
    with opened(case) as sink:
        write = fitted(sink.fit(case.columns, mode=mode, key=("id",), log=log))
        sink.prepare(write)
        plan = Plan(
            plan_id=plan_id or uuid.uuid4().hex,
            epoch=0,
            source_identity="test://source",
            sink_identity=sink.identity,
            consistency=Consistency.STATIC,
            mode=Mode(mode),
            frontier={"test://source": 100},
            fingerprint="f",
            total=100,
            total_exact=True,
            path="frame",
            read=ReadSpec(kind="test", conn_id="source", columns=case.columns, window=window),
            write=write,
            ranges=ranges,
            versions=versions,
        )
        return Begun(case=case, plan=replace(plan, epoch=sink.begin(plan, clear=clear)))


def expected(case: Case, *seqs: int, word: str = "row") -> list[tuple[int, str | None]]:
    """The rows of ranges as a plain reader should see them."""
    wide = len(case.columns) > 1
    return [(key, f"{word} {key}" if key % 3 and wide else None) for seq in sorted(seqs) for key in ids(seq)]
