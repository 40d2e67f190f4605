"""Names with percent signs beside parameters."""

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg import sql
from psycopg._queries import PostgresQuery
from psycopg.adapt import Transformer

from airflow_provider_backpressure.connectors.postgres.identifiers import quote
from airflow_provider_backpressure.connectors.postgres.predicates import literal

NAMES = st.text(
    st.characters(exclude_characters="\x00", exclude_categories=("Cs",)) | st.sampled_from("%s\"';\\{}"), min_size=1
)


def sent(query: sql.Composable, *values: str) -> str:
    """What the server would be sent."""
    made = PostgresQuery(Transformer())
    made.convert(query, values)
    return made.query.decode()


@given(NAMES, NAMES, NAMES)
def test_only_our_own_placeholders_are_placeholders(table: str, column: str, value: str) -> None:
    query = sql.SQL("SELECT {} FROM {} WHERE a = %s AND b LIKE 'x%%' AND {} < {}").format(
        sql.Identifier(column, table), sql.SQL(quote(table)), sql.Identifier(column), sql.Literal(value)
    )
    assert sent(literal(query), "x") == (
        f"SELECT {quote(column)}.{quote(table)} FROM {quote(table)} WHERE a = $1 AND b LIKE 'x%' AND {quote(column)} < "
        f"{sql.Literal(value).as_string(None)}"
    )


def test_without_it_a_name_is_taken_for_a_placeholder() -> None:
    """What it is for; should psycopg learn it by itself, the room can go."""
    query = sql.SQL("DELETE FROM {} WHERE a = %s").format(sql.Identifier("50%s"))
    with pytest.raises(psycopg.ProgrammingError, match="2 placeholders"):
        sent(query, "x")
