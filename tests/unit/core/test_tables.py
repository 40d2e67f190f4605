"""Sources of several tables: patterns, and where each table goes."""

import pytest

from airflow_provider_backpressure.core.tables import TableName, matching, targets
from airflow_provider_backpressure.exceptions import InvalidDeclaration

SHOP = [
    TableName(schema=schema, name=name, spelled=f"{schema}.{name}")
    for schema, name in (("shop", "orders"), ("shop", "order_lines"), ("old", "orders"))
]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("shop.*", ["shop.orders", "shop.order_lines"]),
        ("*.orders", ["shop.orders", "old.orders"]),
        ("shop.order?", ["shop.orders"]),
        ("shop.ORDERS", []),
        ("*", ["shop.orders", "shop.order_lines", "old.orders"]),
    ],
)
def test_a_pattern_is_compared_with_schema_and_table(pattern, found):
    assert [table.spelled for table in matching(SHOP, pattern)] == found


def test_each_table_has_a_target_of_its_own():
    quoted = targets(SHOP, "{schema}/{table}.", spell=lambda part: f"<{part}>")
    assert list(quoted.values()) == ["<shop>/<orders>.", "<shop>/<order_lines>.", "<old>/<orders>."]
    with pytest.raises(InvalidDeclaration, match=r"Several tables would go into raw\.orders: write \{schema\}"):
        targets(SHOP, "raw.{table}", spell=str)


def test_a_schema_that_is_not_known_has_no_place_in_a_name():
    with pytest.raises(InvalidDeclaration, match="orders names no schema"):
        targets([TableName(schema="", name="orders", spelled="orders")], "{schema}.{table}", spell=str)
