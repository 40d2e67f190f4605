"""Declarations as plain values, for what travels as JSON, and back."""

import json
from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime
from enum import Enum
from typing import Any

from airflow_provider_backpressure.exceptions import InvalidDeclaration

CLASS = "class"


def classes() -> dict[str, type]:
    """Return every declaration that may travel, by its name."""
    from airflow_provider_backpressure import sinks, sources

    return {name: getattr(place, name) for place in (sources, sinks) for name in place.__all__}


def plain(declared: Any) -> dict[str, Any]:
    """Return a declaration's fields, each as JSON has it, and the name of its class."""
    values = {field.name: _plain(getattr(declared, field.name)) for field in fields(declared) if field.init}
    return {CLASS: type(declared).__name__, **values}


def text(declared: Any) -> str:
    """Return :func:`plain` as JSON; empty for a declaration of another package, which cannot travel."""
    return json.dumps(plain(declared)) if classes().get(type(declared).__name__) is type(declared) else ""


def from_plain(value: Mapping[str, Any]) -> Any:
    """Return the declaration that :func:`plain` was given; :class:`InvalidDeclaration` for a class of others."""
    known = classes().get(value[CLASS])
    if known is None:
        raise InvalidDeclaration(f"{value[CLASS]} is no declaration of a source or sink that can travel.")
    return known(**{name: _tuples(part) for name, part in value.items() if name != CLASS})


def _plain(value: Any) -> Any:
    match value:
        case Enum():
            return value.value
        case datetime():
            return value.isoformat()
        case tuple() | list():
            return [_plain(each) for each in value]
        case Mapping():
            return {str(key): _plain(each) for key, each in value.items()}
    return value


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
