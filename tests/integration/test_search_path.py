"""A role whose search_path has a schema in front of the server's own operators and types."""

from pathlib import Path

import pytest

from airflow_provider_backpressure.core.endpoints import Endpoint
from tests.support.operator_flow import OperatorFlow

pytestmark = pytest.mark.integration

OPERATORS = {">=": "int8ge", "<=": "int8le", "<": "int8lt", ">": "int8gt", "=": "int8eq"}


@pytest.mark.statement("X1")
def test_operators_of_another_schema_leave_no_row_out(database: Endpoint, tmp_path: Path) -> None:
    """X1: they deny that the row 7 has any place in a range."""
    flow = OperatorFlow.make(database, tmp_path)
    flow.do("CREATE SCHEMA evil", "CREATE DOMAIN evil.text AS varchar(3)", "CREATE DOMAIN evil.int8 AS int")
    for sign, function in OPERATORS.items():
        flow.do(
            f"CREATE FUNCTION evil.{function}(bigint, bigint) RETURNS bool LANGUAGE sql IMMUTABLE AS "
            f"'SELECT pg_catalog.{function}($1, $2) AND pg_catalog.int8ne($1, 7)'",
            f"CREATE OPERATOR evil.{sign} (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = evil.{function})",
        )
    flow.do(f"ALTER DATABASE {database.database} SET search_path = evil, pg_catalog, public")
    try:
        done = [flow.run()]
        flow.do("UPDATE public.a SET v = 7", "DELETE FROM public.b WHERE id OPERATOR(pg_catalog.<) 9")
        done += [flow.with_run("run 2").run()]
    finally:
        # The test's own statements mean the server's operators too.
        flow.do(f"ALTER DATABASE {database.database} RESET search_path")
        flow.close()
    assert done == [True, True]
    assert flow.differs() == {}
