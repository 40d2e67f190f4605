"""A repair asks the source first: what it no longer has stays in the target."""

import pytest

from airflow_provider_backpressure.core.planning.range_repair import repair
from airflow_provider_backpressure.core.snapshot.ranges import RangeState
from airflow_provider_backpressure.exceptions import SourceRefused
from tests.support.bench import Bench


@pytest.mark.statement("X3")
def test_nothing_is_removed_that_the_source_cannot_give_again() -> None:
    """X3: rows, marker and ledger are as before; with its column back the range is planned again."""
    bench = Bench()
    bench.lane().run()
    record, markers = bench.ledger.range(bench.plan_id, 1), bench.sink.markers(bench.plan_id)
    columns, bench.source.columns = bench.source.columns, ()

    def repaired() -> int:
        return repair(bench.ledger, bench.source, bench.sink, bench.planned.plan, record, who="ada")

    with pytest.raises(SourceRefused, match="column id is gone"):
        repaired()
    assert (sorted(bench.sink.rows), bench.sink.markers(bench.plan_id)) == (list(range(100)), markers)
    assert bench.ledger.range(bench.plan_id, 1) == record
    bench.source.columns = columns
    assert repaired() == 10
    assert bench.ledger.range(bench.plan_id, 1).state is RangeState.PLANNED
