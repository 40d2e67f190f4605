"""What a new life finds of the snapshot of the one before."""

from typing import Any
from unittest.mock import Mock

import pytest

from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.execution.kept_snapshot import KeptSnapshot
from airflow_provider_backpressure.exceptions import SnapshotLost


def ask(
    *,
    committed: int = 0,
    left: int = 1,
    markers: tuple[bool, ...] = (),
    survives: bool = False,
    reads_again: bool = False,
    is_read_again: bool = False,
) -> None:
    """Ask of a plan of three ranges; ``markers``: whether each that the sink has is of a revoked range."""
    counts = Mock(committed=committed, open=left, total=3)
    found: dict[str, Any] = {f"{seq}.0": Mock(revoked=revoked) for seq, revoked in enumerate(markers)}
    plan = Mock(
        plan_id="p",
        consistency=Consistency.SNAPSHOT,
        survives=survives,
        transform=None,
        is_read_again=is_read_again,
    )
    kept = KeptSnapshot(
        hydration_id="h",
        ledger=Mock(counts=Mock(return_value=counts)),
        source=Mock(),
        sink=Mock(markers=Mock(return_value=found)),
        runner=Mock(),
        budget=Mock(),
        clock=Mock(),
        reads_again=reads_again,
    )
    kept.check_earlier(plan)


@pytest.mark.statement("X1")
def test_a_range_that_was_committed_late_is_of_a_snapshot_that_is_lost() -> None:
    """X1: its lane had given the attempt up and was killed, so that the ledger knows of no committed range."""
    with pytest.raises(SnapshotLost, match="1 of 3 ranges of plan p were read in a snapshot that ended"):
        ask(markers=(False,))
    with pytest.raises(SnapshotLost, match="2 of 3 ranges"):
        ask(committed=2)


def test_a_plan_that_has_committed_nothing_or_all_or_survives_has_lost_nothing() -> None:
    """A revoked range has committed nothing."""
    ask()
    ask(markers=(True,))
    ask(committed=3, left=0, markers=(False,) * 3)
    ask(committed=2, markers=(False,) * 2, survives=True)


@pytest.mark.statement("X3")
def test_a_source_that_was_not_compared_in_time_is_of_a_snapshot_that_is_lost() -> None:
    """X3: nothing is left to be copied, but nobody can say any more that the source is what was committed."""
    with pytest.raises(SnapshotLost, match="3 of 3 ranges"):
        ask(committed=3, left=0, reads_again=True)
    ask(committed=3, left=0, reads_again=True, is_read_again=True)
    ask(committed=3, left=0, reads_again=True, survives=True)
    ask(committed=0, left=0, reads_again=True)
