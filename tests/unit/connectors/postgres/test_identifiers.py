"""Names are read as PostgreSQL reads them, and quoted so that nothing in them is read as SQL."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_backpressure.connectors.postgres.identifiers import QualifiedName, join_names, quote
from airflow_provider_backpressure.exceptions import InvalidDeclaration

part = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), min_size=1, max_size=15)


@pytest.mark.parametrize(
    ("text", "schema", "name"),
    [
        ("public.orders", "public", "orders"),
        ("orders", "public", "orders"),
        ("Sales.Orders", "sales", "orders"),
        ('"Sales"."Orders"', "Sales", "Orders"),
        ('"a.b"."c""d"', "a.b", 'c"d'),
        (' raw . "x y" ', "raw", "x y"),
        ("größe.Ärger_1$", "größe", "Ärger_1$"),
        ('"; drop table x; --".t', "; drop table x; --", "t"),
    ],
)
def test_names_are_folded_unless_quoted(text: str, schema: str, name: str) -> None:
    assert QualifiedName.parse(text) == QualifiedName(schema=schema, name=name)


@pytest.mark.parametrize(
    "text",
    ["", ".", "a.", ".a", "a.b.c", 'a"b', '"a', '""', '"a"b', "a b", "a;b", "a--b", "1a", '"nul\x00"', "a." + "b" * 64],
)
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(InvalidDeclaration):
        QualifiedName.parse(text)


@given(part, part)
def test_a_name_is_read_back_as_it_is_shown(schema: str, name: str) -> None:
    whole = QualifiedName(schema=schema, name=name)
    assert QualifiedName.parse(str(whole)) == whole
    assert QualifiedName.parse(whole.sql) == whole


def test_a_quote_inside_cannot_end_the_name() -> None:
    assert quote('a"; DROP TABLE b; --') == '"a""; DROP TABLE b; --"'


@pytest.mark.parametrize("bad", ["", "a\x00b"])
def test_what_cannot_be_quoted_is_refused(bad: str) -> None:
    with pytest.raises(InvalidDeclaration):
        quote(bad)


def test_names_are_listed_for_a_sentence() -> None:
    assert join_names(["a"]) == "a"
    assert join_names(("a", "B", "c d")) == 'a, "B" and "c d"'
