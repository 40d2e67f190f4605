"""A topic that is upserted into PostgreSQL: in order, and side by side by partitions or by parts of the keys.

``python -m benchmarks.upserts --records 1000000 --rounds 1``. Every way works off the same backlog of updates and
tombstones into a table of its own, in turn, in one run and with as many credits; the table shows medians over the
turns. In the end all tables have to hold what the topic says, which a plain client has noted while it wrote.
"""

import argparse
import os
import random
import statistics
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console

from airflow_provider_backpressure.core.config import Budget, Law, Mode
from airflow_provider_backpressure.ledger.repository import SqlLedger
from airflow_provider_backpressure.runners.connect_runner import ConnectRunner
from airflow_provider_backpressure.sinks import PostgresSink
from airflow_provider_backpressure.sources import KafkaSource
from benchmarks import machine, page, report, steady
from benchmarks.accounting import Accounts
from dev import events
from dev.services import Server, temporary_services

HEADING = "Upserts of a topic"
ABOUT = """A topic of {partitions} partitions, and one of a single partition, are upserted by the message's key:
{records:,} records of {bytes} bytes on {keys:,} keys, every tenth a tombstone, into a table that holds the keys
already; at most {credits} ranges of {rows:,} offsets are in flight.

```sh
{command}
```"""
LEGEND = """`CPU us` are microseconds of CPU of all processes together, the servers' too, for each record of the topic.
Parts read the topic once each. Every way takes {turns}; all tables hold in the end what a plain client noted."""
BYTES, KEYS, PARTITIONS = 200, 100_000, 4
CREDITS, RANGE_ROWS = 4, 50_000
console = Console()
Last = dict[str, str]
"""The last value of each key that is not deleted."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """How a topic is declared."""

    title: str
    partitions: int
    declared: dict[str, Any]

    @property
    def name(self) -> str:
        """The name of its target."""
        return f"p{self.partitions}_" + "_".join(str(value).lower() for value in self.declared.values())

    @property
    def topic(self) -> str:
        """The name of its topic, which others read too."""
        return f"orders{self.partitions}"


def list_ways() -> list[Way]:
    """Return all ways, those of one topic together; the first of each is the one that others are compared with."""
    kinds: Sequence[tuple[str, bool, int]] = (
        ("in order", False, 1),
        ("partitions side by side", True, 1),
        ("2 parts", False, 2),
        ("4 parts", False, 4),
        ("partitions and 2 parts", True, 2),
    )
    return [
        Way(
            title=title,
            partitions=partitions,
            declared={"one_partition_per_key": alone, "upsert_parts": parts},
        )
        for partitions in (PARTITIONS, 1)
        for title, alone, parts in kinds
        if partitions > 1 or not alone
    ]


@dataclass(kw_only=True)
class Upserted(steady.Topic):
    """One way, run after run into a table of its own."""

    way: Way
    seconds: list[float] = field(default_factory=list)
    """Of each round."""
    cpu: list[float] = field(default_factory=list)
    """Seconds of CPU of each round."""

    mode = Mode.UPSERT

    def declared(self) -> KafkaSource:
        """See ``Followed``."""
        return KafkaSource(conn_id="source", topic=self.way.topic, key="text", **self.way.declared)

    def open(self) -> None:
        """See ``Followed``."""
        at = self.endpoint("warehouse")
        spark = self.servers["connect"]
        self.ledger = self._stack.enter_context(closing(SqlLedger(self.ledger_url)))
        self.source = self._stack.enter_context(closing(self.declared().open(self.upstream())))
        declared = PostgresSink(conn_id="sink", table=f"raw.{self.way.name}")
        self.sink = self._stack.enter_context(closing(declared.open(at)))
        places = {"source": self.upstream(), "sink": at}
        self.runner = self._stack.enter_context(closing(ConnectRunner(spark.url, places, ui_url=spark.ui_url)))
        self.runner.probe()

    def take_turn(self, *, counts: bool) -> None:
        """Work off what was sent in a session of its own, and note what it took where that counts."""
        self.open()
        try:
            # This process has started the servers.
            with Accounts({"all": os.getpid()}) as accounts:
                self.run()
        finally:
            self.close()
        if counts:
            self.seconds.append(accounts.seconds)
            self.cpu.append(accounts.trees["all"].cpu_seconds)
            console.print(f"{self.way.partitions} partitions, {self.way.title}: {accounts.seconds:.1f} s")

    def check(self, last: Last) -> None:
        """Compare the target with what the topic says."""
        with self.connected("warehouse") as link:
            found = dict(link.execute(f"SELECT key, value::text FROM raw.{self.way.name}").fetchall())
        if found != last:
            raise RuntimeError(f"The target of {self.way.title} holds other rows than the topic says.")


def send(servers: str, topic: str, partitions: int, numbers: Iterator[tuple[int, bool]], last: Last) -> None:
    """Write records of these keys; a deleted one is a tombstone."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 50, "enable.idempotence": True, "log_level": 3})
    for number, deleted in numbers:
        key, value = str(number), None if deleted else events.order(number, BYTES)
        while True:
            try:
                producer.produce(topic, value, key, number % partitions)
                break
            except BufferError:
                producer.poll(0.1)
        if value is None:
            last.pop(key, None)
        else:
            last[key] = value
    if left := producer.flush(60):
        raise TimeoutError(f"{left} records of {topic} were not taken.")


