"""What the text of an error says of the executors, however it reached us."""

import re

from airflow_provider_backpressure.exceptions import OutOfMemory, RangeFailed, RunnerRefused, WorkerLost

_NO_MODULE = re.compile(r"No module named '([\w.]+)'")
_NOT_INSTALLED = re.compile(r"\[PACKAGE_NOT_INSTALLED\] ([^\n]*)")
_OTHER_PYTHON = re.compile(r"version:?\s+\(?(\d+)[.,]\s?(\d+)\)? than that in driver:?\s+\(?(\d+)[.,]\s?(\d+)")
_OUT_OF_MEMORY = re.compile(
    r"OutOfMemoryError|\bMemoryError\b|OOMKilled|exceeding memory limits|[Ee]xit (?:code|status)[: ]+(?:52|137)\b"
)
_LOST = re.compile(r"Python worker exited unexpectedly|ExecutorLostFailure|exited with code \d")


def broken_off(text: str) -> type[RangeFailed]:
    """Return the error of an attempt that broke off so: by an executor's memory, without a word, or otherwise."""
    if _OUT_OF_MEMORY.search(text):
        return OutOfMemory
    return WorkerLost if _LOST.search(text) else RangeFailed


def refusal(text: str) -> RunnerRefused | None:
    """Return the error of executors that lack a package or run another Python, if that is what the text says."""
    if found := _NO_MODULE.search(text):
        return RunnerRefused(f"The executors' Python has no module {found[1]}: install it where Spark runs.")
    if found := _NOT_INSTALLED.search(text):
        return RunnerRefused(f"The executors' Python lacks a package: {found[1]}")
    if "PYTHON_VERSION_MISMATCH" in text or "has different version" in text:
        versions = _OTHER_PYTHON.search(text)
        which = f" ({versions[1]}.{versions[2]}, here {versions[3]}.{versions[4]})" if versions else ""
        return RunnerRefused(f"The executors run another minor version of Python{which}: both sides need the same.")
    return None
