"""Writes frozen dataclasses as JSON, as :func:`dataclasses.asdict` has their values, and reads them from it.

Part of what a Spark job ships: standard library only.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

Decoder = Callable[[Any], Any]


def to_json(value: Any) -> str:
    """Return a dataclass as JSON. Its parts are not copied first, as ``asdict`` does: that takes most of the time."""
    return json.dumps(value, default=_to_dict)


def _to_dict(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass by their names; ``TypeError`` for what JSON has no form of."""
    if not is_dataclass(value) or isinstance(value, type):
        raise TypeError(f"{type(value).__name__} has no form in JSON.")
    return {name: getattr(value, name) for name in _list_names(type(value))}


@cache
def _list_names(cls: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(cls))


def from_dict(cls: type[T], value: Mapping[str, Any]) -> T:
    """Build a dataclass from its JSON object. A field that is missing gets its default.

    ``TypeError`` for a field that is unknown, or is missing and has no default; ``ValueError`` for an unknown member of
    an enum or a text that is no time. Mappings and scalars are not checked.
    """
    decoders = _list_decoders(cls)
    return cls(**{name: decoders[name](part) if name in decoders else part for name, part in value.items()})


def _build_each(cls: Any) -> dict[str, Decoder]:
    """Return what decodes the fields of a dataclass; those whose values stay as they are are left out."""
    found = {name: _build(hint) for name, hint in get_type_hints(cls).items()}
    return {name: decoder for name, decoder in found.items() if decoder is not None}


_list_decoders: Callable[[Any], dict[str, Decoder]] = cache(_build_each)


def _build(hint: Any) -> Decoder | None:
    """Return what decodes values of a type; ``None`` where they stay as they are."""
    if get_origin(hint) in (Union, UnionType):
        inner = _build(_only_type(hint))
        return None if inner is None else lambda value: None if value is None else inner(value)
    if get_origin(hint) is tuple:
        return _build_tuple(get_args(hint))
    if not isinstance(hint, type):
        return None
    if is_dataclass(hint):
        return lambda value: value if isinstance(value, hint) else from_dict(hint, value)
    if issubclass(hint, Enum):
        return hint
    return datetime.fromisoformat if hint is datetime else None


def _only_type(union: Any) -> Any:
    # Which of several types a value is of is not known: it stays as it is.
    types = [each for each in get_args(union) if each is not NoneType]
    return types[0] if len(types) == 1 else None


def _build_tuple(hints: tuple[Any, ...]) -> Decoder:
    if hints[-1] is ...:
        inner = _build(hints[0])
        return tuple if inner is None else lambda values: tuple(map(inner, values))
    parts = [_build(hint) or _keep for hint in hints]
    return lambda values: tuple(decode(value) for decode, value in zip(parts, values, strict=True))


def _keep(value: Any) -> Any:
    return value
