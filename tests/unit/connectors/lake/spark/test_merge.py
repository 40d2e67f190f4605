"""The statement of a merge, and what gives its commit a note."""

import json

import pytest

from airflow_provider_backpressure.connectors.lake.markers import Attempt, Mark
from airflow_provider_backpressure.connectors.lake.spark.delta import DeltaTable
from airflow_provider_backpressure.connectors.lake.spark.iceberg import IcebergTable
from airflow_provider_backpressure.connectors.lake.spark.notes import note_of_mark
from airflow_provider_backpressure.connectors.lake.spark.table import build_merge


def test_a_merge_updates_the_key_too() -> None:
    """So that rows of nothing but a key make a commit, which carries the mark."""
    assert build_merge("`c`.`s`.`t`", "v", ["a.b", "id"], ["id"]) == (
        "MERGE INTO `c`.`s`.`t` AS t USING `v` AS s ON t.`id` = s.`id` "
        "WHEN MATCHED THEN UPDATE SET t.`a.b` = s.`a.b`, t.`id` = s.`id` "
        "WHEN NOT MATCHED THEN INSERT (`a.b`, `id`) VALUES (s.`a.b`, s.`id`)"
    )


@pytest.mark.parametrize("table", [DeltaTable, IcebergTable])
def test_the_settings_of_a_commit_have_its_token_and_its_note(table: type[DeltaTable | IcebergTable]) -> None:
    """They are all that a MERGE can be told by."""
    attempt = Attempt(plan_id="p", epoch=3, slice_id="1.0", attempt=2, bounds={})
    note = note_of_mark(Mark.made(attempt, rows=10, bytes=1, checksum="c", files=()))
    values = list(table(None, "c.s.t").note_settings(note).values())  # type: ignore[arg-type]
    assert values[0] == "backpressure:p:1.0:3"
    assert json.loads(values[-1])["backpressure"]["token"] == "backpressure:p:1.0:3"
