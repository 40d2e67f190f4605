"""Environments of the matrix: which versions each holds, made by uv once and kept in the cache."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

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
"""The interpreter of every environment, that of Airflow and that of the executors: a path, or a version for uv."""
EXECUTOR = ("psycopg[binary]", "numpy", "pyarrow", "xxhash", "confluent-kafka", "pandas<3")
"""What executors need, also for topics."""


def airflow(version: str, client: str) -> Path:
    """Return the interpreter of an Airflow with this package and a client of Spark."""
    name = f"airflow-{version}-client-{client}"
    # asyncpg: Airflow's own need for a metadata database on PostgreSQL.
    python = _environment(name, *AIRFLOWS[version], CLIENTS[client], f"{ROOT}[kafka]", "psycopg[binary]", "asyncpg")
    # The package itself is that of now.
    _uv("pip", "install", "--python", str(python), "--no-deps", "--reinstall", str(ROOT))
    return python


def spark(version: str) -> Path:
    """Return the interpreter of a Spark server and its executors."""
    return _environment(f"spark-{version}", SERVERS[version], *EXECUTOR)


def application(version: str) -> Path:
    """Return the interpreter of applications, beside which ``spark-submit`` is."""
    return _environment(f"submit-{version}", *SUBMITS[version], *EXECUTOR)


def _environment(name: str, *requirements: str) -> Path:
    folder = CACHE / name
    python, mark = folder / "bin" / "python", folder / ".requirements"
    wanted = hashlib.sha256("\n".join((PYTHON, *requirements)).encode()).hexdigest()
    if not mark.exists() or mark.read_text() != wanted:
        _uv("venv", "--clear", "--python", PYTHON, str(folder))
        _uv("pip", "install", "--python", str(python), *requirements)
        mark.write_text(wanted)
    return python


def _uv(*words: str) -> None:
    done = subprocess.run([sys.executable, "-m", "uv", *words, "--quiet"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"`uv {' '.join(words)}` failed:\n{done.stderr}")
