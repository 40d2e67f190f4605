"""Spark's errors as one plain sentence: what a task said, what the cluster lacks, or what became of the job."""

import re

from pyspark.errors import AnalysisException, PySparkException
from pyspark.errors.exceptions.connect import SparkConnectGrpcException

from airflow_provider_backpressure.core.error_codec import from_text
from airflow_provider_backpressure.exceptions import (
    BackpressureError,
    RunnerRefused,
    RunnerUnavailable,
)
from airflow_provider_backpressure.runners.error_text import broken_off, refusal

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
    code = error.getGrpcStatusCode().name if isinstance(error, SparkConnectGrpcException) else ""
    if code in _UNREACHABLE:
        return RunnerUnavailable(f"Spark Connect at {where} does not answer ({code}).")
    return None


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
