"""What a followed range is expected to hold, from the target's rows and the later changes of the log."""

import pytest

from airflow_provider_backpressure.core.ports.moments import Late, RowTotal
from airflow_provider_backpressure.core.snapshot.messages import SliceResult
from airflow_provider_backpressure.core.verification.followed import compare_late

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
