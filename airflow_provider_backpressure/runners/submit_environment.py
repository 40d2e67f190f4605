"""Which variables spark-submit gets: none of Airflow's secrets, and what its driver needs."""

import os
import sys
import sysconfig
from pathlib import Path

from airflow_provider_backpressure.runners.executor_memory import Target

HIDDEN = ("AIRFLOW_CONN_", "AIRFLOW_VAR_", "AIRFLOW__")
"""Variables of Airflow's that may hold passwords; an application needs none of them."""
MISLEADING = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_API_MODE")
"""Variables by which PySpark would take an application for a client of Spark Connect."""


def make_environment(target: Target) -> dict[str, str]:
    """Return the environment of spark-submit: this one without Airflow's secrets.

    A driver that runs by this very Python finds the modules that this process finds; spark-submit is found beside it.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(HIDDEN) and name not in MISLEADING}
    kept["PATH"] = os.pathsep.join(filter(None, [kept.get("PATH", ""), sysconfig.get_path("scripts")]))
    kept.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if target.own_python:
        kept["PYTHONPATH"] = os.pathsep.join(
            dict.fromkeys([*filter(None, kept.get("PYTHONPATH", "").split(os.pathsep)), *_list_added_paths()])
        )
    return kept


def _list_added_paths() -> list[str]:
    """Return what was added to this process's module path beyond Python's own."""
    own = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    own |= {path / "lib-dynload" for path in own}
    return [entry for entry in sys.path if entry and Path(entry).is_dir() and Path(entry).resolve() not in own]
