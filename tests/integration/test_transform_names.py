"""Column names that Spark reads otherwise than a database: under a transform they are names all the same."""

import uuid
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from airflow_provider_backpressure.connectors.postgres.identifiers import quote
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, ReadSpec, Transform
from airflow_provider_backpressure.runners.connect_runner import ConnectRunner
from tests.integration.attempts import begin, columns_of, difference, execute
from tests.support.marks import mark_long

pytestmark = pytest.mark.integration

SIGNS = ("a.b", "a", "back`tick", 'quo"te', "with space", "{brace}", "100%", "semi;--")
CASES = ("Id", "id", "ID", "a.b")
HOW = ("star", "names", "function", "with_column")


def same(frame: Any) -> Any:
    """Give back every column by its name."""
    from pyspark.sql import functions

    return frame.select([functions.col("`" + name.replace("`", "``") + "`") for name in frame.columns])


def more(frame: Any) -> Any:
    """Give back all columns, one of them made again."""
    from pyspark.sql import functions

    first = frame.columns[0]
    return frame.withColumn(first, functions.col("`" + first.replace("`", "``") + "`"))


def by_name(names: Sequence[str]) -> str:
    """Return a SELECT of these columns, as a person has to write it."""
    return f"SELECT {', '.join('`' + name.replace('`', '``') + '`' for name in names)} FROM source"


# Of SQL and of functions one each for case, which is a setting of the session.
@pytest.mark.parametrize(
    ("names", "how"),
    mark_long(
        product((SIGNS, CASES), HOW), quick=[*product((SIGNS,), HOW), *product((CASES,), ("names", "with_column"))]
    ),
)
def test_names_go_through_a_transform(
    database: Endpoint, runner: ConnectRunner, logins: dict[str, Endpoint], names: tuple[str, ...], how: str
) -> None:
    """By SQL and by a function: the columns described are the columns written, each with its own values."""
    values = ", ".join(f"{number} * 1000 + i" for number, _ in enumerate(names))
    execute(
        database,
        f"CREATE TABLE odd ({', '.join(f'{quote(name)} bigint' for name in names)})",
        f"INSERT INTO odd SELECT {values} FROM generate_series(1, 50) i",
    )
    logins.update({name: replace(database, conn_id=name) for name in ("source", "sink")})
    transform = {
        "star": Transform(sql="SELECT * FROM source"),
        "names": Transform(sql=by_name(names)),
        "function": Transform(python=f"{__name__}:same"),
        "with_column": Transform(python=f"{__name__}:more"),
    }[how]
    read = columns_of(database, "odd")
    made: tuple[Column, ...] = runner.describe(ReadSpec(kind="postgres", conn_id="source", columns=read), transform)
    assert [column.name for column in made] == list(names)
    begun = begin(
        database,
        database,
        table=f"raw.t{uuid.uuid4().hex[:8]}",
        path="frame",
        columns=made,
        read=read,
        transform=transform,
    )
    assert runner.run(begun.spec("SELECT * FROM odd")).result(120).rows == 50
    assert difference(database, "SELECT * FROM odd", database, f"TABLE {begun.plan.write.target}")[2] == 0
