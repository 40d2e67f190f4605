"""Followed tables of one task group into tables of Spark's catalog: one log, a commit for each table and window."""

import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.gate.hydration_record import Phase
from tests.support.lake_flow import LakeFlow
from tests.support.lakes import Cluster
from tests.support.operator_flow import writing

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(1200)]


@pytest.fixture(params=["delta", "iceberg"])
def flow(
    request: pytest.FixtureRequest, database: Endpoint, lake_cluster: Cluster, tmp_path: Path
) -> Iterator[LakeFlow]:
    made = LakeFlow.make_into(request.param, lake_cluster, database, tmp_path, f"s{uuid.uuid4().hex[:8]}")
    yield made
    made.close()


@pytest.mark.statement("W2")
def test_a_group_of_followed_tables_has_one_slot_and_one_publication(flow: LakeFlow) -> None:
    """W2: copied in the first run, followed in the next ones, and equal once nobody writes."""
    with writing(flow):
        tables = flow.plan()
        flow.hydrate(tables)
    flow.verify(tables)
    for number in range(2, 4):
        with writing(flow, seed=number):
            time.sleep(0.5)
        assert flow.with_run(f"run {number}").run()
        assert flow.differs() == {}
    name = f"backpressure_{flow.stream}"
    assert flow.slots() == [name]
    assert flow.published() == [(name, table) for table in flow.names]
    assert {one.phase for one in flow.hydrations()} == {Phase.STEADY_STATE}
    assert {one.holder for one in flow.hydrations()} == {None}
    assert len(flow.hydrations()) == len(flow.names) + 1
