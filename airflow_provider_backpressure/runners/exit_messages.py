"""What became of an application, as one plain sentence: from its own answer, or from what spark-submit said."""

import re
from collections.abc import Mapping
from typing import Any

from airflow_provider_backpressure.core.error_codec import from_text
from airflow_provider_backpressure.exceptions import (
    BackpressureError,
    RunnerRefused,
    RunnerUnavailable,
)
from airflow_provider_backpressure.runners.error_text import broken_off, refusal

ANALYSIS = ("AnalysisException", "ParseException")
"""Errors by which Spark refuses a query before a row is read."""
_NO_JAVA = ("JAVA_HOME is not set", "JAVA_GATEWAY_EXITED", "java: not found", "java: command not found")
_NO_MASTER = ("All masters are unresponsive", "Master removed our application", "Connection refused")
_EXCEPTION = re.compile(r"(?:[a-z]\w*\.)*[A-Z]\w*(?:Error|Exception|Failure)\b.*")
MOST = 500
"""Characters of a foreign text that go into a sentence."""


def failure(answer: Mapping[str, Any], output: str, master: str) -> BackpressureError:
    """Return the error. ``answer``: what the application said, empty where it said nothing; ``output``: the log."""
    text = str(answer.get("error") or output)
    found = from_text(text) or refusal(text)
    if found:
        return found
    if answer.get("type") in ANALYSIS:
        return RunnerRefused(f"Spark refused the transform: {find_cause(text)}")
    if not answer and any(sign in text for sign in _NO_JAVA):
        return RunnerRefused("spark-submit finds no Java on this host: install Java 17 or 21, or set JAVA_HOME.")
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
