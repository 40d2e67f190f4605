"""Every source into every sink through the one gate: see the table in docs/reference/operators.md."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.progress.rates_and_eta import total_progress
from airflow_provider_backpressure.core.verification.verifier import Verify
from airflow_provider_backpressure.exceptions import SinkRefused
from airflow_provider_backpressure.runners.connect_runner import ConnectRunner
from dev.services import Server
from tests.support import kafka as on_kafka
from tests.support import lakes
from tests.support import mysql as on_mysql
from tests.support.composed import Composed
from tests.support.marks import mark_long
from tests.support.postgres import connected, run
from tests.support.waiting import until

pytestmark = pytest.mark.integration

ROWS = 600
SOURCES = ("postgres", "mysql", "kafka")
SINKS = ("postgres", *lakes.KINDS)
UPSERTED = ("postgres", "delta", "iceberg")
Rows = list[tuple[Any, ...]]


@dataclass(frozen=True, kw_only=True)
class Upstream:
    """A source with its rows."""

    composed: type[Composed]
    declared: dict[str, Any]
    columns: tuple[str, ...]
    """By which rows are compared; those of the key come first."""
    rows: Callable[[], Rows]
    change: Callable[[], None]
    """Change a row and add one."""


def of_tables(ask: Callable[..., Rows], endpoint: Endpoint, **declared: Any) -> Upstream:
    """Return a table of a database, filled."""
    ask(endpoint, "CREATE TABLE t (id bigint PRIMARY KEY, name varchar(40))")
    values = ", ".join(f"({number}, 'row {number}')" for number in range(ROWS))
    ask(endpoint, f"INSERT INTO t VALUES {values}")
    return Upstream(
        composed=Composed,
        declared={"source": endpoint, "reading": {}, "consistency": "static", **declared},
        columns=("id", "name"),
        rows=lambda: sorted(tuple(row) for row in ask(endpoint, "SELECT id, name FROM t")),
        change=lambda: (
            ask(endpoint, "UPDATE t SET name = 'changed' WHERE id = 7", "INSERT INTO t VALUES (-1, 'new')") and None
        ),
    )


def of_topic(server: Server) -> Upstream:
    """Return a topic of two partitions, filled."""
    topic = on_kafka.Topic(servers=server.url).create(2)
    for partition in (0, 1):
        topic.send(partition, *({"id": number} for number in range(ROWS // 2)))

    def rows() -> Rows:
        return sorted((*place, (value or b"").decode()) for place, value in topic.committed().items())

    return Upstream(
        composed=on_kafka.ComposedKafka,
        declared={"source": on_kafka.endpoint_of(server), "table": topic.name},
        columns=("partition", "offset", "value"),
        rows=rows,
        change=lambda: topic.send(1, {"id": "later"}),
    )


@pytest.fixture
def upstream(request: pytest.FixtureRequest) -> Upstream:
    """The source that the test is about."""
    match request.param:
        case "postgres":
            return of_tables(run, request.getfixturevalue("database"), table="public.t")
        case "mysql":
            return of_tables(on_mysql.run, request.getfixturevalue("mysql_database"), kind="mysql", table="t")
        case _:
            return of_topic(request.getfixturevalue("kafka"))


@pytest.fixture
def composed(
    upstream: Upstream, database: Endpoint, ledger_url: str, connect: Server, logins: dict[str, Endpoint]
) -> Composed:
    """Its hydration in ranges of 200 rows into PostgreSQL."""
    made = upstream.composed(
        sink=database,
        ledger_url=ledger_url,
        remote=connect.url,
        ui_url=connect.ui_url,
        budget=Budget(credits=2, range_rows=200),
        **upstream.declared,
    )
    logins.update(source=replace(made.source, conn_id="source"), sink=replace(database, conn_id="sink"))
    return made


def hydrate(composed: Composed, runner: ConnectRunner, *, restart: bool = False) -> None:
    """Plan, drain, verify range by range against the source, and finish."""
    with composed.open(runner) as ports:
        ports.planner().plan(restart=restart)
        ports.hydrator().run()
        assert ports.ledger.counts(ports.plan.plan_id).total >= 3 or restart
        report = ports.verifier().verify(ports.ledger.ranges(ports.plan.plan_id), Verify.FULL)
        assert report.mismatches == ()
        ports.sink.complete(ports.plan)
        ports.ledger.finish(ports.hydration.id)


def arrived(composed: Composed, upstream: Upstream) -> Rows:
    """Return the target's rows as a client has them that is none of ours."""
    if composed.into:
        columns = lakes.table(**composed.into).select(upstream.columns).columns
        return sorted(zip(*(column.to_pylist() for column in columns), strict=True))
    names = ", ".join(f'"{name}"' if name != "value" else "value::text" for name in upstream.columns)
    return sorted(run(composed.sink, f"SELECT {names} FROM raw.t"))


def into(composed: Composed, sink: str, folder: Path) -> Composed:
    """Return the hydration with another target."""
    return composed if sink == "postgres" else replace(composed, into=lakes.place(sink, folder))


@pytest.mark.statement("X1", "X3")
@pytest.mark.parametrize(
    ("upstream", "sink"),
    mark_long(
        product(SOURCES, SINKS),
        quick=[("postgres", "parquet"), ("mysql", "delta"), ("kafka", "iceberg"), ("mysql", "postgres")],
    ),
    indirect=["upstream"],
)
def test_every_source_goes_into_every_sink(
    composed: Composed, upstream: Upstream, runner: ConnectRunner, sink: str, tmp_path: Path
) -> None:
    """X1, X3: by append; count and checksum by range against the source, and every row by plain clients."""
    there = into(composed, sink, tmp_path)
    hydrate(there, runner)
    assert arrived(there, upstream) == upstream.rows()
    assert len(upstream.rows()) == ROWS


