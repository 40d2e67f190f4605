"""A third database: its names, its catalogue and its errors are enough for keys, columns and pieces."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from airflow_provider_backpressure.connectors.relational.catalog_table import CatalogTable, TableColumn, TableKey
from airflow_provider_backpressure.connectors.relational.errors import DriverErrors
from airflow_provider_backpressure.connectors.relational.identifiers import Quoting, RelationName
from airflow_provider_backpressure.connectors.relational.key_choice import (
    check_rising,
    choose_names,
    find_obstacle,
    find_primary_obstacle,
    split_by_column,
)
from airflow_provider_backpressure.connectors.relational.range_pieces import cut_evenly
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.bounds import KeyBounds, NullBounds, Values
from airflow_provider_backpressure.core.snapshot.spark_messages import Column
from airflow_provider_backpressure.exceptions import (
    InvalidDeclaration,
    SourceRefused,
    SourceUnavailable,
    Terminal,
    Transient,
)

HERE = Endpoint(conn_id="db", host="h", port=1, database="", user="u")


@dataclass(frozen=True, kw_only=True)
class Name(RelationName):
    quoting = Quoting(mark="'", plain=re.compile("[a-z]+"), container="library")
    name: str

    @property
    def parts(self) -> tuple[str, str]:
        return "Lib", self.name


@dataclass(frozen=True, kw_only=True)
class TypedColumn(TableColumn):
    coarse = re.compile("day")
    type: str

    @property
    def shown_type(self) -> str:
        return self.type

    @property
    def is_key(self) -> bool:
        return self.type != "blob"


class Table(CatalogTable[Name, TypedColumn, TableKey]):
    key_types = "number and day"

    @property
    def is_stored(self) -> bool:
        return self.kind == "table"


def column(name: str, type: str = "number", *, not_null: bool = True) -> TypedColumn:
    return TypedColumn(name=name, type=type, not_null=not_null, has_default=False, collation=None, loose=False)


def key(*columns: str, primary: bool = False) -> TableKey:
    return TableKey(columns=columns, primary=primary)


def table(*keys: TableKey, kind: str = "table") -> Table:
    columns = (column("id"), column("Day", "day", not_null=False), column("picture", "blob"))
    return Table(name=Name(name="t"), kind=kind, columns=columns, keys=keys)


@dataclass(frozen=True, kw_only=True)
class Errors(DriverErrors):
    raised = (OSError,)

    def translate(self, error: Any, endpoint: Endpoint) -> Terminal | Transient:
        return self.unavailable(f"lost: {error}")

    def at_the_door(self, error: Any, endpoint: Endpoint) -> Terminal | Transient:
        return self.refused(str(error))


def test_a_name_is_quoted_where_it_has_to_be() -> None:
    assert str(Name(name="t")) == "'Lib'.t"
    assert Name(name="o'x").sql == "'Lib'.'o''x'"
    assert Name.quoting.join_names(["a", "B", "c"]) == "a, 'B' and c"
    with pytest.raises(InvalidDeclaration, match="no name for a column, table or library"):
        Name.quoting.quote("")


def test_a_table_is_split_by_a_column_of_a_type_that_can_be_cut() -> None:
    split = split_by_column(table(), "id", [key("id")])
    assert ([each.name for each in split.columns], split.unique, split.key) == (["id"], True, ("id",))
    assert not split_by_column(table(), "Day", [key("id")]).unique
    with pytest.raises(SourceRefused, match="its type is blob, and ranges are cut by columns of number and day"):
        split_by_column(table(), "picture", [])
    with pytest.raises(SourceRefused, match="has no column 'No'"):
        split_by_column(table(), "No", [])


@pytest.mark.parametrize(("kind", "warned"), [("table", True), ("view", False)])
def test_a_missing_index_is_said_of_a_table_only(kind: str, warned: bool, caplog: pytest.LogCaptureFixture) -> None:
    split_by_column(table(kind=kind), "id", [])
    assert ("no index" in caplog.text) is warned


def test_increments_need_a_column_that_is_read_as_it_is() -> None:
    assert check_rising(table(), "id", columns=None, as_text=()).name == "id"
    for columns, as_text in ((("Day",), ()), (None, ("id",))):
        with pytest.raises(SourceRefused, match="has to be among the columns as it is"):
            check_rising(table(), "id", columns=columns, as_text=as_text)


def test_a_key_fits_whose_columns_can_be_cut_and_are_never_null() -> None:
    assert find_obstacle(table(), key("id")) is None
    assert find_obstacle(table(), key("id", "Day")) == "'Day' may be NULL"
    found = find_primary_obstacle(table(key("id"), key("picture", primary=True)))
    assert found == "of its primary key picture, the type of picture is blob, and only number and day are supported"
    assert find_primary_obstacle(table(key("id"))) is None


def test_columns_are_asked_for_once_and_exist() -> None:
    assert choose_names(table(), None, ()) == ("id", "Day", "picture")
    assert choose_names(table(), ("Day", "id"), ("id",)) == ("Day", "id")
    for names, as_text, message in (
        (("x",), (), "has no column x"),
        (("id", "id"), (), "twice"),
        (("id",), ("Day",), "as_text names 'Day'"),
    ):
        with pytest.raises(SourceRefused, match=message):
            choose_names(table(), names, as_text)


@pytest.mark.parametrize(("rows", "parts", "steps"), [(10, 2, [5]), (10, 3, [4]), (0, 3, [])])
def test_a_range_is_cut_into_equal_parts(rows: int, parts: int, steps: list[int]) -> None:
    asked: list[int] = []

    def find_boundaries(step: int) -> Iterator[Values]:
        asked.append(step)
        yield (str(step),)

    whole = KeyBounds(columns=("id",), start=None, end=None)
    columns = [Column(name="id", type="integer", nullable=True)]
    pieces = cut_evenly(whole, columns, rows=rows, parts=parts, find_boundaries=find_boundaries)
    assert asked == steps
    # Rows without a key belong to the whole only: its pieces leave them to one of their own.
    assert [isinstance(piece, NullBounds) for piece in pieces] == ([False, False, True] if steps else [False])


def test_a_piece_has_no_rows_without_a_key() -> None:
    piece = KeyBounds(columns=("id",), start=("1",), end=("9",))
    columns = [Column(name="id", type="integer", nullable=True)]
    pieces = cut_evenly(piece, columns, rows=8, parts=2, find_boundaries=lambda step: iter([("5",)]))
    assert [(each.start, each.end) for each in pieces if isinstance(each, KeyBounds)] == [
        (("1",), ("5",)),
        (("5",), ("9",)),
    ]
    assert len(pieces) == 2


def test_errors_of_reading_are_translated_behind_what_was_read() -> None:
    errors = Errors(refused=SourceRefused, unavailable=SourceUnavailable)

    def read() -> Iterator[int]:
        yield 1
        raise OSError("gone")

    blocks = errors.translate_blocks(read(), HERE)
    assert next(blocks) == 1
    with pytest.raises(SourceUnavailable, match="lost: gone"):
        next(blocks)
