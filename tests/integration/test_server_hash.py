"""Checksums that PostgreSQL adds up itself, by which a mirror finds ranges that did not change."""

import re

import pytest

from airflow_provider_backpressure.connectors.postgres.tasks.copy import copy_slice
from airflow_provider_backpressure.connectors.postgres.tasks.copy_streams import Reading
from airflow_provider_backpressure.connectors.postgres.tasks.server_hash import (
    BY_ARRAY,
    BY_VALUE,
    HashedRows,
    choose_algorithm,
    open_hash,
)
from airflow_provider_backpressure.core.config import Mode
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.spark_messages import ChecksumSpec, Column
from airflow_provider_backpressure.exceptions import SourceRefused
from airflow_provider_backpressure.spark.value_hash import checksum_slice
from tests.integration.attempts import another, begin, typed
from tests.support.postgres import run

pytestmark = [pytest.mark.integration, pytest.mark.in_process, pytest.mark.statement("L2")]


ALGORITHMS = pytest.mark.parametrize("algorithm", [BY_ARRAY, BY_VALUE])


def hash_query(database: Endpoint, query: str, algorithm: str = BY_VALUE) -> HashedRows:
    with open_hash(database, Reading(query=query, name="test"), algorithm) as (_, found):
        return found


def test_the_algorithm_is_one_that_both_servers_know() -> None:
    """L2: libpq's numbers of versions 18.1, 17.6 and 18.0."""
    assert choose_algorithm(180001, 170006) == choose_algorithm(170006, 180001) == BY_ARRAY
    assert choose_algorithm(180001, 180000) == BY_VALUE


@pytest.mark.parametrize(
    ("algorithm", "known"),
    [(BY_ARRAY, "pgsend-hash64:10bbea255f075888"), (BY_VALUE, "pgvalue-hash64:4de01907ec6a3a39")],
)
def test_the_sum_of_known_rows_stays_what_it_is(algorithm: str, known: str, database: Endpoint) -> None:
    """L2: markers of earlier runs hold it. Where this fails, the algorithm needs another name."""
    query = (
        "SELECT i AS id, 'é' || i AS body, i / 8.0::float8 AS share, (i / 100.0)::numeric(12, 2) AS price, "
        "timestamp '2024-01-01' + i * interval '1 s' AS at, NULLIF(i, 3) AS gap FROM generate_series(1, 5::bigint) i"
    )
    assert hash_query(database, query, algorithm) == HashedRows(rows=5, checksum=known)
    none = hash_query(database, "SELECT 1 AS id WHERE false", algorithm)
    assert none == HashedRows(rows=0, checksum=f"{algorithm}:{0:016x}")


def test_text_has_the_same_sum_whatever_a_database_stores_it_in(database: Endpoint) -> None:
    """L2: a database of UTF-8 hashes text where it lies, others what they send of it."""
    query = "SELECT i, chr(233) || i AS body, NULLIF(i, 2)::varchar(9) AS code FROM generate_series(1, 3) i"
    with another(database, "ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0") as other:
        assert hash_query(other, query) == hash_query(database, query)


def test_a_row_may_have_as_many_columns_as_a_table_can(database: Endpoint) -> None:
    """L2: 1,600 terms one inside the other are too deep for the server."""
    query = f"SELECT {', '.join(f'{number} AS c{number}' for number in range(1600))}"
    assert hash_query(database, query).rows == 1


@ALGORITHMS
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("(1, 'a'), (2, 'b')", "(1, 'b'), (2, 'a')"),
        ("(1, 'a'), (1, 'a')", "(2, 'a'), (0, 'a')"),
        ("(1, NULL)", "(1, '')"),
        ("(1, 1.0::text)", "(1, 1.00::text)"),
        ("(1.0, '')", "(1.00, '')"),
        ("(1::bigint, '')", "(4294967296, '')"),
        ("(timestamp '2024-01-01', '')", "(timestamp '2024-01-01 00:00:00.000001', '')"),
        ("(0::float8, '')", "('-0'::float8, '')"),
        ("('a', 'b')", "('b', 'a')"),
        ("(NULL, 'a')", "('a', NULL)"),
        ("('{a,NULL}'::text[], '')", "('{a,\"NULL\"}'::text[], '')"),
        ("('a', 'a'), ('b', 'b')", "('a', 'b'), ('b', 'a')"),
        ("('a', 'a')", "('b', 'b')"),
        ("(NULL, NULL), ('a', 'a')", "(NULL, 'a'), ('a', NULL)"),
    ],
)
def test_rows_that_differ_have_different_sums(one: str, other: str, algorithm: str, database: Endpoint) -> None:
    """L2: also where only the form of a value differs, or rows have exchanged their values."""
    found = [hash_query(database, f"SELECT * FROM (VALUES {rows}) v (x, y)", algorithm) for rows in (one, other)]
    assert found[0].rows == found[1].rows
    assert found[0].checksum != found[1].checksum


def test_every_type_has_the_same_sum_in_every_database(database: Endpoint) -> None:
    """L2: also arrays and composites of the user's own types, whose numbers differ; and the order does not matter."""
    with another(database) as sink:
        columns = typed(database, sink)
        begun = begin(database, sink, table="raw.every", columns=columns, mode=Mode.APPEND, key=("id",))
        spec = begun.spec("SELECT * FROM every")
        copied = copy_slice(spec, spec.slices[0], begun.source, begun.sink)
        here = hash_query(database, "SELECT * FROM every ORDER BY id DESC")
        like = ChecksumSpec(kind="postgres", conn_id="any", query="SELECT * FROM raw.every", like=here.checksum)
        there = checksum_slice(like, sink)
        assert (here.rows, here.rows, here.checksum) == (copied.rows, there.rows, there.checksum)
        assert here.checksum.startswith(f"{BY_VALUE}:")


def test_a_query_that_cannot_be_run_is_refused_by_name(database: Endpoint) -> None:
    run(database, "CREATE TABLE t (id int)", "INSERT INTO t VALUES (0)")
    with pytest.raises(SourceRefused, match="division by zero"):
        hash_query(database, "SELECT 1 / id AS x FROM t")


SPELLINGS = {
    "time": "timetz",
    "time(3)": "time(4)",
    "timetz": "time",
    "varbit": "varbit(3)",
    "bit": "bit(2)",
    "int[]": "bigint[]",
    "information_schema.sql_identifier": "text",
}


@pytest.mark.statement("X4")
def test_a_type_is_known_in_whatever_way_a_plan_spells_it(database: Endpoint) -> None:
    """X4: a column that is of the planned type is no other one; one of another type is refused."""
    for planned, other in SPELLINGS.items():
        columns = (Column(name="v", type=planned),)
        with open_hash(
            database, Reading(query=f"SELECT NULL::{planned} AS v", name="test", columns=columns), BY_VALUE
        ) as (_, found):
            assert found.rows == 1
        with (
            pytest.raises(SourceRefused, match=re.escape(f"column v was {planned} and is ")),
            open_hash(database, Reading(query=f"SELECT NULL::{other} AS v", name="test", columns=columns), BY_VALUE),
        ):
            raise AssertionError(planned)
