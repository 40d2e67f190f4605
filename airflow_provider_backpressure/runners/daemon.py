"""PySpark's daemon of Python workers with all loaded that our tasks need: every worker is a fork of it.

For executors on which this package is installed, of the version that Airflow has: Spark takes it by
``spark.python.daemon.module=airflow_provider_backpressure.runners.daemon``. A new worker then imports nothing, which
else takes it some 0.4 s of processor time. Spark ends a worker that was idle for a minute, so without this every turn
after a pause pays for its workers again.
"""

import importlib
import sys
from contextlib import suppress
from typing import Any

from pyspark.daemon import manager

import airflow_provider_backpressure
from airflow_provider_backpressure.runners.code_shipping import release

LOADED = (
    "spark.value_hash",
    "connectors.postgres.tasks.copy",
    "spark.frame_path",
    "connectors.postgres.tasks.change_apply",
    "connectors.postgres.tasks.read",
    "connectors.kafka.tasks.read",
    "connectors.lake.tasks.read",
    "connectors.mysql.tasks.read",
    "connectors.postgres.tasks.changes",
    "connectors.postgres.tasks.write",
    "connectors.lake.tasks.write",
)
"""This package's modules; the libraries come with them."""
LIBRARIES = ("confluent_kafka", "pymysql")
"""What those import only once they read."""


class Loaded:
    """Marks a worker that has the code of a job already: see ``spark.code_loading``. It finds nothing by itself."""

    def __init__(self, digest: str) -> None:
        self.backpressure_digest = digest

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        """Nothing: what is loaded was found."""


def load() -> None:
    """Import what tasks need, as far as it is installed."""
    for each in (*(f"{airflow_provider_backpressure.__name__}.{module}" for module in LOADED), *LIBRARIES):
        with suppress(ImportError):
            importlib.import_module(each)
    sys.meta_path.append(Loaded(release()))


if __name__ == "__main__":
    load()
    manager()  # type: ignore[no-untyped-call]
