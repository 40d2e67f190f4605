"""Push against polling: how soon tasks that wait at a closed gate continue, and what their waiting costs.

``python -m benchmarks.push`` lets 1, 100 and 1,000 ranges wait in one process, as a triggerer does, while another
process commits one range after the other on a ledger with one credit.
"""

import argparse
import asyncio
import multiprocessing
import os
import random
import statistics
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import sqlalchemy as sa
from rich.console import Console

from airflow_provider_backpressure.channels.postgres import PostgresChannel
from airflow_provider_backpressure.core.admission.gate_watcher import Watch, Watcher
from airflow_provider_backpressure.core.admission.permits_and_reservations import read_gate
from airflow_provider_backpressure.core.config import Budget, Consistency, Mode
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.gate.credit_limits import FixedLimit
from airflow_provider_backpressure.core.push.hub import Push
from airflow_provider_backpressure.core.snapshot.bounds import KeyBounds
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.ranges import PlannedRange
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, ReadSpec, WriteSpec
from airflow_provider_backpressure.ledger.migration import migrate
from airflow_provider_backpressure.ledger.repository import SqlLedger
from airflow_provider_backpressure.triggers.shared_ledger import TurnWaiter
from benchmarks import machine, page, report
from benchmarks.accounting import Accounts
from dev.databases import open_database
from dev.services import Server, temporary_services

HEADING = "Push and polling"
WAITERS = (1, 100, 1000)
PUSH, SOON, FAST, SLOW = "push", "polling every 0.01 s", "polling every 0.3 s", "polling every 60 s"
RARE = "polling every 2 s"
"""Not a side of the benchmark: what a test compares push with, on machines that are slow."""
INTERVALS = {SOON: 0.01, FAST: 0.3, RARE: 2.0, SLOW: 60.0}
"""Seconds between two looks; 60 is what an Airflow sensor waits by default.

The shortest is as soon as push where one waits. A ledger cannot take that of many, nor do many need it."""
SIDES = (PUSH, SOON, FAST, SLOW)
console = Console()


@dataclass(frozen=True, kw_only=True)
class Found:
    """What one side took for one number of waiters."""

    side: str
    waiters: int
    latencies: list[float]
    """Seconds from when a commit is in the ledger until another range has the credit."""
    queries: float
    """Statements to the ledger a second, of the process that waits, while nothing happens."""
    cpu: float
    """CPU seconds a second of that process and PostgreSQL together, meanwhile."""


class Waiters:
    """The process in which so many ranges wait. Each that gets a credit says so, and another takes its place."""

    def __init__(self, side: str, place: Endpoint, url: str, hydration_id: str, plan_id: str, told: Connection) -> None:
        self.side, self.told = side, told
        self.hydration_id, self.plan_id = hydration_id, plan_id
        self.push = end(place) if side == PUSH else None
        self.ledger = SqlLedger(url, publish=self.push.publish) if self.push else SqlLedger(url)
        self.statements = 0
        sa.event.listen(sa.Engine, "after_cursor_execute", self._count)

    def _count(self, *_: Any) -> None:
        self.statements += 1

    async def run(self, number: int) -> None:
        """Wait, until nobody listens any more."""
        seqs = iter(range(1, 1_000_000))
        tasks = {asyncio.ensure_future(self._wait(next(seqs))) for _ in range(number)}
        asking = asyncio.ensure_future(asyncio.to_thread(self._answer))
        while not asking.done():
            done, tasks = await asyncio.wait({*tasks, asking}, return_when=asyncio.FIRST_COMPLETED)
            tasks |= {asyncio.ensure_future(self._wait(next(seqs))) for one in done if one is not asking}
        for task in tasks:
            task.cancel()

    def _answer(self) -> None:
        """Send the statements so far whenever asked."""
        while self.told.recv() is not None:
            self.told.send(("statements", time.time(), self.statements))

    async def _wait(self, seq: int) -> None:
        watcher = Watcher(
            ledger=self.ledger,
            hydration_id=self.hydration_id,
            budget=Budget(credits=1, commit_seconds=10_000.0),
            watch=Watch.COMMIT,
            plan_id=self.plan_id,
            seq=seq,
            lane=f"waiter-{seq}",
            read_gate=self.push.read_gate if self.push else read_gate,
        )
        waiter = TurnWaiter(self.push, self.ledger, self.hydration_id, seq)
        interval = INTERVALS.get(self.side, 0.5)
        try:
            if await asyncio.to_thread(watcher.look) is None:
                self.told.send(("waits", time.time(), seq))
                # As if it had been waiting for long: not all look at the same moment.
                await waiter.wait(watcher.last, random.uniform(0, interval))
                while await asyncio.to_thread(watcher.look) is None:
                    await waiter.wait(watcher.last, interval)
        finally:
            waiter.done()
        self.told.send(("admitted", time.time(), seq))


