"""The machine and the versions that figures were measured with."""

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import psycopg

ARTIFACTS = Path(__file__).resolve().parent.parent / "dev" / "artifacts.json"
PACKAGES = ("airflow-provider-backpressure", "apache-airflow", "pyspark", "psycopg", "asyncpg", "pyarrow", "xxhash")


JARS = {"postgres": "PostgreSQL JDBC", "mysql": "MySQL JDBC", "kafka": "Spark's Kafka source"}
"""What the first jar of a group is."""


def describe(jars: Sequence[str] = ("postgres",), packages: Sequence[str] = ()) -> dict[str, str]:
    """Return what there is, by name, the load of the moment included: figures of a busy machine say little.

    ``jars``: groups of ``dev/artifacts.json``. ``packages``: Python's, beside :data:`PACKAGES`.
    """
    return {
        "machine": f"{_processor()}, {os.cpu_count()} cores, {_memory_gib():.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "load before": f"{os.getloadavg()[0]:.1f}",
        "Python": platform.python_version(),
        "Java": _java(),
        **{JARS[group]: _jar(group) for group in jars},
        **{name: version(name) for name in (*PACKAGES, *packages)},
    }


def postgres_version(url: str) -> str:
    """Return the server's version."""
    with psycopg.connect(url) as connection:
        return connection.info.parameter_status("server_version") or "unknown"


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3


def _java() -> str:
    done = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)
    return (done.stderr or done.stdout).splitlines()[0]


def _jar(group: str) -> str:
    found = json.loads(ARTIFACTS.read_text())[f"jars-{group}"]
    return str(found[0]["coordinate"]).rpartition(":")[2]
