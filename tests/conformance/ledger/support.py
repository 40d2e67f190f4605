"""What every test of a ledger needs: the subject, a plan, and short ways to take and to commit a range."""

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from airflow_provider_backpressure.core.config import Consistency, Mode
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.gate.credit_limits import FixedLimit
from airflow_provider_backpressure.core.gate.hydration_record import Permit
from airflow_provider_backpressure.core.planning.topic_key_order import cut_by_keys
from airflow_provider_backpressure.core.ports.ledger import Ledger
from airflow_provider_backpressure.core.snapshot.bounds import KeyBounds, OffsetBounds
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.ranges import PlannedRange
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, ReadSpec, WriteSpec
from airflow_provider_backpressure.core.snapshot.topic_offsets import in_order, pack_pieces, side_by_side
from airflow_provider_backpressure.ledger import models
from airflow_provider_backpressure.ledger.database import normalize_url
from airflow_provider_backpressure.ledger.repository import SqlLedger

LEASE = 60.0
LIMIT = FixedLimit()


def address(endpoint: Endpoint, **changes: Any) -> sa.URL:
    """Return the URL of a PostgreSQL database."""
    values = {"username": endpoint.user, "password": endpoint.password, "host": endpoint.host, "port": endpoint.port}
    return sa.URL.create("postgresql", database=endpoint.database, **{**values, **changes})


@dataclass(kw_only=True)
class Subject:
    """A ledger under test, and what the port does not show of it."""

    ledger: Ledger
    another: Callable[[], Ledger]
    """The same ledger as another process opens it."""
    audit: Callable[[], list[tuple[str, str, str | None]]]
    """Who, action and why of each act of a person."""
    url: str | sa.URL = ""
    """Where its tables are, if it has any."""


def opened_sql(url: str | sa.URL) -> Iterator[Subject]:
    """Give a ledger whose tables are there."""
    opened: list[SqlLedger] = []

    def another() -> SqlLedger:
        opened.append(SqlLedger(url))
        return opened[-1]

    def audit() -> list[tuple[str, str, str | None]]:
        engine = sa.create_engine(normalize_url(url), poolclass=sa.NullPool)
        with engine.connect() as connection:
            table = models.control
            rows = connection.execute(sa.select(table.c.who, table.c.action, table.c.why).order_by(table.c.id))
            return [tuple(row) for row in rows]

    yield Subject(ledger=another(), another=another, audit=audit, url=url)
    for ledger in opened:
        ledger.close()


def register(ledger: Ledger, **changes: Any) -> str:
    values = {
        "environment": "test",
        "source_identity": "postgres://shop:5432/shop/public.orders",
        "sink_identity": "postgres://warehouse:5432/warehouse/raw.orders",
        "owner": "orders",
        "cluster": "spark_default",
        "credits": 3,
    }
    return ledger.register(**{**values, **changes}).id


def make_plan(**changes: Any) -> Plan:
    columns = (Column(name="id", type="bigint", nullable=False), Column(name='odd "\\\t name', type="text"))
    write = WriteSpec(
        kind="postgres",
        conn_id="warehouse",
        target='"raw"."orders"',
        columns=columns,
        mode="append",
        key=("id",),
        plan_table="raw.backpressure_plan",
        commit_table="raw.backpressure_commit",
        fence="raw.orders",
    )
    values = {
        "plan_id": uuid.uuid4().hex,
        "epoch": 1,
        "source_identity": "s",
        "sink_identity": "k",
        "consistency": Consistency.STATIC,
        "mode": Mode.APPEND,
        "frontier": {"public.orders": 100},
        "fingerprint": "0123456789abcdef",
        "total": 100,
        "total_exact": True,
        "path": "copy",
        "read": ReadSpec(kind="postgres", conn_id="shop", columns=columns),
        "write": write,
    }
    return Plan(**{**values, **changes})


def cut(number: int, rows: int = 10) -> Iterator[PlannedRange]:
    for seq in range(number):
        bounds = KeyBounds.of_column(column="id", start=str(seq * rows), end=str((seq + 1) * rows))
        yield PlannedRange(seq=seq, bounds=bounds, rows=rows, bytes=rows * 100)


def planned(ledger: Ledger, number: int = 10, *, credits: int = 3, **plan: Any) -> tuple[str, str]:
    """Register a hydration with a plan of so many ranges; return both ids."""
    hydration_id = register(ledger, credits=credits)
    return hydration_id, replan(ledger, hydration_id, number, **plan)


