"""From a plan in the ledger back to its source: also where that is only a part of a table."""

from typing import Any

import pytest

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.spark_messages import ReadSpec
from airflow_provider_backpressure.hooks.recorded_declaration import SOURCES
from airflow_provider_backpressure.sources import MySQLSource, PostgresSource

PLACE = Endpoint(conn_id="c", host="h", port=1, database="d", user="u")


@pytest.mark.parametrize(
    ("kind", "declared", "table"),
    [
        ("postgres", PostgresSource, "public.t"),
        ("postgres", PostgresSource, '"odd#0123456789ab"."T"'),
        ("mysql", MySQLSource, "d.t"),
    ],
)
@pytest.mark.parametrize("part", [{}, {"where": "id > 7"}])
def test_a_part_of_a_table_is_recorded_under_the_tables_name(
    kind: str, declared: Any, table: str, part: dict[str, str]
) -> None:
    """Its identity has a suffix, which is no part of the name."""
    identity = declared(conn_id="c", table=table, **part).open(PLACE).identity
    again = SOURCES[kind](ReadSpec(kind=kind, conn_id="c", columns=()), identity)
    assert again.open(PLACE).identity == declared(conn_id="c", table=table).open(PLACE).identity
