"""The page of types in files is what the libraries make of them."""

from pathlib import Path

import pyarrow
import pytest
from deltalake import Schema
from pyiceberg.io.pyarrow import _ConvertToIcebergWithoutIDs, visit_pyarrow

from airflow_provider_backpressure.connectors.lake.iceberg.data_files import to_stored_schema
from airflow_provider_backpressure.core.snapshot.spark_messages import Column
from airflow_provider_backpressure.spark.column_types import PLAIN, arrow_schema, arrow_type

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "types-in-files.md"
OTHERS = ("numeric(15,2)", "numeric", "uuid", "jsonb", "integer[]", "time without time zone", "interval")


def documented() -> list[list[str]]:
    """The rows of the page's table."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    return [[cell.strip().strip("`") for cell in line.split("|")[1:-1]] for line in lines]


def found(postgres: str) -> list[str]:
    """What the formats have for a type."""
    schema = arrow_schema([Column(name="c", type=postgres)])
    (delta,) = Schema.from_arrow(schema).fields
    iceberg = visit_pyarrow(to_stored_schema(schema), _ConvertToIcebergWithoutIDs()).fields[0].field_type
    return [postgres, str(arrow_type(postgres)), str(delta.type.type), str(iceberg)]


def test_the_page_says_what_the_formats_have() -> None:
    """Every carried type, and some that are carried as text."""
    assert documented() == [found(postgres) for postgres in (*PLAIN, *OTHERS)]


@pytest.mark.parametrize("postgres", ["numeric", "numeric(40,2)", "numeric(3,-2)", "uuid", "no such type"])
def test_what_has_no_counterpart_is_text(postgres: str) -> None:
    """As PostgreSQL prints it."""
    assert arrow_type(postgres) == pyarrow.string()


def test_precision_of_time_is_no_other_type() -> None:
    """Microseconds hold them all."""
    assert arrow_type("timestamp(3) with time zone") == pyarrow.timestamp("us", "UTC")