def end(place: Endpoint) -> Push:
    """Return a process's end of PostgreSQL's channel."""
    return Push(lambda receiver, counts: PostgresChannel(receiver, counts, endpoint=place), transport="postgres")


def wait_in_process(
    side: str, place: Endpoint, url: str, hydration_id: str, plan_id: str, number: int, told: Connection
) -> None:
    """Be the process that waits."""
    asyncio.run(Waiters(side, place, url, hydration_id, plan_id, told).run(number))
    # Threads that still look need not be waited for.
    os._exit(0)


class Writer:
    """Holds the only credit, and passes it on by committing."""

    def __init__(self, side: str, place: Endpoint, url: str) -> None:
        self.push = end(place) if side == PUSH else None
        self.ledger = SqlLedger(url, publish=self.push.publish) if self.push else SqlLedger(url)
        self.hydration_id = self.ledger.register(
            environment="benchmark",
            source_identity=uuid.uuid4().hex,
            sink_identity="sink",
            owner="benchmark",
            cluster=uuid.uuid4().hex,
            credits=1,
        ).id
        plan = plan_of(self.hydration_id)
        self.plan_id = plan.plan_id
        self.ledger.save_plan(self.hydration_id, plan, ranges(20_000))
        self.ledger.admit(self.hydration_id, lane="writer", session_id="s", lease_seconds=3600, seq=0)

    def commit(self, seq: int) -> float:
        """Commit a range and return when that was done."""
        self.ledger.commit(
            self.plan_id,
            seq,
            worker="writer",
            attempt=1,
            rows=1,
            bytes=1,
            checksum="xxh:0",
            limit=FixedLimit(),
            pressure=0.0,
        )
        return time.time()

    def close(self) -> None:
        """Give everything back."""
        if self.push:
            self.push.close()
        self.ledger.close()


def ranges(number: int) -> Iterator[PlannedRange]:
    """Return so many ranges; nobody reads them."""
    for seq in range(number):
        bounds = KeyBounds.of_column(column="id", start=str(seq), end=str(seq + 1))
        yield PlannedRange(seq=seq, bounds=bounds, rows=1, bytes=1)


def plan_of(hydration_id: str) -> Plan:
    """Return a plan, of which only the ranges count here."""
    columns = (Column(name="id", type="bigint", nullable=False),)
    write = WriteSpec(
        kind="postgres",
        conn_id="sink",
        target="t",
        columns=columns,
        mode="append",
        key=("id",),
        plan_table="p",
        commit_table="c",
        fence="t",
    )
    return Plan(
        plan_id=uuid.uuid4().hex,
        epoch=1,
        source_identity="source",
        sink_identity=hydration_id,
        consistency=Consistency.STATIC,
        mode=Mode.APPEND,
        frontier={"t": 1},
        fingerprint="0",
        total=1,
        total_exact=True,
        path="copy",
        read=ReadSpec(kind="postgres", conn_id="source", columns=columns),
        write=write,
    )


