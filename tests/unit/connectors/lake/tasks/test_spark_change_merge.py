"""The statement that applies a window of changes."""

import pytest

from airflow_provider_backpressure.connectors.lake.tasks.spark_change_merge import ChangeFold
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, WriteSpec

WRITE = WriteSpec(
    kind="spark_table",
    conn_id="spark",
    target="c.s.t",
    columns=(Column(name="id", type="bigint"), Column(name="a.b", type="text")),
    mode="upsert",
    key=("id",),
    plan_table="{}",
    commit_table="",
    fence="c.s.t",
)
DELETED = "WHEN MATCHED AND s.backpressure_op = 0 THEN DELETE"
INSERTED = "WHEN NOT MATCHED AND s.backpressure_op <> 0 THEN INSERT (`id`, `a.b`) VALUES (s.`id`, s.`a.b`)"


@pytest.mark.statement("K2")
def test_a_window_deletes_before_it_updates_and_inserts_no_row_that_was_deleted() -> None:
    """K2: the first clause that fits counts, so a delete is never an update to NULL."""
    fold = ChangeFold(write=WRITE, kept=(), truncated=-1)
    assert fold.make_merge("`c`.`s`.`t`", "v") == (
        f"MERGE INTO `c`.`s`.`t` AS t USING `v` AS s ON t.`id` = s.`id` {DELETED} "
        f"WHEN MATCHED THEN UPDATE SET t.`id` = s.`id`, t.`a.b` = s.`a.b` {INSERTED}"
    )


@pytest.mark.statement("K2")
def test_what_no_change_holds_stays_as_the_target_has_it() -> None:
    """K2: column by column, and only where the row says so."""
    statement = ChangeFold(write=WRITE, kept=(1,), truncated=-1).make_merge("t", "v")
    assert "t.`a.b` = CASE WHEN s.backpressure_stays_1 THEN t.`a.b` ELSE s.`a.b` END" in statement
    assert "t.`id` = s.`id`," in statement


@pytest.mark.parametrize(("truncated", "bounded"), [(-1, True), (3, False)])
def test_only_rows_of_the_keys_that_come_are_looked_at(*, truncated: int, bounded: bool) -> None:
    """But for a TRUNCATE, which deletes rows of other keys."""
    statement = ChangeFold(write=WRITE, kept=(), truncated=truncated, spans=[(0, -5, 7)]).make_merge("t", "v")
    assert (" ON t.`id` = s.`id` AND t.`id` BETWEEN -5 AND 7 WHEN MATCHED" in statement) is bounded


@pytest.mark.parametrize("truncated", [0, 7])
def test_after_a_truncate_what_the_window_did_not_bring_goes(truncated: int) -> None:
    """Also where that was the first change: numbers may begin at 0."""
    statement = ChangeFold(write=WRITE, kept=(), truncated=truncated).make_merge("t", "v")
    assert statement.endswith(f"{INSERTED} WHEN NOT MATCHED BY SOURCE THEN DELETE")
