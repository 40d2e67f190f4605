"""What goes to Spark with every job: our own code as one zip file, and settings of the session."""

import hashlib
import importlib
import tempfile
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import airflow_provider_backpressure

PARTS = ("core", "kafka", "lakes", "mysql", "postgres", "spark")
"""Rooms that run inside a task; beside them the package's own ``__init__`` and ``exceptions``."""
JOB = "airflow_provider_backpressure.spark.job"
PROBE = "airflow_provider_backpressure.spark.probe"
"""Named, not imported: what runs in Spark is shipped there."""
SETTINGS = {"spark.sql.execution.arrow.maxBytesPerBatch": "4m"}
"""Of each session: wide rows would else be handed to a task 64 MiB at a time."""
_EPOCH = (1980, 1, 1, 0, 0, 0)


@cache
def shipment() -> Path:
    """Return the zip, built once per process; its name follows its content. Nothing of ours need be installed there."""
    root = Path(airflow_provider_backpressure.__file__).parent
    files = [root / "__init__.py", root / "exceptions.py"]
    files += [file for part in PARTS for file in sorted((root / part).rglob("*.py"))]
    contents = [(file.relative_to(root.parent).as_posix(), file.read_bytes()) for file in files]
    digest = hashlib.sha256(b"\0".join(name.encode() + b"\0" + content for name, content in contents)).hexdigest()
    path = Path(tempfile.mkdtemp(prefix="backpressure-")) / f"{root.name}-{digest[:16]}.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents:
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), content)
    return path


def module(name: str) -> Any:
    """Return a module of what is shipped, for use in this process."""
    return importlib.import_module(name)
