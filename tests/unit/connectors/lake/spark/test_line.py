"""Whether an Iceberg table comes from the snapshot that the last plan has left it at."""

from typing import Any

import pytest

from airflow_provider_backpressure.connectors.lake.spark.iceberg import Line, find_oldest_needed

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


def test_what_the_last_plan_left_and_all_behind_it_is_needed() -> None:
    """K3: with the origin of each, which is not among the snapshots that the present one comes from."""
    rows = snapshots((1, None), (2, 1), (3, 2), (4, 3))
    for row in rows.values():
        row["summary"] = {}
    assert find_oldest_needed("4", "2", rows) == 2000
    assert find_oldest_needed("4", "4", rows) == 4000
    rows["4"]["summary"] = {"source-snapshot-id": "9"}
    assert find_oldest_needed("4", "3", rows) == 3000, "its origin was expired before"
    rows["9"] = {"parent_id": 2, "at": 1500, "summary": {}}
    assert find_oldest_needed("4", "3", rows) == 1500
    assert find_oldest_needed("4", "", rows) is None, "no plan has ended yet"
    assert find_oldest_needed("4", "7", rows) is None
    assert find_oldest_needed("none", "4", rows) is None
