"""Versions of Spark and Python that a plan refuses or warns of, as a real server's answers name them."""

import logging
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import grpc
import pytest
from pyspark import __version__ as client
from pyspark.sql.connect.proto import base_pb2

from airflow_provider_backpressure.airflow_compat import AIRFLOW
from airflow_provider_backpressure.exceptions import RunnerRefused
from airflow_provider_backpressure.ledger.repository import SqlLedger
from tests.support.composed import Composed, close_runners
from tests.support.postgres import run
from tests.support.wire import Answer, Forward, other_python, relay, unknown, version

pytestmark = [pytest.mark.integration]
METHODS = [each.name for each in base_pb2.DESCRIPTOR.services_by_name["SparkConnectService"].methods]
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.fixture
def declared(hydration: Composed) -> Composed:
    """A source of ten rows, and a target that is not there yet."""
    run(hydration.source, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 10)")
    return hydration


def refused(declared: Composed, answers: dict[str, Answer]) -> tuple[str, str]:
    """Plan over a relay that answers so; return its address and the sentence of the refusal. No row has moved."""
    with relay(declared.remote, answers) as remote:
        with pytest.raises(RunnerRefused) as raised:
            replace(declared, remote=remote).plan()
        close_runners()
    with closing(SqlLedger(declared.ledger_url)) as ledger:
        assert [each.plan for each in ledger.hydrations()] == [None]
    assert run(declared.sink, "SELECT to_regclass('raw.t')") == [(None,)]
    return remote, str(raised.value)


@pytest.mark.statement("V3")
def test_spark_3_over_connect_is_refused(declared: Composed) -> None:
    """V3: with both versions and the way out. Spark 3.5 has no call to clone or release a session."""
    old = {"AnalyzePlan": version("3.5.9"), "CloneSession": unknown, "ReleaseSession": unknown}
    remote, sentence = refused(declared, old)
    assert sentence == (
        f"Spark Connect at {remote} runs Spark 3.5.9, and the client in Airflow is PySpark {client}, which needs Spark "
        "4 there: run ranges on this cluster by spark-submit (a connection of the type spark), or upgrade it."
    )


@pytest.mark.statement("V3")
def test_another_python_over_connect_is_refused(declared: Composed) -> None:
    """V3: with both versions and the ways out."""
    _, sentence = refused(declared, {"ExecutePlan": other_python("3.99", PYTHON)})
    assert sentence == (
        f"The executors run Python 3.99 and Airflow Python {PYTHON}, which must be the same minor version: set "
        f"PYSPARK_PYTHON of the Spark Connect server to a Python {PYTHON}, or run ranges by spark-submit with "
        "spark.pyspark.driver.python of the executors' version (a connection of the type spark)."
    )


@pytest.mark.statement("V3")
def test_versions_that_nobody_tried_are_a_warning(declared: Composed, caplog: pytest.LogCaptureFixture) -> None:
    """V3: the plan is made all the same. What was tried is planned without a word."""
    caplog.set_level(logging.WARNING, "airflow_provider_backpressure")
    with relay(declared.remote, {"AnalyzePlan": version("4.9.0")}) as remote:
        assert replace(declared, remote=remote).plan().ranges == 1
        close_runners()
    airflow = ".".join(map(str, AIRFLOW))
    assert caplog.messages == [
        f"Spark 4.9.0 on Spark Connect at {remote} was not tried with PySpark {client} under Airflow {airflow}: "
        "docs/reference/versions.md lists the versions that were."
    ]
    caplog.clear()
    assert replace(declared, target="raw.u").plan().ranges == 1
    assert caplog.messages == []


def test_headers_of_the_connection_come_with_each_call(declared: Composed) -> None:
    """As a service in front of the server needs them, to find the cluster or to let the call in."""
    seen: dict[str, set[str | bytes | None]] = {}

    def note(method: str) -> Answer:
        def answer(request: bytes, context: grpc.ServicerContext, forward: Forward) -> Iterator[bytes]:
            seen.setdefault(method, set()).add(dict(context.invocation_metadata()).get("x-cluster"))
            return forward()

        return answer

    with relay(declared.remote, {method: note(method) for method in METHODS}) as remote:
        through = replace(declared, remote=f"{remote}/;x-cluster=blue%3B1")
        through.plan()
        assert through.run().committed == 1
        close_runners()
    assert {"AnalyzePlan", "ExecutePlan", "CloneSession"} <= seen.keys() <= set(METHODS)
    assert set().union(*seen.values()) == {"blue;1"}
