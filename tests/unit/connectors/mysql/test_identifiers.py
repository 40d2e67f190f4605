"""Names and literals: what leaves them is what was meant, and nothing gets out of its quotes."""

import pytest

from airflow_provider_backpressure.connectors.mysql.identifiers import TableName, join_names, literal, quote
from airflow_provider_backpressure.exceptions import InvalidDeclaration


@pytest.mark.parametrize(
    ("text", "database", "name", "shown"),
    [
        ("orders", "shop", "orders", "shop.orders"),
        ("erp.Orders", "erp", "Orders", "erp.Orders"),
        (" `data base` . `t``1` ", "data base", "t`1", "`data base`.`t``1`"),
        ("erp.2024", "erp", "2024", "erp.`2024`"),
        ("erp.größe", "erp", "größe", "erp.größe"),
    ],
)
def test_a_name_is_read_and_written_back(text: str, database: str, name: str, shown: str) -> None:
    found = TableName.parse(text, "shop")
    assert (found.database, found.name, str(found)) == (database, name, shown)
    assert TableName.parse(str(found), "") == found


@pytest.mark.parametrize("text", ["", "a.b.c", "a b", "`a", "a; DROP TABLE b", "``", "a.", "x" * 65])
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(InvalidDeclaration):
        TableName.parse(text, "shop")


def test_a_table_needs_a_database() -> None:
    with pytest.raises(InvalidDeclaration, match=r"^The table 'orders' names no database"):
        TableName.parse("orders", "")


def test_quotes_hold() -> None:
    assert quote("a`b") == "`a``b`"
    assert literal("it's \\ \x00") == "'it\\'s \\\\ \\0'"
    assert join_names(["a", "b c", "d"]) == "a, `b c` and d"
