"""What a DAG declares, checked as it is parsed: kinds of arguments, their names, blanks at the edges of names."""

import difflib
from dataclasses import MISSING, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from airflow_provider_backpressure.exceptions import InvalidDeclaration

PLAIN: dict[type, str] = {str: "a text", bool: "True or False", int: "a whole number"}
"""Kinds that are checked, and how they are called."""
NAMES = frozenset({"conn_id", "table", "topic", "path", "split_column", "increment_column", "system_schema"})


class Declared:
    """Base of declarations, which are frozen dataclasses: refuses in a sentence what Python would refuse in its own."""

    def __new__(cls, *args: Any, **values: Any) -> Any:
        """Check the arguments. A copy is made without any."""
        if args:
            raise InvalidDeclaration(
                f"{cls.__name__} takes its arguments by name, as in {cls.__name__}({_example(cls)}), not {args[0]!r}."
            )
        kind: Any = cls
        known, needed = _fields(kind)
        for name in values.keys() - known.keys():
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"it takes {', '.join(known)}."
            raise InvalidDeclaration(f"{cls.__name__} has no argument {name}: {hint}")
        if values and (missing := [name for name in needed if name not in values]):
            raise InvalidDeclaration(f"{cls.__name__} needs {' and '.join(missing)}.")
        for name, value in values.items():
            # A DAG may declare thousands of tables, so what is as it should be takes no more than this.
            hint, kinds = known[name]
            if kinds and type(value) not in kinds:
                check_kind(f"{cls.__name__}.{name}", value, hint)
            if name in NAMES and (type(value) is not str or len(value.split()) != 1 or value != value.strip()):
                check_name(f"{cls.__name__}.{name}", value)
        return super().__new__(cls)


def check_kind(what: str, value: Any, hint: Any) -> None:
    """Raise :class:`InvalidDeclaration` for a value of another kind than a text, a truth or a whole number.

    Other kinds are not checked here, and neither is what Airflow has still to resolve: the result of a task.
    """
    kinds = _plain_kinds(hint)
    if not kinds or hasattr(value, "resolve") or type(value) in kinds:
        return
    if any(kind is not int and isinstance(value, kind) for kind in kinds):
        return
    wanted = " or ".join("None" if kind is NoneType else PLAIN[kind] for kind in kinds)
    raise InvalidDeclaration(f"{what} must be {wanted}, not {value!r}.")


def check_name(what: str, value: Any) -> None:
    """Raise :class:`InvalidDeclaration` for a blank at a name's edge; templates and quoted names may have them."""
    if not isinstance(value, str) or any(mark in value for mark in ("{{", "{%", '"', "`")):
        return
    if any(part != part.strip() for part in value.split(".")):
        raise InvalidDeclaration(f"{what} has a blank at the edge of a name: {value!r}. Leave the blank out.")


def _example(cls: Any) -> str:
    names = [field.name for field in fields(cls) if field.name in ("conn_id", "table", "topic", "path")]
    return ", ".join(f'{name}="…"' for name in names)


@cache
def _fields(cls: Any) -> tuple[dict[str, tuple[Any, tuple[Any, ...]]], list[str]]:
    """Return the hints of a declaration's arguments, with the kinds that are checked, and those without a default."""
    hints, taken = get_type_hints(cls), [field for field in fields(cls) if field.init]
    needed = [field.name for field in taken if field.default is field.default_factory is MISSING]
    return {field.name: (hints.get(field.name), _plain_kinds(hints.get(field.name))) for field in taken}, needed


def _plain_kinds(hint: Any) -> tuple[Any, ...]:
    """Return the kinds of a hint that are checked; none where another kind is among them."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return kinds if all(kind in PLAIN or kind is NoneType for kind in kinds) else ()
