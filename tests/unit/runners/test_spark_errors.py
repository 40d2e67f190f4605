"""Spark's errors, as they really read, in one sentence of ours."""

import grpc
import pytest
from pyspark.errors.exceptions.connect import AnalysisException, PythonException, SparkConnectGrpcException

from airflow_provider_backpressure.exceptions import (
    BackpressureError,
    InvalidDeclaration,
    OutOfMemory,
    PlanSuperseded,
    RangeFailed,
    RunnerRefused,
    RunnerUnavailable,
    WorkerLost,
    to_text,
)
from airflow_provider_backpressure.runners.spark_errors import translate

TRACE = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/tmp/x.py", line 11, in bad
    import nonexist.mod
{}

JVM stacktrace:
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
	at org.apache.spark.api.python.BasePythonRunner"""


def trace(line: str) -> PythonException:
    """An error of a task."""
    return PythonException(message=TRACE.format(line))


@pytest.mark.parametrize(
    ("error", "kind", "sentence"),
    [
        (
            trace("ModuleNotFoundError: No module named 'psycopg'"),
            RunnerRefused,
            "The executors' Python has no module psycopg: install it where Spark runs.",
        ),
        (
            trace(
                "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has "
                "different version: 3.12 than that in driver: 3.11, PySpark cannot run with different minor versions."
            ),
            RunnerRefused,
            "The executors run Python 3.12 and Airflow Python 3.11, which must be the same minor version: set "
            "PYSPARK_PYTHON of the Spark Connect server to a Python 3.11, or run ranges by spark-submit with "
            "spark.pyspark.driver.python of the executors' version (a connection of the type spark).",
        ),
        (
            trace("[PACKAGE_NOT_INSTALLED] PyArrow >= 15.0.0 must be installed; however, it was not found."),
            RunnerRefused,
            "The executors' Python lacks a package: PyArrow >= 15.0.0 must be installed; however, it was not found.",
        ),
        (
            AnalysisException(message="[UNRESOLVED_COLUMN] A column cannot be resolved; line 1 pos 7;\n'Project"),
            RunnerRefused,
            "Spark refused the transform: [UNRESOLVED_COLUMN] A column cannot be resolved; line 1 pos 7;",
        ),
        (
            trace("ZeroDivisionError: integer division or modulo by zero"),
            RangeFailed,
            "The Spark job failed: ZeroDivisionError: integer division or modulo by zero",
        ),
        (
            SparkConnectGrpcException(message="Job aborted due to stage failure: x\ny", errorClass=None),
            RangeFailed,
            "The Spark job failed: Job aborted due to stage failure: x",
        ),
        (
            SparkConnectGrpcException(
                message="<_InactiveRpcError of RPC that terminated with:\n\tstatus = StatusCode.UNAVAILABLE",
                grpc_status_code=grpc.StatusCode.UNAVAILABLE,
            ),
            RunnerUnavailable,
            "Spark Connect at sc://host:1 does not answer (UNAVAILABLE).",
        ),
        (
            ValueError("Cannot invoke RPC: Channel closed!"),
            RunnerUnavailable,
            "Spark Connect at sc://host:1 no longer knows this session.",
        ),
        (
            SparkConnectGrpcException(message="(x) The handle is invalid.", errorClass="INVALID_HANDLE.SESSION_CLOSED"),
            RunnerUnavailable,
            "Spark Connect at sc://host:1 no longer knows this session.",
        ),
        (
            SparkConnectGrpcException(message="(x) It was lost.", errorClass="INVALID_HANDLE.OPERATION_NOT_FOUND"),
            RangeFailed,
            "The Spark job failed: (x) It was lost.",
        ),
        (trace("MemoryError: no more"), OutOfMemory, "The Spark job failed: MemoryError: no more"),
        (
            trace("pyarrow.lib.ArrowMemoryError: malloc of size 64 failed"),
            OutOfMemory,
            "The Spark job failed: pyarrow.lib.ArrowMemoryError: malloc of size 64 failed",
        ),
        (
            trace("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 8 GiB"),
            OutOfMemory,
            "The Spark job failed: numpy._core._exceptions._ArrayMemoryError: Unable to allocate 8 GiB",
        ),
        (
            SparkConnectGrpcException(message="Job aborted: Reason: Container killed. Exit status: 137."),
            OutOfMemory,
            "The Spark job failed: Job aborted: Reason: Container killed. Exit status: 137.",
        ),
        (
            SparkConnectGrpcException(message="Job aborted: ExecutorLostFailure: Command exited with code 52"),
            OutOfMemory,
            "The Spark job failed: Job aborted: ExecutorLostFailure: Command exited with code 52",
        ),
        (
            SparkConnectGrpcException(message="Job aborted: Python worker exited unexpectedly (crashed)."),
            WorkerLost,
            "The Spark job failed: Job aborted: Python worker exited unexpectedly (crashed).",
        ),
        (
            SparkConnectGrpcException(message="Job aborted: ExecutorLostFailure: Command exited with code 1"),
            WorkerLost,
            "The Spark job failed: Job aborted: ExecutorLostFailure: Command exited with code 1",
        ),
        (trace(f"TaskFailed: {to_text(PlanSuperseded('Too late.'))}"), PlanSuperseded, "Too late."),
        (InvalidDeclaration("As it was."), InvalidDeclaration, "As it was."),
        (SparkConnectGrpcException(message=""), RangeFailed, "The Spark job failed: Spark gave no reason."),
    ],
)
def test_each_error_is_one_sentence(error: Exception, kind: type[BackpressureError], sentence: str) -> None:
    """Its class says whether to try again."""
    found = translate(error, "sc://host:1")
    assert type(found) is kind
    assert str(found) == sentence


def test_a_client_of_4_0_has_the_status_in_the_error_it_raised_from():
    """PySpark 4.0 has no ``getGrpcStatusCode``."""

    class Call(grpc.RpcError, grpc.Call):
        code = staticmethod(lambda: grpc.StatusCode.UNAVAILABLE)

    Call.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]

    class Earlier(SparkConnectGrpcException):
        def __getattribute__(self, name: str) -> object:
            if name == "getGrpcStatusCode":
                raise AttributeError(name)
            return super().__getattribute__(name)

    try:
        try:
            raise Call()
        except grpc.RpcError:
            raise Earlier(message="unavailable") from None
    except SparkConnectGrpcException as error:
        found = translate(error, where="sc://spark:15002")
    assert isinstance(found, RunnerUnavailable)
    assert "does not answer (UNAVAILABLE)" in str(found)
