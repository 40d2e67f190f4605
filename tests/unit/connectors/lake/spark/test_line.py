"""Whether an Iceberg table comes from the snapshot that the last plan has left it at."""

from typing import Any

import pytest

from airflow_provider_backpressure.connectors.lake.spark.iceberg import Line

pytestmark = pytest.mark.statement("X3")


def snapshots(*parents: tuple[int, int | None]) -> dict[str, Any]:
    """Rows of the metadata table: number and parent; each was committed a second after the one before."""
    return {str(each): {"parent_id": parent, "at": each * 1000} for each, parent in parents}


def test_what_came_later_comes_from_it() -> None:
    """X3: more commits on top, of whomever."""
    line = Line.read("3", snapshots((1, None), (2, 1), (3, 2)))
    assert line.head == "3@3000"
    assert [line.comes_from(f"{n}@{n}000") for n in (1, 2, 3)] == [True] * 3


def test_a_table_that_was_rolled_back_does_not_also_once_others_have_written() -> None:
    """X3: the version that was left is there, or expired, and the line goes back beyond it."""
    assert not Line.read("1", snapshots((1, None), (2, 1))).comes_from("2@2000")
    assert not Line.read("3", snapshots((1, None), (2, 1), (3, 1))).comes_from("2@2000")
    assert not Line.read("3", snapshots((1, None), (3, 1))).comes_from("2@2000"), "to the first snapshot of all"
    assert not Line.read("4", snapshots((1, 0), (4, 1))).comes_from("2@2000"), "by the time of an older one"


def test_a_table_that_was_replaced_does_not() -> None:
    """X3: the snapshot of a table that is made again has none before it."""
    assert not Line.read("9", snapshots((2, None), (9, None))).comes_from("2@2000")
    assert not Line.read("none", {}).comes_from("2@2000")


def test_a_table_whose_older_snapshots_were_expired_does() -> None:
    """X3: the first one that is expired is still named by the one on top of it; behind that, nobody knows."""
    assert Line.read("3", snapshots((3, 2))).comes_from("2@2000")
    assert Line.read("4", snapshots((4, 3))).comes_from("2@2000")
