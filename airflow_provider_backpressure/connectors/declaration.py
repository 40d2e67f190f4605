"""What declarations of sources and targets share. Imports no driver."""

import hashlib
import json
from collections.abc import Sequence

from airflow_provider_backpressure.exceptions import InvalidDeclaration


def take_tuples(declared: object, *names: str, texts: Sequence[str] = ()) -> None:
    """Make tuples of a declaration's lists; :class:`InvalidDeclaration` for a lone name where several are meant.

    ``texts``: further fields, where a text by itself has a meaning.
    """
    for name in (*names, *texts):
        value = getattr(declared, name)
        if isinstance(value, str) and name not in texts:
            raise InvalidDeclaration(
                f"{type(declared).__name__}.{name} must be a tuple of names, not the text {value!r}."
            )
        if isinstance(value, list):
            object.__setattr__(declared, name, tuple(value))


def check_some(declared: object, columns: tuple[str, ...] | None) -> None:
    """Raise :class:`InvalidDeclaration` for a choice of no column at all."""
    if columns == ():
        raise InvalidDeclaration(
            f"{type(declared).__name__}.columns must name at least one column, or be None for all."
        )


def suffix(chosen: Sequence[object]) -> str:
    """Return what a choice adds to a table's identity: a part of a table is another source than the whole."""
    return "#" + hashlib.sha256(json.dumps(chosen).encode()).hexdigest()[:12] if any(chosen) else ""


def taken_key(key: tuple[str, ...] | list[str] | None, what: str) -> tuple[str, ...] | None:
    """Return a key as a tuple; :class:`InvalidDeclaration` for a lone name and for none at all."""
    if key is None:
        return None
    if isinstance(key, str):
        raise InvalidDeclaration(f"{what} must be a tuple of names, not the text {key!r}.")
    if not key:
        raise InvalidDeclaration(f"{what} must name at least one column, or be None for the source's key.")
    return tuple(key)


def check_quarantine(most: int | None, what: str) -> None:
    """Raise :class:`InvalidDeclaration` for what is no number of rows that may be kept aside."""
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
        raise InvalidDeclaration(f"{what} must be a number of rows of at least 1, not {most!r}.")
