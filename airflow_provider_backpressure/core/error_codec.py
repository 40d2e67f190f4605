"""Carries our errors as text through a system that keeps nothing but the text of an exception."""

import re
from typing import TypeVar

from airflow_provider_backpressure import exceptions
from airflow_provider_backpressure.exceptions import BackpressureError

E = TypeVar("E", bound=BaseException)

_MARKED = re.compile(r"\[backpressure:(\w+)\] (.*?) \[/backpressure\]", re.DOTALL)


def to_text(error: BackpressureError) -> str:
    """Return the error's class and sentence in marks that :func:`from_text` finds again inside any other text.

    The class is the nearest one that both sides know.
    """
    known = next(kind.__name__ for kind in type(error).__mro__ if hasattr(exceptions, kind.__name__))
    return f"[backpressure:{known}] {' '.join(str(error).split())} [/backpressure]"


def from_text(text: str) -> BackpressureError | None:
    """Return our last error that the text carries, or ``None``."""
    for name, sentence in reversed(_MARKED.findall(text)):
        kind = getattr(exceptions, name, None)
        if isinstance(kind, type) and issubclass(kind, BackpressureError):
            return kind(sentence)
    return None


def strip_frames(error: E) -> E:
    """Return a library's error, and those behind it, without the frames that raised them, to be kept as a cause.

    A driver's frames hold the login that it was called with, and some loggers print what each frame held. What the
    error says stays.
    """
    behind: BaseException | None = error
    while behind is not None:
        behind.__traceback__ = None
        behind = behind.__cause__ or behind.__context__
    return error
