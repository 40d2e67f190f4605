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
        known = {field.name: field for field in fields(kind) if field.init}
        for name in values.keys() - known.keys():
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"it takes {', '.join(known)}."
            raise InvalidDeclaration(f"{cls.__name__} has no argument {name}: {hint}")
        needed = [name for name, field in known.items() if field.default is field.default_factory is MISSING]
        if values and (missing := [name for name in needed if name not in values]):
            raise InvalidDeclaration(f"{cls.__name__} needs {' and '.join(missing)}.")
        for name, value in values.items():
            check_kind(f"{cls.__name__}.{name}", value, _hints(kind).get(name))
            if name in NAMES:
                check_name(f"{cls.__name__}.{name}", value)
        return super().__new__(cls)


def check_kind(what: str, value: Any, hint: Any) -> None:
    """Raise :class:`InvalidDeclaration` for a value of another kind than a text, a truth or a whole number.

    Other kinds are not checked here, and neither is what Airflow has still to resolve: the result of a task.
    """
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if not all(kind in PLAIN or kind is NoneType for kind in kinds) or hasattr(value, "resolve"):
        return
    if type(value) in kinds or any(kind is not int and isinstance(value, kind) for kind in kinds):
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
def _hints(cls: Any) -> dict[str, Any]:
    return get_type_hints(cls)
