"""Bounds in MySQL's words."""

import pytest

from airflow_provider_backpressure.connectors.mysql.identifiers import KeyColumn, KeyKind, conditions, within_window
from airflow_provider_backpressure.core.snapshot.bounds import BlockBounds, KeyBounds, NullBounds
from airflow_provider_backpressure.core.snapshot.spark_messages import Window
from airflow_provider_backpressure.exceptions import InvalidDeclaration

ID = KeyColumn(name="id", kind=KeyKind.INTEGER)
NAME = KeyColumn(name="na`me", kind=KeyKind.TEXT)
RAW = KeyColumn(name="raw", kind=KeyKind.BYTES)


def test_bounds_are_half_open() -> None:
    assert conditions(KeyBounds.of_column(column="id", start="1", end="9"), [ID]) == ["`id` >= 1", "`id` < 9"]
    assert conditions(KeyBounds.of_column(column="id", start=None, end=None), [ID]) == []
    assert conditions(NullBounds(column="id"), [ID]) == ["`id` IS NULL"]
    assert conditions(KeyBounds.of_column(column="raw", start="\\x00ff", end=None), [RAW]) == ["`raw` >= X'00ff'"]
    assert conditions(KeyBounds(columns=(), start=None, end=None), []) == []


def test_several_columns_are_compared_one_after_the_other() -> None:
    """By a comparison of rows MySQL would not use the index."""
    bounds = KeyBounds(columns=("id", "na`me"), start=("1", "it's"), end=None)
    assert conditions(bounds, [ID, NAME]) == ["(`id` >= 1 AND (`id` > 1 OR `na``me` >= 'it\\'s'))"]
    bounds = KeyBounds(columns=("id", "na`me"), start=None, end=("1", "b"))
    assert conditions(bounds, [ID, NAME]) == ["(`id` <= 1 AND (`id` < 1 OR `na``me` < 'b'))"]


@pytest.mark.parametrize(("column", "value"), [(ID, "1 OR 1"), (ID, ""), (RAW, "00"), (RAW, "\\x0'")])
def test_a_boundary_of_another_kind_is_refused(column: KeyColumn, value: str) -> None:
    with pytest.raises(InvalidDeclaration, match="is no boundary of"):
        conditions(KeyBounds.of_column(column=column.name, start=value, end=None), [column])
    with pytest.raises(InvalidDeclaration, match="no bounds like"):
        conditions(BlockBounds(table="t", file=1, start=(0, 0), end=None), [ID])


def test_a_window_begins_above_what_is_there() -> None:
    assert within_window(Window(column="id", after="3", upto="5"), ID) == ["`id` > 3", "`id` <= 5"]
    assert within_window(Window(column="id", after=None, upto="5"), ID) == ["(`id` <= 5 OR `id` IS NULL)"]
