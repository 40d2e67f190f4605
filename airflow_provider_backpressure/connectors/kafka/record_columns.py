"""The columns of a record: what Kafka says of it, its key, and its value or the fields of that."""

import difflib
from collections.abc import Iterable, Sequence

from airflow_provider_backpressure.core.snapshot.spark_messages import Column
from airflow_provider_backpressure.exceptions import InvalidDeclaration

KEY, VALUE = "key", "value"
METADATA = ("topic", "partition", "offset", "timestamp", KEY, "headers")
"""Columns that every record has, before its value or the fields of that."""


def find_key(columns: Iterable[Column]) -> Column | None:
    """Return the column of keys; ``None`` where it is left out."""
    return next((column for column in columns if column.name == KEY), None)


def find_values(columns: Iterable[Column]) -> tuple[Column, ...]:
    """Return the columns that a record's value makes."""
    return tuple(column for column in columns if column.name not in METADATA)


def choose_columns(every: Sequence[Column], chosen: Sequence[str] | None, topic: str) -> tuple[Column, ...]:
    """Return the chosen columns in the order in which they are named; ``None``: every one.

    :class:`InvalidDeclaration` for a name that no column has.
    """
    if chosen is None:
        return tuple(every)
    found = {column.name: column for column in every}
    check_chosen(chosen, tuple(found), topic)
    return tuple(found[name] for name in chosen)


def check_chosen(chosen: Sequence[object], known: Sequence[str], topic: str) -> None:
    """Raise :class:`InvalidDeclaration` for a name that is not known."""
    for name in chosen:
        if name in known:
            continue
        close = difflib.get_close_matches(str(name), known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}."
        raise InvalidDeclaration(f"KafkaSource.columns names {name}, which topic {topic} has no column for: {hint}")
