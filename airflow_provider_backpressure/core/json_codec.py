"""Reads frozen dataclasses from JSON values as :func:`dataclasses.asdict` wrote them.

Part of what a Spark job ships: standard library only.
"""

from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from datetime import datetime
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

_hints: Callable[[Any], dict[str, Any]] = cache(get_type_hints)


def from_dict(cls: type[T], value: Mapping[str, Any]) -> T:
    """Build a dataclass from its JSON object. A field that is missing gets its default.

    ``TypeError`` for a field that is unknown, or is missing and has no default; ``ValueError`` for an unknown member of
    an enum or a text that is no time. Mappings and scalars are not checked.
    """
    hints = _hints(cls)
    return cls(**{name: _decode(hints.get(name), part) for name, part in value.items()})


def _decode(hint: Any, value: Any) -> Any:
    if get_origin(hint) in (Union, UnionType):
        return None if value is None else _decode(_only_type(hint), value)
    if get_origin(hint) is tuple:
        return _decode_tuple(get_args(hint), value)
    if not isinstance(hint, type):
        return value
    if is_dataclass(hint):
        return value if isinstance(value, hint) else from_dict(hint, value)
    if issubclass(hint, Enum):
        return hint(value)
    return datetime.fromisoformat(value) if hint is datetime else value


def _only_type(union: Any) -> Any:
    # Which of several types a value is of is not known: it stays as it is.
    types = [each for each in get_args(union) if each is not NoneType]
    return types[0] if len(types) == 1 else None


def _decode_tuple(hints: tuple[Any, ...], values: Any) -> tuple[Any, ...]:
    if hints[-1] is ...:
        return tuple(_decode(hints[0], value) for value in values)
    return tuple(_decode(hint, value) for hint, value in zip(hints, values, strict=True))
