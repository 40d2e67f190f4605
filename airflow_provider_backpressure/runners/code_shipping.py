"""What goes to Spark of our own code: as a zip file for applications, or with each job."""

import hashlib
import importlib
import importlib.util
import json
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import airflow_provider_backpressure
from airflow_provider_backpressure.core.snapshot.spark_messages import Transform
from airflow_provider_backpressure.exceptions import RunnerRefused

PARTS = (
    "__init__.py",
    "exceptions.py",
    "core/*.py",
    "core/gate/*.py",
    "core/ports/*.py",
    "core/progress/*.py",
    "core/snapshot/*.py",
    "connectors/**/*.py",
    "spark/*.py",
)
"""Of the package, what tasks import."""
AT_HOME = frozenset({"source", "sink", "config.py"})
"""Of a connector, what only Airflow's side needs."""
JOB = "airflow_provider_backpressure.spark.job"
PROBE = "airflow_provider_backpressure.spark.task"
ABOARD = "airflow_provider_backpressure.spark.code_loading"
"""Named, not imported: what runs in Spark is shipped there."""
_EPOCH = (1980, 1, 1, 0, 0, 0)


@cache
def shipment() -> Path:
    """Return the zip, built once per process; its name follows its content. Executors need no installation."""
    path = Path(tempfile.mkdtemp(prefix="backpressure-")) / f"{release()}.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in _contents().items():
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), content)
    return path


@cache
def cargo() -> tuple[str, bytes]:
    """Return the same for a job, as ``spark.code_loading.carry_code`` takes it: its name, and all sources packed."""
    texts = {name: content.decode() for name, content in _contents().items()}
    return release(), zlib.compress(json.dumps(texts).encode(), 9)


@cache
def package_shipment(package: str) -> Path:
    """Return an installed package in pure Python as a zip, built once per process."""
    path = Path(tempfile.mkdtemp(prefix="backpressure-")) / f"{package}.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in _package_contents(package).items():
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), content)
    return path


@cache
def package_cargo(package: str) -> tuple[str, str, bytes]:
    """Return the same for a job: the package's name, what distinguishes its version, and all of its texts packed."""
    texts = {name: content.decode() for name, content in _package_contents(package).items()}
    packed = zlib.compress(json.dumps(texts).encode(), 9)
    return package, f"{package}-{hashlib.sha256(packed).hexdigest()[:16]}", packed


def _package_contents(package: str) -> dict[str, bytes]:
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise RunnerRefused(f"The package {package} travels with this plan's jobs and is not installed here any more.")
    root = Path(found.origin).parent
    files = [file for file in sorted(root.rglob("*")) if file.suffix in (".py", ".json")]
    return {file.relative_to(root.parent).as_posix(): file.read_bytes() for file in files}


@cache
def _contents() -> dict[str, bytes]:
    root = Path(airflow_provider_backpressure.__file__).parent
    files = [file for part in PARTS for file in sorted(root.glob(part))]
    files = [file for file in files if not _is_at_home(file.relative_to(root).parts)]
    return {file.relative_to(root.parent).as_posix(): file.read_bytes() for file in files}


def _is_at_home(parts: tuple[str, ...]) -> bool:
    return parts[0] == "connectors" and bool(AT_HOME & set(parts))


@cache
def release() -> str:
    """Return what identifies this version of the code."""
    whole = b"\0".join(name.encode() + b"\0" + content for name, content in _contents().items())
    return f"{airflow_provider_backpressure.__name__}-{hashlib.sha256(whole).hexdigest()[:16]}"


def module(name: str) -> Any:
    """Return a module of what is shipped, for use in this process."""
    return importlib.import_module(name)


def to_reference(transform: Transform | None, function: Callable[..., Any] | None) -> Transform | None:
    """Return the transform with a reference in place of the function itself, which cannot travel to an application."""
    if transform is None or transform.sql is not None or transform.python:
        return transform
    return replace(transform, python=reference(function))


def reference(function: Callable[..., Any] | None) -> str:
    """Return ``module:function``; ``RunnerRefused`` where no other process would find it under that name."""
    module, name = getattr(function, "__module__", None) or "", getattr(function, "__qualname__", "")
    if name.isidentifier() and _importable(module):
        found = getattr(importlib.import_module(module), name, None)
        if getattr(found, "__code__", found) == getattr(function, "__code__", function):
            return f"{module}:{name}"
    raise RunnerRefused(
        f"The transform {name or function!r} cannot travel to an application: give a SELECT, or a function at the top "
        "of a module that can be imported, which a DAG's own file cannot."
    )


def _importable(module: str) -> bool:
    """Whether the module's package is found on the path; that it is loaded here says nothing of another process."""
    top = module.partition(".")[0]
    if top in ("", "__main__"):
        return False
    finders = (getattr(finder, "find_spec", None) for finder in sys.meta_path)
    return any(find(top, None) is not None for find in finders if find)
