"""The ledger's plan beside the sink's row of it."""

from dataclasses import replace

import pytest

from airflow_provider_backpressure.core.gate.hydration_record import RangeCounts
from airflow_provider_backpressure.core.reconciliation.restore_detection import Comparison, Standing
from airflow_provider_backpressure.core.snapshot.spark_messages import Window
from tests.conformance.ledger.support import make_plan


@pytest.mark.parametrize(
    ("held_by", "after", "standing"),
    [
        ("before", "5", Standing.SINK_BEHIND),
        ("before", None, Standing.AGREED),
        (None, "5", Standing.AGREED),
    ],
)
def test_an_increment_does_not_make_a_target_again_that_is_gone(
    held_by: str | None, after: str | None, standing: Standing
) -> None:
    """The planner was killed before the sink knew of it, and the target was dropped: it would hold new rows only."""
    plan = make_plan()
    read = replace(plan.read, window=Window(column="id", after=after, upto="9"))
    plan = replace(plan, read=read, epoch=0, held_by=held_by, held_epoch=3 if held_by else 0)
    counts = RangeCounts(planned=1)
    found = Comparison(
        target="raw.t", plan=plan, counts=counts, row=None, source_identity="s", environment="default"
    ).find()
    assert found.standing is standing
