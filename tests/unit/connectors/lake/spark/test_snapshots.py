"""What is fetched of an Iceberg table's snapshots, over a table that is a list of rows."""

import re
from typing import Any
from unittest.mock import MagicMock

import pytest

from airflow_provider_backpressure.connectors.lake.spark.iceberg import CURRENT, IcebergTable
from airflow_provider_backpressure.exceptions import SinkUnavailable


class Listed(IcebergTable):
    """A table whose snapshots are a list of number, parent and time."""

    def __init__(self, session: Any = None, name: str = "lake.raw.t") -> None:
        super().__init__(session or MagicMock(), name)
        self.there = [(1, None, 1000), (2, 1, 2000)]
        self.fetched = 0
        """Summaries that were fetched."""

    def ask(self, query: str) -> list[Any]:
        (since,) = re.findall(r">= (\d+)", query)
        rows = [
            {
                "snapshot_id": number,
                "parent_id": parent,
                "at": at,
                "summary": {"n": str(number)} if at >= int(since) else None,
                "branch": None,
            }
            for number, parent, at in self.there
        ]
        self.fetched += sum(row["summary"] is not None for row in rows)
        heads = re.findall(r"name = '(\w+)'", query)
        return [*rows, *({"snapshot_id": 2, "branch": name} for name in heads if name == "known")]

    def list_summaries(self) -> dict[str, int]:
        return {key: int(row["summary"]["n"]) for key, row in self._list_snapshots().items()}


def test_what_is_known_is_not_fetched_again_and_what_was_expired_is_gone() -> None:
    """The newest one is, since another may have come within its millisecond."""
    table = Listed()
    assert table.list_summaries() == {"1": 1, "2": 2}
    table.there = [(2, 1, 2000), (3, 2, 2000), (4, 3, 4000)]
    assert table.list_summaries() == {"2": 2, "3": 3, "4": 4}
    assert table.fetched == 2 + 3


def test_one_that_came_late_by_another_clock_is_fetched_too() -> None:
    """Its time lies before those that are known."""
    table = Listed()
    table.list_summaries()
    table.there.append((3, 2, 1500))
    assert table.list_summaries() == {"1": 1, "2": 2, "3": 3}


def test_the_head_of_a_branch_comes_with_the_snapshots() -> None:
    """One that was removed has none."""
    table = Listed()
    head, snapshots = table._read_branch("known")
    assert (head, list(snapshots)) == ("2", ["1", "2"])
    with pytest.raises(SinkUnavailable, match=r"branch gone .* was removed"):
        table._read_branch("gone")


def test_a_head_that_was_listed_is_not_listed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit of a branch is, before the branch becomes the table."""
    table = Listed()
    table._read_branch("known")
    monkeypatch.setattr(table, "all_properties", lambda: {CURRENT: "2"})
    monkeypatch.setattr(table, "ask", MagicMock(side_effect=AssertionError))
    assert table.read_state().head == "2@2000"
