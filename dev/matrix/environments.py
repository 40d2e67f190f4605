"""Environments of the matrix: which versions each holds, made by uv once and kept in the cache."""

import os
import sys
from pathlib import Path

from dev.environments import make, uv

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "matrix"
AIRFLOWS = {
    # Below the next releases of these, under which an Airflow of that age does not start.
    "3.1": ("apache-airflow==3.1.8", "pydantic<2.13"),
    "3.2": ("apache-airflow==3.2.2", "pydantic<2.13", "fastapi<0.137", "cadwyn<8"),
    "3.3": ("apache-airflow==3.3.2",),
}
CLIENTS = {"4.0": "pyspark-client==4.0.4", "4.1": "pyspark-client==4.1.3", "4.2": "pyspark-client==4.2.0"}
SERVERS = {"4.0": "pyspark[connect]==4.0.5", "4.1": "pyspark[connect]==4.1.3", "4.3": "pyspark[connect]==4.3.0"}
SUBMITS = {
    # Older than what today's libraries were made for.
    "3.5": ("pyspark==3.5.9", "numpy<2", "pyarrow<24"),
    "4.0": ("pyspark==4.0.5",),
    "4.1": ("pyspark==4.1.3",),
    "4.3": ("pyspark==4.3.0",),
}
PYTHON = os.environ.get("MATRIX_PYTHON") or sys.executable
"""The interpreter of Airflow's environments: a path, or a version for uv."""
SPARK_PYTHON = os.environ.get("MATRIX_SPARK_PYTHON") or PYTHON
"""That of the executors."""
EXECUTOR = ("psycopg[binary]", "numpy", "pyarrow", "xxhash", "confluent-kafka", "pandas<3")
"""What executors need, also for topics."""


def airflow(version: str, client: str) -> Path:
    """Return the interpreter of an Airflow with this package and a client of Spark."""
    folder = CACHE / f"airflow-{version}-client-{client}"
    # asyncpg: Airflow's own need for a metadata database on PostgreSQL.
    python = make(
        folder,
        *AIRFLOWS[version],
        CLIENTS[client],
        f"{ROOT}[kafka]",
        "psycopg[binary]",
        "asyncpg",
        "statsd",
        python=PYTHON,
    )
    # The package itself is that of now.
    uv("pip", "install", "--python", str(python), "--no-deps", "--reinstall", str(ROOT))
    return python


def spark(version: str) -> Path:
    """Return the interpreter of a Spark server and its executors."""
    return make(CACHE / f"spark-{version}", SERVERS[version], *EXECUTOR, python=SPARK_PYTHON)


def application(version: str) -> Path:
    """Return the interpreter of applications, beside which ``spark-submit`` is."""
    return make(CACHE / f"submit-{version}", *SUBMITS[version], *EXECUTOR, python=SPARK_PYTHON)
