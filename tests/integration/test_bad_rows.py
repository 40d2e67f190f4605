"""Rows that the target's types refuse: they fail their range by name, or are kept aside, and nothing else is lost."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow
import pytest

from airflow_provider_backpressure.core.config import Mode
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, SliceResult
from airflow_provider_backpressure.core.verification.verifier import Report, Verify
from airflow_provider_backpressure.exceptions import RangeFailed, SinkRefused
from airflow_provider_backpressure.spark.readers_and_writers import writer
from airflow_provider_backpressure.spark.stream_end import END
from tests.integration.attempts import Begun, begin, execute
from tests.support import mysql as on_mysql
from tests.support.composed import Composed
from tests.support.postgres import run

pytestmark = [pytest.mark.integration, pytest.mark.in_process]

COLUMNS = (
    Column(name="id", type="bigint", nullable=False),
    Column(name="code", type="character varying(3)"),
    Column(name="doc", type="jsonb"),
)
BAD = {
    17: ("abcd", "{}", "column code: value too long for type character varying(3)"),
    18: ("a\0b", "{}", "column code holds a NUL character, which no text in PostgreSQL can"),
    400: ("abc", "{", "column doc: invalid input syntax for type json"),
    401: ("abc", '{"a": "\\u0000"}', "column doc holds a NUL character, which no text in PostgreSQL can"),
}
ROWS = 1000


def batches(bad: dict[int, tuple[str, str, str]] = BAD, rows: int = ROWS, size: int = 300) -> Iterator[Any]:
    """Rows in batches as they come to a writer, with the row behind them that says that these were all."""
    table = pyarrow.table(
        {
            "id": pyarrow.array([*range(rows), None], pyarrow.int64()),
            "code": [bad[i][0] if i in bad else "abc" for i in range(rows)] + [None],
            "doc": [bad[i][1] if i in bad else "{}" for i in range(rows)] + [None],
            END: [False] * rows + [True],
        }
    )
    yield from table.to_batches(max_chunksize=size)


def attempt(begun: Begun, number: int, **changes: Any) -> SliceResult:
    spec = begun.spec("", attempt=number)
    return writer("postgres").write(begun.sink, spec, batches(**changes))


def begun(database: Endpoint, **options: Any) -> Begun:
    return begin(database, database, table="raw.t", columns=COLUMNS, path="frame", **options)


@pytest.mark.fault(15)
def test_without_a_quarantine_the_first_bad_row_is_named(database: Endpoint):
    """The first attempt finds that there is one, the second which; nothing is committed."""
    made = begun(database)
    with pytest.raises(RangeFailed, match=r"A row cannot go into raw\.t \(.*\): it is looked for"):
        attempt(made, 1)
    said = r'The row \{"id": 17\} cannot go into raw\.t: column code: value too long for type character varying\(3\)'
    with pytest.raises(SinkRefused, match=said):
        attempt(made, 2)
    assert run(database, "SELECT count(*) FROM raw.t") == [(0,)]
    assert made.markers() == {}


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize(("type_", "value"), [("name", "é" * 32), ("character varying(3)", "abc ")])
@pytest.mark.fault(15)
def test_a_text_that_the_server_would_cut_is_a_bad_row(database: Endpoint, type_: str, value: str, number: int):
    """A transform can make a text longer than the column that it keeps; the server says nothing of what it cuts off."""
    columns = (COLUMNS[0], replace(COLUMNS[1], type=type_), COLUMNS[2])
    made = begin(database, database, table="raw.t", columns=columns, path="frame")
    bad = {17: (value, "{}", "")}
    with pytest.raises(
        SinkRefused, match=r'The row \{"id": 17\} cannot go into raw\.t: column code: value too long for'
    ):
        attempt(made, number, bad=bad)
    assert made.markers() == {}
    kept = begin(database, database, table="raw.kept", columns=columns, path="frame", quarantine=9)
    attempt(kept, number, bad=bad)
    assert run(database, "SELECT count(*), count(*) FILTER (WHERE id = 17) FROM raw.kept") == [(ROWS - 1, 0)]
    assert run(database, "SELECT key, reason FROM raw.backpressure_quarantine") == [
        ('{"id": 17}', f"column code: value too long for type {type_}")
    ]


@pytest.mark.parametrize("mode", [Mode.APPEND, Mode.UPSERT])
@pytest.mark.fault(15)
def test_bad_rows_are_kept_aside_with_key_and_reason(database: Endpoint, mode: Mode):
    """In one transaction with the others; the totals add up, and a second attempt changes nothing."""
    made = begun(database, quarantine=4, mode=mode, key=("id",) if mode is Mode.UPSERT else ())
    with pytest.raises(RangeFailed):
        attempt(made, 1)
    found = attempt(made, 2)
    assert (found.rows, found.quarantined) == (ROWS - 4, 4)
    assert attempt(made, 3) == found
    (marker,) = made.markers().values()
    assert (marker.rows, marker.quarantined) == (ROWS - 4, 4)
    kept = run(database, "SELECT key, reason, row, slice_id, target FROM raw.backpressure_quarantine ORDER BY key")
    assert [json.loads(key)["id"] for key, *_ in kept] == [17, 18, 400, 401]
    for key, reason, row, slice_id, target in kept:
        code, doc, why = BAD[json.loads(key)["id"]]
        assert reason.startswith(why)
        assert json.loads(row) == {"id": json.loads(key)["id"], "code": code, "doc": doc}
        assert (slice_id, target) == ("0.0", "raw.t")
    ids = {found for (found,) in execute(database, "SELECT id FROM raw.t")}
    assert ids == set(range(ROWS)) - BAD.keys()


@pytest.mark.fault(15)
def test_above_the_cap_the_range_fails_and_keeps_nothing(database: Endpoint):
    """The cap is the plan's: what other ranges have kept aside counts."""
    made = begun(database, quarantine=5)
    attempt(made, 2)
    spec = made.spec("", seq=1, attempt=2)
    with pytest.raises(SinkRefused, match=r"More than 5 rows cannot go into raw\.t.*one of them is \{\"id\": 18\}"):
        writer("postgres").write(made.sink, spec, batches())
    assert run(database, "SELECT count(*) FROM raw.backpressure_quarantine") == [(4,)]
    assert list(made.markers()) == ["0.0"]


