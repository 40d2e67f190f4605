"""What a followed range is expected to hold, from the target's rows and the later changes of the log."""

from dataclasses import dataclass
from typing import Any

import pytest

from airflow_provider_backpressure.core.ports.comparison_snapshots import Late, RowTotal
from airflow_provider_backpressure.core.snapshot.bounds import Bounds, KeyBounds, NullBounds
from airflow_provider_backpressure.core.snapshot.spark_messages import SliceResult
from airflow_provider_backpressure.core.verification.followed_table_comparison import (
    FollowedVerifier,
    choose_turn,
    compare_late,
)

pytestmark = pytest.mark.statement("W8")
NONE = RowTotal()


def held(rows: int, checksum: int) -> SliceResult:
    """Return what a side of a range holds."""
    return SliceResult(slice_id="", rows=rows, bytes=0, checksum=f"pgcopy-xxh3:{checksum % 2**64:016x}")


def total(rows: int, checksum: int) -> RowTotal:
    """Return some rows of it."""
    return RowTotal(rows=rows, checksum=f"pgcopy-xxh3:{checksum % 2**64:016x}")


@pytest.mark.parametrize(
    ("late", "target", "source", "difference"),
    [
        (Late(before=NONE, after=NONE), (3, 30), (3, 30), ""),
        (Late(before=NONE, after=NONE), (3, 30), (2, 20), "the target holds 3 rows, and the source 2"),
        (Late(before=NONE, after=NONE), (3, 30), (3, 31), "checksum"),
        # One row changed, one is new: 7 becomes 9, and 5 comes.
        (Late(before=total(1, 7), after=total(2, 14)), (3, 30), (4, 37), ""),
        (Late(before=total(1, 7), after=total(2, 14)), (3, 30), (3, 30), "the target holds 4 rows, and the source 3"),
        # Sums run in a circle.
        (Late(before=total(1, 31), after=total(1, 0)), (3, 30), (3, -1), ""),
        # A table that was emptied: nothing of before counts.
        (Late(before=None, after=total(1, 6)), (3, 30), (1, 6), ""),
        (Late(before=None, after=NONE), (3, 30), (0, 0), ""),
    ],
)
def test_the_target_is_compared_as_the_log_will_make_it(
    late: Late, target: tuple[int, int], source: tuple[int, int], difference: str
) -> None:
    found = compare_late(late, held(*target), held(*source))
    assert bool(found.difference) == bool(difference)
    assert difference in found.difference


@pytest.mark.parametrize(("log", "turn"), [(0.1, 60.0), (30.0, 300.0), (600.0, 900.0)])
def test_no_snapshot_is_kept_for_long_because_its_log_was(log: float, turn: float) -> None:
    """W8: the source keeps what is deleted meanwhile."""
    assert choose_turn(log) == turn


@dataclass
class Separable:
    """A target whose rows can be separated by any bounds, and columns of its key that may be NULL there."""

    nullable: set[str]

    def slice_query(self, *_: Any) -> str:
        return ""

    def open_moment(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    def find_nullable(self, _: Any) -> set[str]:
        return self.nullable


def key(start: str | None, end: str | None) -> KeyBounds:
    return KeyBounds.of_column(column="id", start=start, end=end)


def pair(start: str | None, end: str | None) -> KeyBounds:
    ends = [None if value is None else (value, value) for value in (start, end)]
    return KeyBounds(columns=("id", "part"), start=ends[0], end=ends[1])


@pytest.mark.parametrize(
    ("nullable", "ranges", "more"),
    [
        ({"id"}, [key(None, "5"), key("5", None)], [(-1, NullBounds(column="id"))]),
        (set(), [key(None, "5"), key("5", None)], []),
        # They have them already.
        ({"id"}, [key(None, "5"), key("5", None), NullBounds(column="id")], []),
        ({"id"}, [key(None, None)], []),
        ({"id"}, [], [(-1, None)]),
        # (5, NULL) is neither before nor behind (5, 5).
        ({"part"}, [pair(None, "5"), pair("5", None)], [(-1, NullBounds(column="part"))]),
        (
            {"id", "part"},
            [pair(None, "5"), pair("5", None)],
            [(-1, NullBounds(column="id")), (-1, NullBounds(column="part"))],
        ),
    ],
)
def test_rows_that_the_target_has_without_a_key_are_compared_too(
    nullable: set[str], ranges: list[Bounds], more: list[Any]
) -> None:
    """W8: they are in no range, and the source has none."""
    made: Any = object.__new__(FollowedVerifier)
    made.sink, made.plan = Separable(nullable), type("Plan", (), {"write": None})
    own = [*enumerate(ranges)]
    assert made._list_pieces(own) == [*own, *more]
