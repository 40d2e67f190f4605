"""What sinks that know keys promise of a log's rows: they go in by its order, each once, and the last one wins."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow
import pytest

from airflow_provider_backpressure.core.config import Log as Kind
from airflow_provider_backpressure.core.snapshot.bounds import OffsetBounds
from airflow_provider_backpressure.core.snapshot.ranges import slice_id
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, RangeSpec, Slice, SliceResult
from airflow_provider_backpressure.core.snapshot.topic_offsets import (
    HIDDEN_PLACE,
    TOMBSTONE,
    LogWindow,
    find_place,
    order_by_log,
)
from airflow_provider_backpressure.exceptions import PlanSuperseded, RangeFailed, SinkRefused
from airflow_provider_backpressure.spark.column_types import carrier
from airflow_provider_backpressure.spark.stream_end import END
from tests.conformance.sinks.cases import Case, opened
from tests.conformance.sinks.support import Begun, begin

pytestmark = [
    pytest.mark.integration,
    pytest.mark.parametrize(
        "case",
        ["delta", "hadoop", "iceberg", "postgres"]
        + [pytest.param(kind, marks=pytest.mark.long) for kind in ("spark_delta", "spark_iceberg")],
        indirect=True,
    ),
]

COLUMNS = (
    Column(name="partition", type="integer", nullable=False),
    Column(name="offset", type="bigint", nullable=False),
    Column(name="headers", type="json"),
    Column(name="id", type="bigint"),
    Column(name="name", type="text"),
)
Record = tuple[int, int, int | None, str | None]
"""Partition, offset, key and value; a value of ``None`` is a tombstone."""
Pieces = Mapping[int, tuple[int, int]]


@dataclass(frozen=True, kw_only=True)
class Log:
    """A plan of a log's offsets that holds the target."""

    begun: Begun

    def spec(self, pieces: Pieces, *, seq: int = 0, attempt: int = 1, **changes: Any) -> RangeSpec:
        """The message of an attempt at these offsets."""
        bounds = OffsetBounds(pieces=tuple((part, *piece) for part, piece in pieces.items()), ordered=True)
        piece = Slice(slice_id=slice_id(seq), query="", bounds=bounds.to_json())
        return replace(self.begun.spec(seq, attempt=attempt), slices=(piece,), **changes)

    def write(self, pieces: Pieces, records: Sequence[Record], **changes: Any) -> SliceResult:
        """Make an attempt at these offsets."""
        return self.begun.case.write(self.spec(pieces, **changes), batches(records))


def log(case: Case, start: Mapping[int, int], end: Mapping[int, int], *, after: str | None = None) -> Log:
    """Let a plan of these offsets hold the target; ``after``: of those that have come since."""
    case.columns = COLUMNS
    window = LogWindow(topic="t", topic_id="i", start=start, end=end).window(after)
    return Log(begun=begin(case, mode="upsert", window=window, fitted=order_by_log, log=Kind.RECORDS))


