"""Spark's errors as one plain sentence: what a task said, what the cluster lacks, or what became of the job."""

import re
from collections.abc import Mapping
from typing import Any

import grpc
from pyspark.errors import AnalysisException, PySparkException
from pyspark.errors.exceptions.connect import SparkConnectGrpcException

from airflow_provider_backpressure.exceptions import (
    BackpressureError,
    OutOfMemory,
    RangeFailed,
    RunnerRefused,
    RunnerUnavailable,
    WorkerLost,
    from_text,
)

_NO_MODULE = re.compile(r"No module named '([\w.]+)'")
_NOT_INSTALLED = re.compile(r"\[PACKAGE_NOT_INSTALLED\] ([^\n]*)")
_OTHER_PYTHON = re.compile(r"version:?\s+\(?(\d+)[.,]\s?(\d+)\)? than that in driver:?\s+\(?(\d+)[.,]\s?(\d+)")
_OUT_OF_MEMORY = re.compile(
    r"OutOfMemoryError|MemoryError\b|OOMKilled|exceeding memory limits"
    r"|[Ee]xit(?:ed with)? (?:code|status)[: ]+(?:52|137)\b"
)
_LOST = re.compile(r"Python worker exited unexpectedly|ExecutorLostFailure|exited with code \d")


def broken_off(text: str) -> type[RangeFailed]:
    """Return the error of an attempt that broke off so: by an executor's memory, without a word, or otherwise."""
    if _OUT_OF_MEMORY.search(text):
        return OutOfMemory
    return WorkerLost if _LOST.search(text) else RangeFailed


def refusal(text: str, *, submitted: bool = False) -> RunnerRefused | None:
    """Return the error of executors that lack a package or run another Python, if that is what the text says.

    ``submitted``: by an application, whose driver may run by another Python than Airflow's.
    """
    if found := _NO_MODULE.search(text):
        return RunnerRefused(f"The executors' Python has no module {found[1]}: install it where Spark runs.")
    if found := _NOT_INSTALLED.search(text):
        return RunnerRefused(f"The executors' Python lacks a package: {found[1]}")
    if "PYTHON_VERSION_MISMATCH" in text or "has different version" in text:
        return _other_python(_OTHER_PYTHON.search(text), submitted=submitted)
    return None


def _other_python(found: re.Match[str] | None, *, submitted: bool) -> RunnerRefused:
    there, here = (
        (f"{found[1]}.{found[2]}", f"{found[3]}.{found[4]}") if found else ("another minor version", "its own")
    )
    side = "the driver" if submitted else "Airflow"
    ways = (
        "let spark.pyspark.python and spark.pyspark.driver.python in the connection name the same version."
        if submitted
        else f"set PYSPARK_PYTHON of the Spark Connect server to a Python {here}, or run ranges by spark-submit with "
        "spark.pyspark.driver.python of the executors' version (a connection of the type spark)."
    )
    return RunnerRefused(
        f"The executors run Python {there} and {side} Python {here}, which must be the same minor version: {ways}"
    )


_NO_SESSION = ("INVALID_HANDLE.SESSION", "SESSION_", "NO_ACTIVE_SESSION")
_UNREACHABLE = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "UNAUTHENTICATED", "PERMISSION_DENIED")


def translate(error: Exception, where: str) -> BackpressureError:
    """Return our error for Spark's error; ``where`` names the server in the sentence.

    What our own code raised inside a task comes back as it was raised; all else in one line, without the trace.
    """
    text = str(error)
    if isinstance(error, BackpressureError):
        return error
    return (
        from_text(text)
        or _refusal(error, text)
        or _absence(error, text, where)
        or broken_off(text)(_failure(error, text))
    )


def _refusal(error: Exception, text: str) -> BackpressureError | None:
    if found := refusal(text):
        return found
    if isinstance(error, AnalysisException):
        return RunnerRefused(f"Spark refused the transform: {_first_line(text)}")
    return None


def _absence(error: Exception, text: str, where: str) -> BackpressureError | None:
    condition = _condition(error)
    if condition.startswith(_NO_SESSION) or "Channel closed" in text:
        return RunnerUnavailable(f"Spark Connect at {where} no longer knows this session.")
    code = _status(error)
    if code in _UNREACHABLE:
        return RunnerUnavailable(f"Spark Connect at {where} does not answer ({code}).")
    return None


def _status(error: Exception) -> str:
    """Return gRPC's name of what went wrong, empty where it is not known."""
    if not isinstance(error, SparkConnectGrpcException):
        return ""
    if hasattr(error, "getGrpcStatusCode"):
        return str(error.getGrpcStatusCode().name)
    # PySpark 4.0 has it in the error of gRPC only, which it raised from.
    call = error.__context__
    return call.code().name if isinstance(call, grpc.Call) else ""


def _failure(error: Exception, text: str) -> str:
    if _condition(error) == "OPERATION_CANCELED":
        return "The Spark job was cancelled."
    return f"The Spark job failed: {_first_line(text)}"


def _condition(error: Exception) -> str:
    return (error.getCondition() or "") if isinstance(error, PySparkException) else ""


def _first_line(text: str) -> str:
    """Return the line that says what happened: the exception under a Python trace, otherwise the first one."""
    lines = [line.strip() for line in text.split("JVM stacktrace:")[0].splitlines() if line.strip()]
    if not lines:
        return "Spark gave no reason."
    raised = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Interrupt)\b", line)]
    return (raised[-1] if "Traceback" in text and raised else lines[0])[:500]


ANALYSIS = ("AnalysisException", "ParseException")
"""Errors by which Spark refuses a query before a row is read."""
_NO_JAVA = ("JAVA_HOME is not set", "JAVA_GATEWAY_EXITED", "java: not found", "java: command not found")
_NO_SPARK = "Could not find valid SPARK_HOME"
_NO_MASTER = ("All masters are unresponsive", "Master removed our application", "Connection refused")
_EXCEPTION = re.compile(r"(?:[a-z]\w*\.)*[A-Z]\w*(?:Error|Exception|Failure)\b.*")
MOST = 500
"""Characters of a foreign text that go into a sentence."""


def failure(answer: Mapping[str, Any], output: str, master: str) -> BackpressureError:
    """Return the error. ``answer``: what the application said, empty where it said nothing; ``output``: the log."""
    text = str(answer.get("error") or output)
    found = from_text(text) or refusal(text, submitted=True)
    if found:
        return found
    if answer.get("type") in ANALYSIS:
        return RunnerRefused(f"Spark refused the transform: {find_cause(text)}")
    if not answer and any(sign in text for sign in _NO_JAVA):
        return RunnerRefused("spark-submit finds no Java on this host: install Java 17 or 21, or set JAVA_HOME.")
    if not answer and _NO_SPARK in text:
        return RunnerRefused(
            "spark-submit finds no Spark on this host: set SPARK_HOME to the installation that it belongs to."
        )
    if not answer and any(sign in text for sign in _NO_MASTER):
        return RunnerUnavailable(f"The Spark master {master} does not answer: {find_cause(text)}")
    return broken_off(text)(f"The Spark application failed: {find_cause(text)}")


def find_cause(text: str) -> str:
    """Return the line that says what happened: the first exception that is named, otherwise the last line."""
    lines = [line.strip().lstrip(": ") for line in text.splitlines() if line.strip()]
    if not lines:
        return "it gave no reason."
    named = [line for line in lines if _EXCEPTION.match(line) and "Py4JJavaError" not in line]
    found = named[0] if named else next((hit[0] for line in lines if (hit := _EXCEPTION.search(line))), lines[-1])
    return found[:MOST]
