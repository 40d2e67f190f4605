"""The result of a task: one row of JSON, or the text of a :class:`BackpressureError`."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace

import pyarrow

from airflow_provider_backpressure.core.error_codec import to_text
from airflow_provider_backpressure.core.snapshot.messages import SliceResult
from airflow_provider_backpressure.exceptions import BackpressureError
from airflow_provider_backpressure.spark import peak_memory as memory
from airflow_provider_backpressure.spark.result_rows import row
from airflow_provider_backpressure.spark.stage_timer import Across, time_slice
from airflow_provider_backpressure.spark.zip_importers import forget_archives


class TaskFailed(Exception):
    """Carries a :class:`BackpressureError` out of a task: only the text of an exception leaves it."""


def outcome(work: Callable[[], SliceResult]) -> pyarrow.RecordBatch:
    """Do the work of a task and return its result as a row."""
    with report_errors():
        result = work()
    return row(json.dumps(asdict(result)))


def measure(work: Callable[[], SliceResult], across: Across | None = None) -> SliceResult:
    """Return the result with the peak of this process's memory, and the times of the stages, meanwhile."""
    memory.reset_peak()
    return replace(time_slice(work, across), peak_memory_bytes=memory.peak_bytes())


@contextmanager
def report_errors() -> Iterator[None]:
    """Raise each :class:`BackpressureError` so that the driver finds it in the text."""
    try:
        yield
    except BackpressureError as error:
        raise TaskFailed(to_text(error)) from error
    finally:
        forget_archives()
