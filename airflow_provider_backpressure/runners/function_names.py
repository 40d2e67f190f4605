"""A function's name by which another process can import it."""

import importlib
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from airflow_provider_backpressure.core.snapshot.messages import Transform
from airflow_provider_backpressure.exceptions import RunnerRefused


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
