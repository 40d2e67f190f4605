"""The declaration of a PostgreSQL sink, and the names that other rooms go by."""

import dataclasses
import subprocess
import sys

import pytest

from airflow_provider_backpressure.connectors.postgres.attempt_sessions import plan_prefix, slice_prefix
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.ranges import attempt_tag
from airflow_provider_backpressure.exceptions import InvalidDeclaration
from airflow_provider_backpressure.sinks import PostgresSink

ENDPOINT = Endpoint(conn_id="warehouse", host="wh", port=5432, database="dw", user="writer", password="s3cret")


def test_importing_it_imports_no_driver() -> None:
    code = "import sys, airflow_provider_backpressure.sinks; print({'psycopg', 'airflow'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


def test_it_is_frozen_and_names_its_templated_fields() -> None:
    sink = PostgresSink(conn_id="warehouse", table="raw.{{ params.table }}", key=["id"])  # type: ignore[arg-type]
    assert sink.key == ("id",)
    with pytest.raises(dataclasses.FrozenInstanceError):
        sink.table = "other"  # type: ignore[misc]
    assert {*PostgresSink.templated, "quarantine"} == {field.name for field in dataclasses.fields(PostgresSink)}


@pytest.mark.parametrize("key", ["id", ()])
def test_what_cannot_be_meant_is_refused(key: object) -> None:
    with pytest.raises(InvalidDeclaration):
        PostgresSink(conn_id="c", table="t", key=key)  # type: ignore[arg-type]


def test_the_identity_has_no_secret_and_needs_no_connection() -> None:
    sink = PostgresSink(conn_id="warehouse", table="raw.Orders").open(ENDPOINT)
    assert sink.identity == "postgres://wh:5432/dw/raw.orders"
    assert "s3cret" not in repr(vars(sink))


def test_attempts_are_told_apart_by_their_whole_slice_id() -> None:
    plan = "0" * 32
    assert attempt_tag(plan, "1.0", 3).startswith(slice_prefix(plan, "1.0"))
    for other in ("11.0", "1.01", "1.1", "2.0"):
        assert not attempt_tag(plan, other, 3).startswith(slice_prefix(plan, "1.0"))
    assert attempt_tag(plan, "1.0", 3).startswith(plan_prefix(plan))
    assert not attempt_tag("1" * 32, "1.0", 3).startswith(plan_prefix(plan))
