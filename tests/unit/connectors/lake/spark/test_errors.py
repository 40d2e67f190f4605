"""What Spark's errors become: what a retry cannot change is refused, everything else may go well later."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from pyspark.errors.exceptions.connect import (
    AnalysisException,
    SparkConnectGrpcException,
    SparkException,
    SparkRuntimeException,
    UnsupportedOperationException,
)

from airflow_provider_backpressure.connectors.lake.spark.table import translate_errors, translate_refusals
from airflow_provider_backpressure.exceptions import BackpressureError, SinkRefused, SinkUnavailable

Translate = Callable[[str], AbstractContextManager[None]]
REFUSALS: list[Exception] = [AnalysisException("no such column"), UnsupportedOperationException("no such statement")]
FAILURES: list[Exception] = [
    SparkException("Checkpoint block rdd_7_0 not found! The executor that held it was lost."),
    SparkRuntimeException("[USER_RAISED_EXCEPTION] A task ran twice, and its rows are not those that were counted."),
    SparkConnectGrpcException("[INVALID_HANDLE.SESSION_CHANGED] The server was started again."),
]


@pytest.mark.parametrize("error", REFUSALS, ids=repr)
def test_what_spark_refuses_is_refused(error: Exception) -> None:
    """No retry changes it."""
    for translate in (translate_errors, translate_refusals):
        with pytest.raises(SinkRefused, match=r"Spark refuses a statement on lake\.raw\.t: no such"):
            raise_within(translate, error)


@pytest.mark.statement("X2")
@pytest.mark.parametrize("error", FAILURES, ids=repr)
def test_a_job_that_broke_off_is_tried_again(error: Exception) -> None:
    """X2: in a lane the runner says what became of job and session; a planner asks again later."""
    with pytest.raises(SinkUnavailable, match=r"lake\.raw\.t"):
        raise_within(translate_errors, error)
    with pytest.raises(type(error)) as raised:
        raise_within(translate_refusals, error)
    assert not isinstance(raised.value, BackpressureError)


def raise_within(translate: Translate, error: Exception) -> None:
    with translate("lake.raw.t"):
        raise error
