"""Attempts at slices, made by hand: a target begun under a plan, and the messages that a lane would submit."""

import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import psycopg

from airflow_provider_backpressure.connectors.postgres.tasks.copy import run_slice
from airflow_provider_backpressure.core.config import Consistency, Mode
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.ports.sink import Marker
from airflow_provider_backpressure.core.snapshot.bounds import KeyBounds
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.ranges import attempt_tag, slice_id
from airflow_provider_backpressure.core.snapshot.spark_messages import (
    Column,
    RangeSpec,
    ReadSpec,
    Slice,
    SliceResult,
    Transform,
    WriteSpec,
)
from airflow_provider_backpressure.exceptions import BackpressureError
from airflow_provider_backpressure.sinks import PostgresSink
from tests import types_postgres


@contextmanager
def opened(endpoint: Endpoint) -> Iterator[psycopg.Connection]:
    """A connection in autocommit to look at things and set the stage."""
    with psycopg.connect(
        host=endpoint.host,
        port=endpoint.port,
        dbname=endpoint.database,
        user=endpoint.user,
        password=endpoint.password,
        autocommit=True,
    ) as connection:
        yield connection


def execute(endpoint: Endpoint, *statements: str) -> list[tuple]:
    """Run statements and return the rows of the last one, if it has any."""
    with opened(endpoint) as connection:
        for statement in statements:
            cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def columns_of(endpoint: Endpoint, table: str) -> tuple[Column, ...]:
    """The columns of a table in ``public`` as the catalogue spells them."""
    rows = execute(
        endpoint,
        "SET search_path TO ''",
        "SELECT attname, format_type(atttypid, atttypmod), NOT attnotnull FROM pg_attribute"
        f" WHERE attrelid = 'public.{table}'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
    )
    return tuple(Column(name=name, type=type_, nullable=nullable) for name, type_, nullable in rows)


def difference(source: Endpoint, one: str, sink: Endpoint, other: str) -> tuple[int, int, int]:
    """Rows of the first query, of the second, and how many stand in only one of them (as text, doubles counted)."""
    with opened(source) as left, opened(sink) as right:
        here = Counter(row[0] for row in left.execute(f"SELECT q::text FROM ({one}) q"))
        there = Counter(row[0] for row in right.execute(f"SELECT q::text FROM ({other}) q"))
    return here.total(), there.total(), ((here - there) + (there - here)).total()


@contextmanager
def another(endpoint: Endpoint, options: str = "") -> Iterator[Endpoint]:
    """A second database on the same server, dropped afterwards; ``options`` of CREATE DATABASE."""
    name = f"{endpoint.database}_other"
    execute(endpoint, f"CREATE DATABASE {name} {options}")
    try:
        yield replace(endpoint, database=name)
    finally:
        execute(endpoint, f"DROP DATABASE {name} WITH (FORCE)")


def typed(source: Endpoint, sink: Endpoint) -> tuple[Column, ...]:
    """Make ``every``, a table of every type with its rows, and in the sink the types it needs; return its columns.

    The user's own types have other numbers in the sink than in the source.
    """
    execute(sink, "CREATE TYPE shift AS ENUM ('other', 'numbers')")
    for endpoint in (source, sink):
        with opened(endpoint) as connection:
            types_postgres.define_types(connection)
    with opened(source) as connection:
        types_postgres.create_table(connection, "every")
    return columns_of(source, "every")


@dataclass(frozen=True, kw_only=True)
class Begun:
    """A target under a plan."""

    source: Endpoint
    sink: Endpoint
    plan: Plan

    @property
    def endpoints(self) -> dict[str, Endpoint]:
        """The endpoints by connection id, as a runner is given them."""
        return {"source": self.source, "sink": self.sink}

    def spec(self, *queries: str, seq: int = 0, attempt: int = 1, **changes: Any) -> RangeSpec:
        """An attempt at a range whose slices are these queries."""
        pieces = tuple(
            Slice(
                slice_id=slice_id(seq, index),
                query=query,
                bounds=KeyBounds.of_column(column="id", start=str(index), end=None).to_json(),
            )
            for index, query in enumerate(queries)
        )
        values: dict[str, Any] = {
            "hydration_id": uuid.uuid4().hex,
            "plan_id": self.plan.plan_id,
            "epoch": self.plan.epoch,
            "seq": seq,
            "attempt": attempt,
            "tag": attempt_tag(self.plan.plan_id, slice_id(seq), attempt),
            "path": self.plan.path,
            "read": self.plan.read,
            "write": self.plan.write,
            "slices": pieces,
            "transform": self.plan.transform,
        }
        return RangeSpec(**{**values, **changes})

    def markers(self) -> dict[str, Marker]:
        """The plan's markers in the sink."""
        with closing(target(self.sink, self.plan.write)) as sink:
            return sink.markers(self.plan.plan_id)

    def superseded(self) -> "Begun":
        """The same target under a newer plan."""
        with closing(target(self.sink, self.plan.write)) as sink:
            newer = replace(self.plan, plan_id=uuid.uuid4().hex)
            return replace(self, plan=replace(newer, epoch=sink.begin(newer)))


def target(endpoint: Endpoint, write: WriteSpec) -> Any:
    """The sink of a write specification, opened."""
    return PostgresSink(conn_id="sink", table=write.target).open(endpoint)


def begin(
    source: Endpoint,
    sink: Endpoint,
    *,
    table: str,
    columns: tuple[Column, ...],
    read: tuple[Column, ...] | None = None,
    mode: Mode = Mode.APPEND,
    key: tuple[str, ...] = (),
    path: str = "copy",
    transform: Transform | None = None,
    quarantine: int | None = None,
) -> Begun:
    """Create the target where it is missing and begin a plan for it. ``read``: the source's columns if others."""
    source, sink = replace(source, conn_id="source"), replace(sink, conn_id="sink")
    with closing(PostgresSink(conn_id="sink", table=table, quarantine=quarantine).open(sink)) as opened_sink:
        write = opened_sink.fit(columns, mode=mode, key=key)
        opened_sink.prepare(write)
        plan = Plan(
            plan_id=uuid.uuid4().hex,
            epoch=0,
            source_identity="postgres://test/source",
            sink_identity=opened_sink.identity,
            consistency=Consistency.STATIC,
            mode=mode,
            frontier={"source": 1},
            fingerprint="0" * 16,
            total=1,
            total_exact=True,
            path=path,
            read=ReadSpec(kind="postgres", conn_id="source", columns=columns if read is None else read),
            write=write,
            transform=transform,
        )
        return Begun(source=source, sink=sink, plan=replace(plan, epoch=opened_sink.begin(plan)))


def in_background(begun: Begun, spec: RangeSpec) -> "Future[SliceResult]":
    """Run an attempt at a range of one slice in a thread of its own."""
    future: Future[SliceResult] = Future()

    def run() -> None:
        try:
            future.set_result(run_slice(spec, spec.slices[0], begun.source, begun.sink))
        except BackpressureError as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def backends(endpoint: Endpoint, prefix: str, condition: str = "true") -> list[int]:
    """Process ids of the server's backends with this beginning of their application name."""
    rows = execute(
        endpoint,
        "SELECT pid FROM pg_stat_activity"
        f" WHERE starts_with(application_name, '{prefix}') AND datname = current_database() AND {condition}",
    )
    return [pid for (pid,) in rows]