def planned_log(ledger: Ledger, number: int, *, credits: int, ordered: bool, **plan: Any) -> tuple[str, str]:
    """Register a hydration with a plan of so many ranges of ten offsets each; return both ids."""
    hydration_id, made = register(ledger, credits=credits), make_plan(consistency=Consistency.OFFSETS, **plan)
    ranges = [
        PlannedRange(
            seq=seq,
            bounds=OffsetBounds(pieces=((0, seq * 10, seq * 10 + 10),), ordered=ordered),
            rows=10,
            bytes=1000,
        )
        for seq in range(number)
    ]
    assert ledger.save_plan(hydration_id, made, ranges) == number
    return hydration_id, made.plan_id


def planned_side_by_side(ledger: Ledger, lengths: Sequence[int], *, credits: int) -> tuple[str, str]:
    """Register a hydration of partitions with so many ranges of ten offsets each; return both ids."""
    hydration_id, made = register(ledger, credits=credits), make_plan(consistency=Consistency.OFFSETS)
    whole = [OffsetBounds(pieces=((part, 0, number * 10),)) for part, number in enumerate(lengths)]
    small = OffsetBounds(pieces=((len(lengths), 0, 10),))
    given = [PlannedRange(seq=0, bounds=one, rows=one.offsets, bytes=1) for one in cut_each([*whole, small])]
    assert ledger.save_plan(hydration_id, made, side_by_side(given)) == len(given)
    return hydration_id, made.plan_id


def planned_parts(ledger: Ledger, number: int, parts: int, *, credits: int) -> tuple[str, str]:
    """Register a hydration of a partition with so many ranges, each once for each part of the keys; return both ids."""
    hydration_id, made = register(ledger, credits=credits), make_plan(consistency=Consistency.OFFSETS)
    whole = OffsetBounds(pieces=((0, 0, number * 10),))
    pieces = enumerate(cut_each([whole]))
    given = [PlannedRange(seq=seq, bounds=one, rows=one.offsets, bytes=1) for seq, one in pieces]
    assert ledger.save_plan(hydration_id, made, cut_by_keys(in_order(given), parts)) == number * parts
    return hydration_id, made.plan_id


def cut_each(bounds: Sequence[OffsetBounds]) -> Iterator[OffsetBounds]:
    """Yield pieces of ten offsets."""
    for each in bounds:
        yield from pack_pieces(each.pieces, offsets=10)


def replan(ledger: Ledger, hydration_id: str, number: int = 10, **changes: Any) -> str:
    plan = make_plan(**changes)
    assert ledger.save_plan(hydration_id, plan, cut(number)) == number
    return plan.plan_id


def admit(ledger: Ledger, hydration_id: str, **changes: Any) -> Permit | None:
    values = {"lane": "lane", "session_id": "session", "lease_seconds": LEASE}
    return ledger.admit(hydration_id, **{**values, **changes})


def take(ledger: Ledger, hydration_id: str, **changes: Any) -> Any:
    """Admit a range that must be there for the taking."""
    permit = admit(ledger, hydration_id, **changes)
    assert permit is not None
    return permit.range


def commit(ledger: Ledger, plan_id: str, seq: int, **changes: Any) -> bool:
    values = {
        "worker": "lane",
        "attempt": 1,
        "rows": 10,
        "bytes": 1000,
        "checksum": "xxh:0123456789abcdef",
        "limit": LIMIT,
        "pressure": 0.5,
    }
    return ledger.commit(plan_id, seq, **{**values, **changes})


def in_threads(number: int, act: Callable[[int], Any]) -> list[Any]:
    """Start ``act`` in so many threads at the same moment and return what came of each."""
    start = threading.Barrier(number)

    def run(index: int) -> Any:
        start.wait(timeout=30)
        return act(index)

    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(run, range(number)))


def drain(url: str | sa.URL, hydration_id: str, plan_id: str, lane: str) -> tuple[list[int], int]:
    """Be a lane in a process of its own; return the ranges that it took and the most that were in flight by then."""
    ledger, taken, most = SqlLedger(url), [], 0
    while ledger.gate(hydration_id).waiting:
        permit = admit(ledger, hydration_id, lane=lane)
        if permit is not None:
            taken.append(permit.range.seq)
            most = max(most, ledger.gate(hydration_id).in_flight)
            assert ledger.renew(hydration_id, lane=lane, lease_seconds=LEASE) == 1
            assert commit(ledger, plan_id, permit.range.seq, worker=lane)
    ledger.close()
    return taken, most