def measure(servers: dict[str, Server], *, records: int, rounds: int) -> list[Upserted]:
    """Let every way work off the same backlogs, in another order each round."""
    ways = list_ways()
    first = steady.opened(steady.Topic, servers)
    budget = Budget(credits=CREDITS, range_rows=RANGE_ROWS, law=Law.FIXED)
    sides = [Upserted(servers=servers, ledger_url=first.ledger_url, budget=budget, way=way) for way in ways]
    brokers, draw = servers["kafka"].url, random.Random(1)
    topics: dict[str, tuple[int, Last]] = {way.topic: (way.partitions, {}) for way in ways}
    admin = AdminClient({"bootstrap.servers": brokers})
    new = [NewTopic(name, num_partitions=number, replication_factor=1) for name, (number, _) in topics.items()]
    for made in admin.create_topics(new).values():
        made.result(60)
    for name, (partitions, last) in topics.items():
        send(brokers, name, partitions, ((number, False) for number in range(KEYS)), last)
    for side in sides:
        side.take_turn(counts=False)
    for turn in range(rounds):
        backlog = [(draw.randrange(KEYS), draw.random() < 0.1) for _ in range(records)]
        for name, (partitions, last) in topics.items():
            send(brokers, name, partitions, iter(backlog), last)
        for side in sides[turn % len(sides) :] + sides[: turn % len(sides)]:
            with side.connected("warehouse") as link:
                link.execute("CHECKPOINT")
            side.take_turn(counts=True)
    for side in sides:
        side.check(topics[side.way.topic][1])
    return sides


def table(sides: Sequence[Upserted], records: int) -> str:
    """Return the figures as Markdown."""
    lines, base = [], 0.0
    for side in sides:
        seconds = statistics.median(side.seconds)
        if side.way.title == list_ways()[0].title:
            base = seconds
        cpu = statistics.median(side.cpu) / records * 1e6
        cells = (f"{seconds:.1f}", f"{records / seconds:,.0f}", f"{base / seconds:.2f}", f"{cpu:.1f}")
        lines.append((str(side.way.partitions), side.way.title, *cells))
    return report.markdown(("partitions", "way", "wall s", "records/s", "x in order", "CPU us"), lines)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.upserts", description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000, help="of the backlog of each round")
    parser.add_argument("--rounds", type=int, default=1, help="turns of each way; medians are shown")
    parser.add_argument("--write-docs", action="store_true", help=f"write the section {HEADING!r} of benchmarks.md")
    wanted = parser.parse_args()
    about = machine.describe(packages=("confluent-kafka",))
    with temporary_services() as services:
        servers = services.up("postgres", "connect", "kafka", fsync=True)
        sides = measure(servers, records=wanted.records, rounds=wanted.rounds)
    text = ABOUT.format(
        partitions=PARTITIONS,
        records=wanted.records,
        bytes=BYTES,
        keys=KEYS,
        credits=CREDITS,
        rows=RANGE_ROWS,
        command=f"python -m benchmarks.upserts --records {wanted.records} --rounds {wanted.rounds}",
    )
    turns = "one turn" if wanted.rounds == 1 else f"{wanted.rounds} turns, of which the medians are shown"
    parts = [text, table(sides, wanted.records), LEGEND.format(turns=turns), report.machine(about)]
    console.print("\n\n".join(parts))
    if wanted.write_docs:
        page.write(HEADING, "\n\n".join(parts))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
