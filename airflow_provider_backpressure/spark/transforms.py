"""The user's transform: SQL over the view ``source``, or a function from DataFrame to DataFrame."""

import importlib
import sys
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING

from pyspark import cloudpickle

from airflow_provider_backpressure.core.snapshot.messages import Transform
from airflow_provider_backpressure.exceptions import RunnerRefused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Function = Callable[["DataFrame"], "DataFrame"]


def apply_transform(
    session: "SparkSession", frame: "DataFrame", transform: Transform | None, function: Function | None
) -> "DataFrame":
    """Return what the transform makes of a frame; ``RunnerRefused`` for one that cannot be found or fails."""
    if transform is None:
        return frame
    if transform.sql is not None:
        return _select(session, frame, transform.sql)
    return _call(_found(transform.python, function), frame)


def _select(session: "SparkSession", frame: "DataFrame", query: str) -> "DataFrame":
    # A view would be shared by all ranges of the session; a frame as parameter belongs to this one alone. The query
    # is in brackets, so that it may have a WITH of its own and can be nothing but a query.
    text = query.strip().removesuffix(";").replace("{", "{{").replace("}", "}}")
    return session.sql(f"WITH source AS (SELECT * FROM {{frame}}) SELECT * FROM (\n{text}\n)", frame=frame)  # noqa: S608


def _call(function: Function, frame: "DataFrame") -> "DataFrame":
    name = getattr(function, "__qualname__", type(function).__name__)
    _by_value(function)
    try:
        result = function(frame)
    except Exception as error:
        raise RunnerRefused(f"The transform {name} failed: {type(error).__name__}: {error}") from error
    if type(result).__name__ != "DataFrame" or not hasattr(result, "mapInArrow"):
        raise RunnerRefused(f"The transform {name} must return a DataFrame, not {type(result).__name__}.")
    return result


def _found(reference: str | None, handed: Function | None) -> Function:
    if not reference:
        if handed is None:
            raise RunnerRefused("The transform names no function and none was handed over.")
        return handed
    module, _, name = reference.partition(":")
    try:
        found: Function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise RunnerRefused(f"The transform {reference!r} cannot be imported: {error}") from error
    if not callable(found):
        raise RunnerRefused(f"The transform {reference!r} is not a function.")
    return found


def _by_value(function: Function) -> None:
    """Let functions of the transform's module travel whole: a DAG's file cannot be imported by the executors."""
    module = sys.modules.get(function.__module__) if isinstance(function, FunctionType) else None
    if module is not None and module.__name__ != "__main__":
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