@pytest.mark.statement("X1", "X3")
@pytest.mark.parametrize(
    ("upstream", "sink"),
    mark_long(product(SOURCES[:2], UPSERTED), quick=[("mysql", "postgres"), ("postgres", "delta")]),
    indirect=["upstream"],
)
def test_rows_are_merged_by_key_where_the_format_can(
    composed: Composed, upstream: Upstream, runner: ConnectRunner, sink: str, tmp_path: Path
) -> None:
    """X1, X3: by upsert, read twice with a change in between."""
    there = replace(into(composed, sink, tmp_path), mode="upsert")
    hydrate(there, runner)
    upstream.change()
    hydrate(there, runner, restart=True)
    assert arrived(there, upstream) == upstream.rows()
    assert len(upstream.rows()) == ROWS + 1


@pytest.mark.statement("X1", "X6")
@pytest.mark.parametrize("sink", mark_long(UPSERTED, quick=["postgres"]))
@pytest.mark.parametrize("upstream", ["kafka"], indirect=True)
def test_a_topic_is_merged_in_its_order_where_the_format_can(
    composed: Composed, upstream: Upstream, runner: ConnectRunner, sink: str, tmp_path: Path
) -> None:
    """X1, X6: over several ranges and two runs the target is what the log says of each key, tombstones and all."""
    topic = on_kafka.Topic(servers=composed.source.host).create(2)
    there = replace(into(composed, sink, tmp_path), mode="upsert", table=topic.name)
    said: dict[bytes, str] = {}
    for turn in range(2):
        for partition in (0, 1):
            with topic.producing() as producer:
                for number in range(300):
                    key, gone = f"{partition}-{number * 7 % 40}".encode(), number % 4 == 3
                    value = None if gone else f"[{turn}, {number}]"
                    producer.produce(topic.name, value and value.encode(), key, partition)
                    said.pop(key, None)
                    if value is not None:
                        said[key] = value
        hydrate(there, runner)
        found = replace(upstream, columns=("key", "value"), rows=lambda: sorted(said.items()))
        assert arrived(there, found) == found.rows()
    assert 0 < len(said) < 80


@pytest.mark.statement("X5")
@pytest.mark.parametrize("sink", mark_long(lakes.KINDS, quick=["iceberg"]))
@pytest.mark.parametrize("upstream", ["kafka"], indirect=True)
def test_bad_records_are_kept_beside_a_table_of_files(
    composed: Composed, upstream: Upstream, runner: ConnectRunner, sink: str, tmp_path: Path
) -> None:
    """X5: by place, with reason and value, in a table of the same kind; the others arrive, and the totals add up."""
    good = upstream.rows()
    on_kafka.Topic(servers=composed.source.host, name=composed.table).send(1, b"{'no': 1}", b"\xff")
    there = replace(composed, into={**lakes.place(sink, tmp_path), "quarantine": 2})
    hydrate(there, runner)
    with there.open(runner) as ports:
        assert total_progress(ports.ledger.statistics(ports.hydration.id)).committed == ROWS + 2
    assert arrived(there, upstream) == good
    beside = {name: f"{there.into[name]}_quarantine" for name in ("path", "table") if name in there.into}
    kept = lakes.table(**{**there.into, **beside}).to_pylist()
    first, second = sorted(kept, key=lambda row: int(json.loads(row["key"])["offset"]))
    assert json.loads(first["key"]) == {"partition": 1, "offset": ROWS // 2}
    assert (json.loads(first["row"])["value"], json.loads(second["row"])["base64"]) == ("{'no': 1}", "/w==")
    assert (first["reason"][:20], second["reason"]) == ("its value is no JSON", "its value is no UTF-8")


@pytest.mark.parametrize("upstream", ["postgres"], indirect=True)
def test_what_a_format_cannot_do_is_refused_before_a_row_moves(
    composed: Composed, runner: ConnectRunner, tmp_path: Path
) -> None:
    there = replace(into(composed, "parquet", tmp_path), mode="upsert")
    with there.open(runner) as ports, pytest.raises(SinkRefused, match="Parquet files take append only"):
        ports.planner().plan()


@pytest.mark.statement("T2", "T3")
@pytest.mark.parametrize("upstream", SOURCES, indirect=True)
def test_one_law_for_all_sources(composed: Composed, upstream: Upstream, runner: ConnectRunner) -> None:
    """T3: with the target locked exactly W ranges are out, whatever the source; then they all come in."""
    with composed.open(runner) as ports:
        plan = ports.planner().plan().plan
        ledger = ports.ledger

        def attempts() -> int:
            return sum(each.attempt for each in ledger.ranges(plan.plan_id))

        with connected(composed.sink) as connection, connected(composed.sink) as watching, ThreadPoolExecutor(1) as own:

            def waiting() -> int:
                found = watching.execute(
                    "SELECT count(DISTINCT a.pid) FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
                    " WHERE NOT l.granted AND a.application_name LIKE 'bp:%'"
                ).fetchone()
                assert found is not None
                return int(found[0])

            with connection.transaction():
                connection.execute("LOCK TABLE raw.t IN ACCESS EXCLUSIVE MODE")
                lane = own.submit(ports.hydrator().run)
                until(lambda: waiting() == 2, timeout=120)
                gate = ledger.gate(ports.hydration.id)
                assert (attempts(), gate.in_flight, gate.credits) == (2, 2, 2)
            assert lane.result(timeout=120).committed == ledger.counts(plan.plan_id).total
        assert attempts() == ledger.counts(plan.plan_id).total
    assert arrived(composed, upstream) == upstream.rows()