@contextmanager
def waiting(writer: Writer, side: str, place: Endpoint, url: str, number: int) -> Iterator[tuple[Any, Connection]]:
    """Yield the process that waits, and its connection."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(
        target=partial(wait_in_process, side, place, url, writer.hydration_id, writer.plan_id, number, there)
    )
    process.start()
    try:
        yield process, here
    finally:
        here.send(None)
        process.join(10)
        if process.is_alive():
            process.kill()


def measure(side: str, number: int, server: Server, url: str, place: Endpoint, wanted: argparse.Namespace) -> Found:
    """Measure what waiting costs while nothing happens, and then how soon each commit is noticed."""
    with closing(Writer(side, place, url)) as writer, waiting(writer, side, place, url, number) as (process, told):
        for _ in range(number):
            heard(told, "waits")
        time.sleep(2.0)
        before = statements(told)
        with Accounts({"waiters": process.pid, "postgres": server.pid or 0}) as accounts:
            time.sleep(wanted.idle)
        queries = (statements(told) - before) / accounts.seconds
        cpu = sum(tree.cpu_seconds for tree in accounts.trees.values()) / accounts.seconds
        latencies = handed_on(writer, told, samples=wanted.samples, seconds=wanted.seconds)
        return Found(side=side, waiters=number, latencies=latencies, queries=queries, cpu=cpu)


def handed_on(writer: Writer, told: Connection, *, samples: int, seconds: float) -> list[float]:
    """Commit one range after the other and return how long each time it took somebody to get the credit."""
    latencies: list[float] = []
    seq, until = 0, time.monotonic() + seconds
    while len(latencies) < samples and (not latencies or time.monotonic() < until):
        time.sleep(random.uniform(0.1, 0.2))
        done = writer.commit(seq)
        at, seq = heard(told, "admitted")
        latencies.append(at - done)
        # Another takes its place, so that there are as many as before.
        heard(told, "waits")
    return latencies


def heard(told: Connection, what: str) -> tuple[float, int]:
    """Return when the waiting process said this, and of which range."""
    while True:
        found, at, seq = told.recv()
        if found == what:
            return at, seq


def statements(told: Connection) -> int:
    """Return how many statements the waiting process has sent to the ledger so far."""
    told.send("statements")
    return heard(told, "statements")[1]


def section(command: str, found: list[Found], about: dict[str, str]) -> str:
    """Return the figures as Markdown."""
    lines = [_line(each) for each in found]
    cpu = {(each.side, each.waiters): each.cpu for each in found}
    ratios = ", ".join(
        f"{number:,}: {cpu[FAST, number] / cpu[PUSH, number]:,.0f} times less"
        for number in sorted({each.waiters for each in found})
        if cpu.get((PUSH, number)) and (FAST, number) in cpu
    )
    same = f"{cpu[SOON, 1] / cpu[PUSH, 1]:,.0f} times less" if cpu.get((PUSH, 1)) and (SOON, 1) in cpu else "not run"
    pushed = [each.latencies for each in found if each.side == PUSH]
    median = max(map(statistics.median, pushed), default=0.0)
    late = max(map(_late, pushed), default=0.0)
    return "\n".join(
        [
            "Ranges wait for the only credit of a ledger on PostgreSQL, all in one process; another process commits:",
            f"\n```sh\n{command}\n```\n",
            "| waiting | how | commits | median ms | 99 % ms | ledger queries/s | CPU s/s |",
            "|---|---|---|---|---|---|---|",
            *lines,
            "",
            "Milliseconds are from the moment when a commit is in the ledger until another range has its credit",
            "there. Queries and CPU (the waiting process and all of PostgreSQL) are those of a time",
            "in which nothing is committed: what waiting itself costs. Those that poll look at moments of their own",
            "within the interval, so of many the first is soon there.",
            "",
            f"- Median with push at most 10 ms: {median * 1000:.1f} ms, {'held' if median <= 0.01 else 'MISSED'}",
            f"- 99 % with push within 50 ms: {late * 1000:.1f} ms, {'held' if late <= 0.05 else 'MISSED'}",
            f"- CPU of push against polling every 0.3 s, by the number that waits: {ratios}",
            f"- CPU of push against polling that is as soon, where one waits: {same}",
            "",
            report.machine(about),
        ]
    )


def _line(found: Found) -> str:
    median = statistics.median(found.latencies)
    return (
        f"| {found.waiters:,} | {found.side} | {len(found.latencies)} | {median * 1000:,.1f} "
        f"| {_late(found.latencies) * 1000:,.1f} | {found.queries:,.1f} | {found.cpu:.3f} |"
    )


def _late(latencies: list[float]) -> float:
    """Return the 99th percentile."""
    ordered = sorted(latencies)
    return ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.push", description=__doc__)
    parser.add_argument("--waiters", type=int, nargs="+", default=list(WAITERS))
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--samples", type=int, default=200, help="most commits of each side")
    parser.add_argument("--seconds", type=float, default=60.0, help="no commit begins after so many")
    parser.add_argument("--idle", type=float, default=20.0, help="seconds of waiting without a commit")
    parser.add_argument("--write-docs", action="store_true", help=f"write the section {HEADING!r} of benchmarks.md")
    wanted = parser.parse_args()
    about = machine.describe(jars=())
    found: list[Found] = []
    with temporary_services() as services:
        server = services.up("postgres")["postgres"]
        with open_database(server, "postgres") as connection:
            connection.execute("CREATE DATABASE ledger")
        place = Endpoint(
            conn_id="ledger",
            host=server.host,
            port=server.port,
            database="ledger",
            user=server.user or "",
            password=server.password or "",
        )
        url = f"postgresql+psycopg://{server.user}:{server.password}@{server.host}:{server.port}/ledger"
        migrate(url)
        for number in wanted.waiters:
            for side in wanted.sides:
                if side == SOON and number > 1:
                    continue
                found.append(measure(side, number, server, url, place, wanted))
                console.print(_line(found[-1]))
    command = f"python -m benchmarks.push --samples {wanted.samples} --seconds {wanted.seconds:g}"
    text = section(command, found, about)
    console.print(text)
    if wanted.write_docs:
        page.write(HEADING, text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