def test_rows_without_fault_need_no_second_look(database: Endpoint):
    assert attempt(begun(database, quarantine=1), 1, bad={}).rows == ROWS


@pytest.mark.statement("X3")
@pytest.mark.long
def test_a_full_verification_counts_rows_in_quarantine_apart(
    mysql_database: Endpoint, database: Endpoint, hydration: Composed
):
    """X3: the source has them and the target has not; a row that is lost or changed is found all the same."""
    bad = "CONCAT('a', CHAR(0), 'b')"
    numbers = "WITH RECURSIVE n AS (SELECT 1 AS g UNION ALL SELECT g + 1 FROM n WHERE g < 900) SELECT g"
    on_mysql.run(
        mysql_database,
        "CREATE TABLE t (id int PRIMARY KEY, code varchar(9))",
        f"INSERT INTO t {numbers}, IF(g IN (17, 18, 700), {bad}, 'abc') FROM n",
        "ANALYZE TABLE t",
    )
    budget = replace(hydration.budget, credits=1, range_rows=450)
    composed = replace(hydration, source=mysql_database, kind="mysql", table="t", quarantine=3, budget=budget)
    with composed.open() as ports:
        ports.planner().plan()
        ports.hydrator().run()

        def verify() -> Report:
            return ports.verifier().verify(ports.ledger.ranges(ports.plan.plan_id), Verify.FULL)

        report = verify()
        assert (report.ranges, report.rows, report.mismatches) == (2, 897, ())
        for change, back in (
            ("UPDATE t SET code = 'abc' WHERE id = 17", f"UPDATE t SET code = {bad} WHERE id = 17"),
            ("UPDATE t SET code = 'xyz' WHERE id = 20", "UPDATE t SET code = 'abc' WHERE id = 20"),
            ("DELETE FROM t WHERE id = 18", f"INSERT INTO t VALUES (18, {bad})"),
            (f"INSERT INTO t VALUES (0, {bad})", "DELETE FROM t WHERE id = 0"),
        ):
            on_mysql.run(mysql_database, change)
            (found,) = verify().mismatches
            assert found.sentence.startswith("range 0: the source")
            on_mysql.run(mysql_database, back)
        run(database, "DELETE FROM raw.t WHERE id = 21")
        (found,) = verify().mismatches
        assert found.sentence.endswith("the target holds 447 rows, 448 were committed")
