"""Rows in PostgreSQL's binary form: the server reads them as it reads text, and sends back what was hashed."""

import datetime
import random
from decimal import Context, Decimal
from typing import Any

import psycopg
import pyarrow
import pytest
from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.tasks import binary_copy as binary
from airflow_provider_backpressure.connectors.postgres.tasks.connections import connect_sink
from airflow_provider_backpressure.connectors.postgres.tasks.copy_streams import CopyOut
from airflow_provider_backpressure.connectors.postgres.tasks.staging_table import RowSum, open_copy_in
from airflow_provider_backpressure.connectors.postgres.tasks.write import to_csv
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, WriteSpec
from airflow_provider_backpressure.exceptions import RangeFailed, SinkRefused
from airflow_provider_backpressure.spark.column_types import arrow_type
from tests.support.postgres import run

pytestmark = pytest.mark.integration

UTC = datetime.UTC
EXACT = Context(prec=40)
NUMBERS = [(1, 0), (4, 4), (5, 2), (15, 2), (17, 1), (18, 0), (18, 18), (20, 0), (22, 5), (38, 0), (38, 19), (38, 38)]
"""Precision and scale: within 64 bits, at their edge, and beyond."""
VALUES: dict[str, list[Any]] = {
    "smallint": [0, 1, -1, 32767, -32768],
    "integer": [0, -1, 2**31 - 1, -(2**31)],
    "bigint": [0, -1, 2**63 - 1, -(2**63)],
    "real": [0.0, -0.0, 1.5, 3.0e38, float("inf"), float("-inf"), float("nan")],
    "double precision": [0.0, -0.0, 0.1, 5e-324, 1.7e308, float("inf"), float("-inf"), float("nan")],
    "boolean": [True, False],
    "date": [datetime.date(1, 1, 1), datetime.date(1970, 1, 1), datetime.date(2000, 1, 1), datetime.date(9999, 12, 31)],
    "timestamp without time zone": [
        datetime.datetime(1, 1, 1),
        datetime.datetime(1999, 12, 31, 23, 59, 59, 999999),
        datetime.datetime(9999, 12, 31, 23, 59, 59, 999999),
    ],
    "timestamp with time zone": [datetime.datetime(1, 1, 1, tzinfo=UTC), datetime.datetime(2024, 2, 29, tzinfo=UTC)],
    "text": ["", "a", "\\N", '"quoted", and\n\tmore', "ä€𝄞", " trailing  "],
    "character varying(5)": ["", "ä€𝄞ab", "abc  "],
    "character varying": ["", "x" * 300],
    "character(4)": ["", "ä", "abcd", "a  "],
    "json": ["{}", ' {"a" : 1,  "a": 2}', "null", '"\\u00e4"'],
    "bytea": [b"", b"\0", bytes(range(256))],
    **{
        f"numeric({precision},{scale})": [
            EXACT.scaleb(Decimal(sign * digits), -scale)
            for digits in {0, 1, 10 ** (precision - 1), 10**precision - 1, 10 ** (precision // 2)}
            for sign in (1, -1)
        ]
        for precision, scale in NUMBERS
    },
}
ROWS = 400


@pytest.fixture
def batch() -> pyarrow.RecordBatch:
    """A column of each type, of random values, of every second one with NULLs; it begins within its buffers."""
    made = random.Random(7)

    def column(number: int, type_: str) -> pyarrow.Array:
        values = [*VALUES[type_], *([None] * (number % 2))]
        if type_.startswith("numeric("):
            precision, scale = map(int, type_[8:-1].split(","))
            digits = (made.randrange(10 ** made.randint(1, precision)) for _ in range(40))
            values += [EXACT.scaleb(Decimal(each), -scale) for each in digits]
        return pyarrow.array([made.choice(values) for _ in range(ROWS)], arrow_type(type_))

    names = [str(number) for number in range(len(VALUES))]
    arrays = [column(number, type_) for number, type_ in enumerate(VALUES)]
    return pyarrow.record_batch(arrays, names=names).slice(3)


def table(database: Endpoint, name: str) -> WriteSpec:
    """Make a table of a column of each type."""
    columns = tuple(Column(name=str(number), type=type_) for number, type_ in enumerate(VALUES))
    defined = ", ".join(f'"{each.name}" {each.type}' for each in columns)
    run(database, f"CREATE TABLE {name} ({defined})")
    return write(name, columns)


def write(name: str, columns: tuple[Column, ...]) -> WriteSpec:
    """What a task knows of the table."""
    return WriteSpec(
        kind="postgres",
        conn_id="test",
        target=name,
        columns=columns,
        mode="append",
        key=(),
        plan_table="",
        commit_table="",
        fence="",
    )


def fill(connection: psycopg.Connection, spec: WriteSpec, block: bytes | memoryview, options: str) -> None:
    """Write rows by COPY."""
    with open_copy_in(connection, sql.SQL(spec.target), spec.columns, options) as copy:
        copy.put(block)


def test_the_server_has_what_its_own_reading_of_text_gives(database: Endpoint, batch: pyarrow.RecordBatch) -> None:
    """Both ways into a table of all types make the same rows, and its binary form is what was sent."""
    ours, plain = table(database, "ours"), table(database, "plain")
    with connect_sink(database, name="test") as connection:
        columns = binary.targets(connection, ours)
        assert columns is not None
        assert binary.fits(batch.schema, columns)
        encoded = binary.rows(batch, columns)
        fill(connection, ours, binary.BEGINNING + bytes(binary.block(encoded)) + binary.ENDING, binary.OPTIONS)
        fill(connection, plain, to_csv(batch), "FORMAT csv")
        sent, back = RowSum(), RowSum()
        sent.add(encoded.to_pylist())
        stream = CopyOut(connection, "COPY ours TO STDOUT (FORMAT binary)")
        for messages in stream:
            back.update(messages)
        assert back.finish(stream.rows) == sent.finish(batch.num_rows)
        assert back.bytes == sent.bytes
        for one, other in (("ours", "plain"), ("plain", "ours")):
            rest = f"SELECT t::text FROM {one} t EXCEPT ALL SELECT t::text FROM {other} t"
            assert connection.execute(rest).fetchall() == []


def test_a_moment_fits_in_whatever_zone_it_is_shown(database: Endpoint) -> None:
    """Spark names its session's zone; a time without one is something else."""
    run(database, "CREATE TABLE t (a timestamptz)")
    with connect_sink(database, name="test") as connection:
        columns = binary.targets(connection, write("t", (Column(name="a", type="timestamp with time zone"),)))
    assert columns is not None
    for type_, fitting in ((pyarrow.timestamp("us", "Europe/Berlin"), True), (pyarrow.timestamp("us"), False)):
        schema = pyarrow.schema([("a", type_)])
        assert binary.fits(schema, columns) is fitting
        if fitting:
            one = pyarrow.record_batch([pyarrow.array([0], type_)], schema=schema)
            assert bytes(binary.block(binary.rows(one, columns)))[6:] == (-946_684_800_000_000).to_bytes(
                8, "big", signed=True
            )


def test_no_rows_are_none(database: Endpoint, batch: pyarrow.RecordBatch) -> None:
    """An empty batch has no rows to send."""
    spec = table(database, "ours")
    with connect_sink(database, name="test") as connection:
        assert len(binary.rows(batch.slice(0, 0), binary.targets(connection, spec) or [])) == 0


@pytest.mark.parametrize("type_", ["character varying(5)", "character(5)"])
def test_a_text_that_the_server_might_cut_is_left_to_it(database: Endpoint, type_: str) -> None:
    """Six characters of which the last is a blank: the server takes five, and nobody says so."""
    run(database, f"CREATE TABLE t (a {type_})")
    with connect_sink(database, name="test") as connection:
        columns = binary.targets(connection, write("t", (Column(name="a", type=type_),)))
        assert columns is not None
        with pytest.raises(RangeFailed, match="longer than the 5 characters"):
            binary.rows(pyarrow.record_batch([["abcde "]], names=["a"]), columns)


@pytest.mark.parametrize("type_", ["uuid", "jsonb", "numeric", "timestamp(3)", "integer[]", "interval", "inet"])
def test_other_types_are_the_servers_to_make(database: Endpoint, type_: str) -> None:
    """Their values are not what a text says, or the server makes something else of them."""
    run(database, f"CREATE TABLE t (a {type_})")
    with connect_sink(database, name="test") as connection:
        assert binary.targets(connection, write("t", (Column(name="a", type=type_),))) is None


FAR = {
    "date": (-2_440_588, -735_000, -719_529, -719_163, 2_932_897, 12_000_000, 2_145_042_905),
    "timestamp without time zone": (
        -210_866_803_200_000_000,
        -62_135_596_800_000_001,
        253_402_300_800_000_000,
        9 * 10**18 + 7,
    ),
    "timestamp with time zone": (-210_866_803_200_000_000, -62_200_000_000_000_001, 10**18 + 1, 9 * 10**18 + 7),
}
"""Days and microseconds since 1970, outside of the years 1 to 9999."""


@pytest.mark.parametrize("type_", FAR)
@pytest.mark.statement("X4")
def test_times_of_far_years_are_the_same_by_both_ways(database: Endpoint, type_: str) -> None:
    """X4: Arrow's text has the year 294247 as 32103, which PostgreSQL takes, and no era."""
    arrow = arrow_type(type_)
    plain = pyarrow.int32() if type_ == "date" else pyarrow.int64()
    column = pyarrow.array([*FAR[type_], None], plain).view(arrow)
    batch = pyarrow.record_batch([column], names=["a"])
    columns = (Column(name="a", type=type_),)
    run(database, f"CREATE TABLE ours (a {type_})", f"CREATE TABLE plain (a {type_})")
    ours, text = write("ours", columns), write("plain", columns)
    with connect_sink(database, name="test") as connection:
        targets = binary.targets(connection, ours)
        assert targets is not None
        fill(
            connection,
            ours,
            binary.BEGINNING + bytes(binary.block(binary.rows(batch, targets))) + binary.ENDING,
            binary.OPTIONS,
        )
        fill(connection, text, to_csv(batch), "FORMAT csv")
        connection.commit()
        early = pyarrow.array([FAR[type_][0] - 1, -(2**31) if type_ == "date" else -(2**63)], plain).view(arrow)
        for number in range(2):
            # They would become infinity, or a time in the far future.
            lost = pyarrow.record_batch([early.slice(number, 1)], names=["a"])
            with pytest.raises(RangeFailed, match="4713 BC"):
                binary.rows(lost, targets)
            with pytest.raises(SinkRefused, match="4713 BC"):
                to_csv(lost)
    unit = "a - date '1970-01-01'" if type_ == "date" else "(extract(epoch FROM a) * 1000000)::bigint"
    for name in ("ours", "plain"):
        found = [row[0] for row in run(database, "SET timezone = 'UTC'", f"SELECT {unit} FROM {name}")]
        assert found == [*FAR[type_], None], name
