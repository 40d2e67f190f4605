"""PostgreSQL's types by their counterparts in Spark."""

import pyarrow
import pytest
from pyspark.sql import types as spark

from airflow_provider_backpressure.spark.column_types import carrier, declare_type, postgres_type


@pytest.mark.parametrize(
    ("postgres", "arrow", "counterpart"),
    [
        ("smallint", pyarrow.int16(), "smallint"),
        ("real", pyarrow.float32(), "float"),
        ("timestamp(3) without time zone", pyarrow.timestamp("us"), "timestamp_ntz"),
        ("timestamp(0) with time zone", pyarrow.timestamp("us", tz="UTC"), "timestamp"),
        ("numeric(38,38)", pyarrow.decimal128(38, 38), "decimal(38,38)"),
        ("bytea", pyarrow.binary(), "binary"),
    ],
)
def test_a_type_with_a_counterpart(postgres: str, arrow: pyarrow.DataType, counterpart: str) -> None:
    """Precision of a timestamp does not matter, that of a number does."""
    assert carrier(postgres)[0] == arrow
    assert carrier(postgres)[1].simpleString() == counterpart


@pytest.mark.parametrize(
    "postgres",
    [
        "numeric",
        "numeric(39,2)",
        "numeric(3,-2)",
        "numeric(3,5)",
        "uuid",
        "jsonb",
        "integer[]",
        "interval",
        "time without time zone",
        "character varying(8)",
        "character(5)",
        '"char"',
        "money",
        "typed.mood",
    ],
)
def test_every_other_type_is_text(postgres: str) -> None:
    """In the server's own words."""
    assert carrier(postgres) == (pyarrow.string(), spark.StringType())


def test_types_of_sparks_own_have_columns_to_go_into() -> None:
    """Or none, and are refused."""
    assert postgres_type(spark.ByteType()) == "smallint"
    assert postgres_type(spark.DecimalType(10, 2)) == "numeric(10,2)"
    assert postgres_type(spark.TimestampNTZType()) == "timestamp without time zone"
    assert postgres_type(spark.StringType()) == "text"
    assert postgres_type(spark.ArrayType(spark.IntegerType())) is None
    assert postgres_type(spark.NullType()) is None


@pytest.mark.statement("X4")
def test_a_moment_is_declared_as_one_whatever_the_server_takes_timestamp_for() -> None:
    """X4: under spark.sql.timestampType=TIMESTAMP_NTZ the word is a time without a zone."""
    assert declare_type(spark.TimestampType()) == "timestamp_ltz"
    assert declare_type(spark.TimestampNTZType()) == "timestamp_ntz"
    assert declare_type(spark.DecimalType(10, 2)) == "decimal(10,2)"