def batches(records: Sequence[Record], size: int = 3, *, marked: bool = True) -> Iterator[pyarrow.RecordBatch]:
    """Yield records as the frame path hands them over; rows that are appended have no mark."""
    fields = [(each.name, carrier(each.type)[0]) for each in COLUMNS]
    schema = pyarrow.schema([*fields, (TOMBSTONE, pyarrow.bool_()), (END, pyarrow.bool_())])
    rows = [(part, at, "[]", key, value, value is None, False) for part, at, key, value in records]
    for chunk in [*(rows[at : at + size] for at in range(0, len(rows), size)), [(None,) * 6 + (True,)]]:
        columns = zip(*chunk, strict=True)
        batch = pyarrow.record_batch(
            [pyarrow.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
        )
        yield batch if marked else batch.drop_columns(TOMBSTONE)


@pytest.mark.statement("X1", "X6")
def test_the_last_record_of_a_key_wins_and_a_tombstone_deletes(case: Case) -> None:
    """X1, X6: within a range, over ranges, and over plans; what a marker says is what was read."""
    first = log(case, {0: 0, 1: 5}, {0: 20, 1: 9})
    records: list[Record] = [
        (0, 0, 1, "old"), (0, 1, 2, "stays"), (0, 2, 1, "new"), (0, 3, 3, "goes"), (0, 4, 3, None), (1, 5, 4, "there"),
        (0, 5, 5, "goes later"), (0, 6, 6, None),
    ]  # fmt: skip
    result = first.write({0: (0, 7), 1: (5, 6)}, records)
    assert result.rows == 8
    assert case.rows() == [(1, "new"), (2, "stays"), (4, "there"), (5, "goes later")]
    first.write({0: (7, 9), 1: (6, 8)}, [(0, 7, 5, None), (0, 8, 1, "newest"), (1, 6, 7, "seven")], seq=1)
    assert case.rows() == [(1, "newest"), (2, "stays"), (4, "there"), (7, "seven")]
    markers = first.begun.markers()
    assert [markers[key].rows for key in ("0.0", "1.0")] == [8, 3]
    assert markers["0.0"].checksum == result.checksum
    second = log(case, {0: 9, 1: 8}, {0: 10, 1: 8}, after="before")
    second.write({0: (9, 10)}, [(0, 9, 3, "again")])
    assert case.rows() == [(1, "newest"), (2, "stays"), (3, "again"), (4, "there"), (7, "seven")]


@pytest.mark.statement("X1", "X6")
def test_the_mark_makes_a_tombstone_and_not_what_its_columns_hold(case: Case) -> None:
    """X1, X6: a transform may fill the columns of a tombstone, and a record may have fields that are all NULL."""
    begun = log(case, {0: 0}, {0: 9})
    begun.write({0: (0, 2)}, [(0, 0, 1, "there"), (0, 1, 2, "there")])
    marks = {2: False, 3: True}
    given = []
    for batch in batches([(0, 2, 1, None), (0, 3, 2, "loaded now")]):
        at = batch.schema.get_field_index(TOMBSTONE)
        mark = pyarrow.array([marks.get(offset) for offset in batch["offset"].to_pylist()], pyarrow.bool_())
        given.append(batch.set_column(at, TOMBSTONE, mark))
    begun.begun.case.write(begun.spec({0: (2, 4)}, seq=1), given)
    assert case.rows() == [(1, None)]


@pytest.mark.statement("X1")
@pytest.mark.parametrize("left_out", [("partition", "offset"), ("offset",)])
def test_places_that_are_hidden_decide_and_are_not_in_the_target(case: Case, left_out: tuple[str, ...]) -> None:
    """X1: rows come mixed; a tombstone deletes, and a record without a key is named by its place."""
    case.columns = tuple(column for column in COLUMNS if column.name not in left_out)
    window = LogWindow(topic="t", topic_id="i", start={0: 0, 1: 0}, end={0: 9, 1: 9}).window(None)
    fitted = partial(order_by_log, place=find_place(case.columns))
    begun = Log(begun=begin(case, mode="upsert", window=window, fitted=fitted, log=Kind.RECORDS))

    def write(pieces: Pieces, *records: Record, seq: int) -> None:
        given = (hide(batch, left_out) for batch in batches(records))
        case.write(begun.spec(pieces, seq=seq), given)

    mixed: list[Record] = [(1, 1, 2, "last"), (0, 2, 1, "last"), (0, 0, 1, None), (0, 1, 2, "no"), (1, 0, 3, "goes")]
    write({0: (0, 3), 1: (0, 2)}, *mixed, seq=0)
    assert case.rows() == [(1, "last"), (2, "last"), (3, "goes")]
    write({1: (2, 4)}, (1, 3, 3, None), (1, 2, 3, "more"), seq=1)
    assert case.rows() == [(1, "last"), (2, "last")]
    with pytest.raises(SinkRefused, match="record at offset 4 of partition 1 has no id"):
        write({1: (4, 5)}, (1, 4, None, "lost"), seq=2)


def hide(batch: pyarrow.RecordBatch, left_out: Sequence[str]) -> pyarrow.RecordBatch:
    """Return a batch as a reader gives it that was not asked for these columns: behind the others, by other names."""
    kept = [name for name in batch.schema.names if name not in left_out]
    order = [*kept[:-2], *left_out, *kept[-2:]]
    hidden = {name: column.name for name, column in HIDDEN_PLACE.items()}
    return batch.select(order).rename_columns([hidden[name] if name in left_out else name for name in order])


@pytest.mark.statement("X1")
def test_places_decide_and_not_the_order_of_arrival(case: Case) -> None:
    """X1: partitions are read side by side, so rows come mixed; of two partitions the higher one wins."""
    begun = log(case, {0: 0, 1: 0}, {0: 9, 1: 9})
    begun.write({0: (0, 3), 1: (0, 2)}, [(1, 1, 2, "last"), (0, 2, 1, "last"), (0, 0, 1, None), (0, 1, 2, "no")])
    assert case.rows() == [(1, "last"), (2, "last")]


@pytest.mark.statement("X1")
def test_an_older_or_doubled_range_is_refused_by_the_sink(case: Case) -> None:
    """X1: whatever the gate does, each partition is taken from where it stands, and once."""
    begun = log(case, {0: 0}, {0: 9})
    with pytest.raises(RangeFailed, match=r"is not at offset 2 of partition 0"):
        begun.write({0: (2, 4)}, [(0, 2, 1, "early")], seq=1)
    assert case.rows() == []
    begun.write({0: (0, 2)}, [(0, 0, 1, "first")])
    begun.write({0: (2, 4)}, [(0, 2, 1, "second")], seq=1)
    again = begun.write({0: (0, 2)}, [(0, 0, 1, "first")], attempt=2)
    assert again.checksum == begun.begun.markers()["0.0"].checksum
    for late in ((0, 2), (1, 4), (3, 5)):
        with pytest.raises(RangeFailed, match="is not at"):
            begun.write({0: late}, [(0, late[0], 1, "zombie")], seq=2)
    assert case.rows() == [(1, "second")]
    assert set(begun.begun.markers()) == {"0.0", "1.0"}


@pytest.mark.statement("X1")
def test_tombstones_of_unknown_keys_and_empty_ranges_move_the_log_too(case: Case) -> None:
    """X1: they change no row, and have a marker and a place all the same."""
    begun = log(case, {0: 0}, {0: 9})
    begun.write({0: (0, 2)}, [(0, 0, 1, "made"), (0, 1, 1, None)])
    begun.write({0: (2, 3)}, [], seq=1)
    begun.write({0: (3, 4)}, [(0, 3, 8, None)], seq=2)
    begun.write({0: (4, 5)}, [(0, 4, 1, "kept")], seq=3)
    assert set(begun.begun.markers()) == {"0.0", "1.0", "2.0", "3.0"}
    assert case.rows() == [(1, "kept")]


@pytest.mark.statement("X1")
def test_a_zombie_of_an_older_plan_moves_nothing(case: Case) -> None:
    """X1: a plan that reads the log again begins where it says, and fences what was before it."""
    old = log(case, {0: 0}, {0: 9})
    old.write({0: (0, 4)}, [(0, 0, 1, "old")])
    new = log(case, {0: 0}, {0: 9})
    with pytest.raises(PlanSuperseded):
        old.write({0: (4, 5)}, [(0, 4, 1, "zombie")], seq=1)
    new.write({0: (0, 5)}, [(0, 4, 1, "new")])
    assert case.rows() == [(1, "new")]


def test_a_restored_ledger_does_not_write_old_rows_over_newer_ones(case: Case) -> None:
    """What the target has is known to it: an increment that would begin before that is refused, and changes nothing."""
    log(case, {0: 0}, {0: 4}).write({0: (0, 4)}, [(0, 3, 1, "newer")])
    with pytest.raises(SinkRefused, match="partition 0 up to offset 4, and the plan would begin again at 2"):
        log(case, {0: 2}, {0: 6}, after="before")
    assert case.rows() == [(1, "newer")]


def test_a_record_without_a_key_is_named_by_its_place(case: Case) -> None:
    """It could take no row's place."""
    begun = log(case, {0: 0}, {0: 9})
    with pytest.raises(SinkRefused, match=r"offset 1 of partition 0 has no id, by which"):
        begun.write({0: (0, 4)}, [(0, 0, 1, "a"), (0, 1, None, "b"), (0, 3, None, "c")])
    assert case.rows() == []
    assert begun.begun.markers() == {}


def test_the_epoch_of_a_plan_may_be_renewed_without_moving_the_log(case: Case) -> None:
    """A new life of a lane goes on where the one before has come to."""
    begun = log(case, {0: 0}, {0: 9})
    begun.write({0: (0, 2)}, [(0, 0, 1, "a")])
    with opened(case) as sink:
        epoch = sink.renew(begun.begun.plan.plan_id)
    begun.write({0: (2, 4)}, [(0, 2, 1, "b")], seq=1, epoch=epoch)
    assert case.rows() == [(1, "b")]


@pytest.mark.statement("X1", "X6")
@pytest.mark.parametrize("attempt", [1, 2])
def test_rows_of_one_record_keep_their_own_marks(case: Case, attempt: int) -> None:
    """X1, X6: a transform may make several rows of a record: some deleted, some not; of one key the last one wins."""
    first = log(case, {0: 0}, {0: 9})
    first.write({0: (0, 2)}, [(0, 0, 1, "a"), (0, 1, 2, "b")])
    first.write({0: (2, 3)}, [(0, 2, 1, "A"), (0, 2, 2, None)], seq=1, attempt=attempt)
    assert case.rows() == [(1, "A")]
    records: list[Record] = [
        (0, 3, 1, None), (0, 3, 3, None), (0, 3, 3, "new"), (0, 3, 4, "x"), (0, 3, 4, None), (0, 3, 5, "y"),
    ]  # fmt: skip
    first.write({0: (3, 4)}, records, seq=2, attempt=attempt)
    assert case.rows() == [(3, "new"), (5, "y")]
