"""A look at the executors' Python, with nothing but what Spark itself needs there."""

import importlib
import json
import platform
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_backpressure.spark.code_loading import aboard
from airflow_provider_backpressure.spark.task import RESULT, row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def probe_job(session: "SparkSession", modules: Sequence[str]) -> "DataFrame":
    """Return the job of a probe: one row, ``{"python": "3.11", "modules": {"psycopg": "3.3.9", …: null}}``."""

    def look(batches: Iterable[Any]) -> Iterator[Any]:
        for _ in batches:
            yield row(json.dumps(environment(modules)))

    return session.range(0, 1, 1, 1).mapInArrow(aboard(look), RESULT)


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
