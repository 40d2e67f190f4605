"""What the programs of Spark have in common: command, environment, configuration."""

import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from dev.downloads import Downloads
from dev.prerequisites import missing
from dev.servers.server import HOST, ServiceError

# What Spark shows or logs may quote `password=…`, `"password" -> "…"`, `.option("password", "…")` and `user:…@host`.
KEYED = r"""(?i)(?:password|passwd|pwd|secret|token)["']?(?:\s*(?:=|:|->|,)\s*|\s+(?=["']))["']?[^\s"'&,;)}\]]+"""
IN_URLS = r"(?<=://)[^\s:/@]*:[^\s/@]+(?=@)"
SECRETS = f"{KEYED}|{IN_URLS}"
HOME = "from importlib.util import find_spec; print(*find_spec('pyspark').submodule_search_locations)"
# Memory is judged by what executors report, so they report often.
MEASURED = {
    "spark.executor.heartbeatInterval": "2s",
    "spark.executor.metrics.pollingInterval": "500ms",
    "spark.executor.processTreeMetrics.enabled": "true",
}


@cache
def need_java() -> None:
    """Raise where there is no Java that Spark and Kafka run with; asked once, since asking starts one."""
    if lacking := missing():
        raise ServiceError(lacking)


@cache
def home(python: str = sys.executable) -> Path:
    """Return the folder of the PySpark that an interpreter has, which is a whole Spark."""
    need_java()
    done = subprocess.run([python, "-c", HOME], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ServiceError(f"PySpark is not installed for {python}: use the one in .venv (`make test` creates it).")
    return Path(done.stdout.strip())


def environment(python: str = sys.executable) -> dict[str, str]:
    """Return what a Spark program needs whose Python is this one, on top of a cleaned environment."""
    return {
        "SPARK_HOME": str(home(python)),
        "SPARK_LOCAL_IP": HOST,
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": python,
    }


def cleaned() -> dict[str, str]:
    """Return the caller's environment without what would change Spark's mind."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}


def jars(downloads: Downloads, names: tuple[str, ...]) -> list[str]:
    """Return the files of connectors by name, and paths of jars as they are."""
    found: list[str] = []
    for name in names:
        found += [name] if name.endswith(".jar") else [str(file) for file in downloads.group(f"jars-{name}")]
    return found


def write_properties(file: Path, settings: Mapping[str, str]) -> None:
    """Write a properties file, in which a backslash is written twice."""
    lines = (f"{name} {value}".replace("\\", "\\\\") for name, value in settings.items())
    file.touch(mode=0o600)
    file.write_text("\n".join(lines) + "\n")
