"""Sources of several tables: patterns, and where each table goes."""

import pytest

from airflow_provider_backpressure.core.table_selection import TableName, in_files, match_tables, targets
from airflow_provider_backpressure.exceptions import InvalidDeclaration
from airflow_provider_backpressure.sinks import SparkTableSink

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
    assert [table.spelled for table in match_tables(SHOP, pattern)] == found


def test_names_that_differ_in_case_alone_are_one_where_the_catalog_folds_them():
    tables = [TableName(schema="public", name=name, spelled=name) for name in ("orders", "Orders")]
    assert len(targets(tables, "lake.raw.{table}", spell=str)) == 2
    with pytest.raises(InvalidDeclaration, match=r"Several tables would go into spark_catalog\.raw\.orders"):
        targets(tables, "spark_catalog.raw.{table}", spell=str, folds=True)
    assert SparkTableSink(table="spark_catalog.raw.{table}", spark_conn_id="s").folds_names
    assert not SparkTableSink(table="lake.raw.{table}", spark_conn_id="s").folds_names


def test_each_table_has_a_target_of_its_own():
    quoted = targets(SHOP, "{schema}/{table}.", spell=lambda part: f"<{part}>")
    assert list(quoted.values()) == ["<shop>/<orders>.", "<shop>/<order_lines>.", "<old>/<orders>."]
    with pytest.raises(InvalidDeclaration, match=r"Several tables would go into raw\.orders: write \{schema\}"):
        targets(SHOP, "raw.{table}", spell=str)


def test_a_schema_that_is_not_known_has_no_place_in_a_name():
    with pytest.raises(InvalidDeclaration, match="orders names no schema"):
        targets([TableName(schema="", name="orders", spelled="orders")], "{schema}.{table}", spell=str)


def test_names_do_not_stand_for_each_other():
    odd = TableName(schema="{table}", name="{schema}", spelled="odd")
    assert targets([odd], "{schema}.{table}", spell=str) == {"odd": "{table}.{schema}"}


@pytest.mark.parametrize("name", ["..", ".", "../../etc", "a/b", "a\\b", "a\nb", "a\x00b"])
def test_a_source_does_not_decide_where_files_go(name):
    """Who may make a table there may call it what he likes."""
    table = TableName(schema="shop", name=name, spelled=name)
    with pytest.raises(InvalidDeclaration, match="cannot be part of a path"):
        targets([table], "/lake/{schema}/{table}", spell=in_files)


def test_a_name_that_is_only_odd_may_be_a_folder_s():
    odd = 'It\'s "5%" … {x}; --'
    table = TableName(schema="shop", name=odd, spelled=odd)
    assert targets([table], "/lake/{table}", spell=in_files) == {odd: f"/lake/{odd}"}
