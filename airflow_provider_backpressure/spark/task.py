"""The result of a task: one row of JSON, or the text of a :class:`BackpressureError`."""

import contextlib
import importlib
import json
import platform
import resource
import sys
import zipimport
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow

from airflow_provider_backpressure.core.snapshot.spark_messages import SliceResult
from airflow_provider_backpressure.core.stage_metrics import Stage
from airflow_provider_backpressure.exceptions import BackpressureError, to_text
from airflow_provider_backpressure.spark.code_loading import aboard
from airflow_provider_backpressure.spark.reader_timings import time_slice

if TYPE_CHECKING:
    from pyspark.resource import ResourceProfile
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


Batches = Callable[[Iterable[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]]


def forget_archives() -> None:
    """Drop the cached finders of zip archives from the path.

    Before each task PySpark invalidates every cached finder, and up to Python 3.12 a finder of an archive then reads
    the archive's whole directory again: with PySpark's own one on the path, 0.2 s of processor time a task, more than
    everything that a small range takes otherwise (seen on 4.1.3). A finder that is needed again is rebuilt from memory.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimport.zipimporter):
            sys.path_importer_cache.pop(path, None)


RESULT = "result string"
"""Schema of it."""
ERROR = "error"
"""Key of an error in a row, where a result has its fields."""


def row(text: str) -> pyarrow.RecordBatch:
    """Return the row of :data:`RESULT`.

    It is made of buffers: before PyArrow looks at a Python object it imports pandas, half a second in a new worker.
    """
    data = text.encode()
    ends = array("i", (0, len(data))).tobytes()
    column = pyarrow.StringArray.from_buffers(1, pyarrow.py_buffer(ends), pyarrow.py_buffer(data))
    return pyarrow.RecordBatch.from_arrays([column], names=["result"])


class TaskFailed(Exception):
    """Carries a :class:`BackpressureError` out of a task: only the text of an exception leaves it."""


def outcome(work: Callable[[], SliceResult]) -> pyarrow.RecordBatch:
    """Do the work of a task and return its result as a row."""
    with report_errors():
        result = work()
    return row(json.dumps(asdict(result)))


def outcome_or_error(work: Callable[[], SliceResult]) -> pyarrow.RecordBatch:
    """Do the work of a task that shares its job, and return its result, or our own error, as a row."""
    try:
        return outcome(work)
    except TaskFailed as error:
        return row(json.dumps({ERROR: str(error)}))


def measure(work: Callable[[], SliceResult], before: Stage = Stage.READ) -> SliceResult:
    """Return the result with the peak of this process's memory, and the times of :func:`time_slice`."""
    reset_peak()
    return replace(time_slice(work, before), peak_memory_bytes=peak_bytes())


@contextmanager
def report_errors() -> Iterator[None]:
    """Raise each :class:`BackpressureError` so that the driver finds it in the text."""
    try:
        yield
    except BackpressureError as error:
        raise TaskFailed(to_text(error)) from error
    finally:
        forget_archives()


def map_batches(
    frame: "DataFrame", function: Batches, schema: "StructType | str", profile: "ResourceProfile | None" = None
) -> "DataFrame":
    """Return the frame with a function mapped over its batches, in tasks of this profile. Spark 3.5 knows none here."""
    settings: dict[str, Any] = {} if profile is None else {"profile": profile}
    return frame.mapInArrow(aboard(function), schema, **settings)


def probe_job(session: "SparkSession", modules: Sequence[str]) -> "DataFrame":
    """Return the job of a probe: one row, ``{"python": "3.11", "modules": {"psycopg": "3.3.9", …: null}}``."""

    def look(batches: Iterable[Any]) -> Iterator[Any]:
        for _ in batches:
            yield row(json.dumps(environment(modules)))

    return map_batches(session.range(0, 1, 1, 1), look, RESULT)


def environment(modules: Sequence[str]) -> dict[str, Any]:
    """Return this Python's version and its versions of modules, ``None`` for one that cannot be imported."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"python": python, "modules": {name: _version(name) for name in modules}}


def _version(name: str) -> str | None:
    try:
        module = importlib.import_module(name)
    except ImportError:
        return None
    return str(getattr(module, "__version__", None) or getattr(module, "VERSION", "unknown"))


_RESET_PEAK = "5"


def reset_peak() -> None:
    """Begin a new peak: Spark reuses worker processes, and the peak of an earlier slice is not this one's.

    Where the kernel does not allow it the peak stays that of the process's life.
    """
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text(_RESET_PEAK)


def peak_bytes() -> int:
    """Return the peak since :func:`reset_peak`, in bytes."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
