"""Python workers that are forked with everything loaded."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow
import pytest
from pyspark.sql.connect.session import SparkSession

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.runners import daemon
from airflow_provider_backpressure.runners.code_shipping import release
from dev.services import Server, Services
from tests.support.composed import Composed, difference
from tests.support.postgres import run

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def loaded(services: Services) -> Iterator[Server]:
    """A server whose workers come from our daemon."""
    yield services.up("connect:loaded", spark_conf={"spark.python.daemon.module": daemon.__name__})["connect:loaded"]
    services.down("connect:loaded")


@pytest.mark.long
@pytest.mark.parametrize(
    "transform",
    [pytest.param(None, id="copy"), pytest.param("SELECT * FROM source", id="frame")],
)
def test_a_hydration_goes_through_workers_that_import_nothing(
    loaded: Server, hydration: Composed, transform: str | None
) -> None:
    """They have this release's code and all libraries before their first job, and all rows arrive."""
    (there,) = told(loaded.url)
    assert there["digest"] == release()
    assert there["lacking"] == []
    run(
        hydration.source,
        "CREATE TABLE t (id int PRIMARY KEY, at timestamptz, price numeric(9,2), note text)",
        "INSERT INTO t SELECT g, now(), g / 7.0, 'n' || g FROM generate_series(1, 20000) g",
    )
    composed = replace(
        hydration,
        remote=loaded.url,
        ui_url=loaded.ui_url,
        transform=transform,
        budget=Budget(credits=4, range_rows=4000),
    )
    composed.plan()
    composed.run()
    composed.finish()
    assert difference(composed.source, composed.table, composed.sink, composed.target) == (0, 0)


def told(remote: str) -> list[dict[str, Any]]:
    """Return what a worker has of its own accord."""
    wanted = [f"airflow_provider_backpressure.{each}" for each in daemon.LOADED] + list(daemon.LIBRARIES)

    def look(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        for _ in batches:
            digests = [getattr(finder, "backpressure_digest", None) for finder in sys.meta_path]
            found = {"digest": digests[-1], "lacking": [name for name in wanted if name not in sys.modules]}
            yield pyarrow.RecordBatch.from_pydict({"found": [json.dumps(found)]})

    session = SparkSession.builder.remote(remote).create()
    try:
        rows = session.range(0, 1, 1, 1).mapInArrow(look, "found string").collect()
    finally:
        session.stop()
    return [json.loads(row.found) for row in rows]
