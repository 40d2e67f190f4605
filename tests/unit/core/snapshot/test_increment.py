"""Rising columns of which many rows have one value."""

import pytest

from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.snapshot.plan import Snapshot, warn_coarse
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, Window


@pytest.mark.parametrize(("column", "warned"), [("day", True), ("at", False), (None, False)])
def test_a_coarse_increment_column_is_named_when_it_is_planned(
    caplog: pytest.LogCaptureFixture, column: str | None, warned: bool
) -> None:
    """The next run reads what lies above the last value: a row that arrives later with that value is lost."""
    snapshot = Snapshot(
        source_identity="postgres://shop/public.t",
        columns=(Column(name="day", type="date"), Column(name="at", type="timestamp with time zone")),
        key=("day",),
        split=("day",),
        unique=True,
        frontier={},
        total=None,
        total_exact=False,
        row_bytes=1.0,
        consistency=Consistency.STATIC,
        window=Window(column=column, after=None, upto="2024-01-01") if column else None,
        coarse=("day",),
    )
    warn_coarse(snapshot)
    words = "Increments of postgres://shop/public.t are read by day, in which many rows have one value"
    assert [record.getMessage().startswith(words) for record in caplog.records] == [True] * warned
