"""Which rows of a source a target does not hold, by the hash of each row."""

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_backpressure.connectors.postgres.tasks.mirror_by_row_hashes import (
    HeldRows,
    NotComparable,
    hash_each,
)

rows = st.lists(st.binary(min_size=1, max_size=3), unique=True, max_size=30)


@given(rows, rows, st.integers(1, 7))
def test_new_and_other_rows_are_those_of_the_sets(source: list[bytes], target: list[bytes], block: int) -> None:
    held, new = HeldRows(hash_each(target)), []
    for start in range(0, len(source), block):
        new += held.take_new(source[start : start + block])
    assert new == [row for row in source if row not in target]
    assert held.count_seen() == len({*source} & {*target})
    assert held.count_others() == len({*target} - {*source})


def test_rows_of_the_target_that_have_one_hash_are_not_comparable() -> None:
    with pytest.raises(NotComparable):
        HeldRows(numpy.array([7, 1, 7], dtype=numpy.uint64))


def test_a_row_that_the_source_has_twice_is_seen_once() -> None:
    """So the count of rows that were seen is less than that of rows that were read."""
    held = HeldRows(hash_each([b"a", b"b"]))
    assert held.take_new([b"a", b"a"]) == []
    assert held.count_seen() == 1
