"""Push over real transports: soon when it works, the same ledger and the same rows when it does not."""

import asyncio
import json
import random
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest

from airflow_provider_backpressure.channels import postgres as listening
from airflow_provider_backpressure.channels.in_process import Exchange, LocalChannel
from airflow_provider_backpressure.channels.kafka import KafkaChannel
from airflow_provider_backpressure.channels.postgres import APPLICATION, PostgresChannel, name_of
from airflow_provider_backpressure.core.admission.permits_and_reservations import Limiter, read_gate
from airflow_provider_backpressure.core.config import Budget, Mode
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.execution.lane_runner import Hydrator
from airflow_provider_backpressure.core.gate.gate_event import Diff, encode
from airflow_provider_backpressure.core.planning.planner import Planner
from airflow_provider_backpressure.core.poll_policy import PollPolicy
from airflow_provider_backpressure.core.ports import Channel
from airflow_provider_backpressure.core.push.hub import Paces, Push
from airflow_provider_backpressure.core.push.wait_queue import Waiter
from airflow_provider_backpressure.core.snapshot.ranges import RangeState
from airflow_provider_backpressure.ledger.migration import migrate
from airflow_provider_backpressure.ledger.repository import SqlLedger
from airflow_provider_backpressure.testing import MemoryRunner, MemorySink, MemorySource
from airflow_provider_backpressure.triggers import AdmissionTrigger
from dev.services import Services
from tests.conformance.ledger.support import address, commit, planned, take
from tests.conftest import endpoint_of
from tests.support.kafka import endpoint_of as broker
from tests.support.marks import mark_long
from tests.support.waiting import beside, until

pytestmark = pytest.mark.integration

ROWS, EACH = 160, 10
NEVER = Paces(normal=60.0, generous=60.0)
"""Whoever waits with these and goes on was told."""
QUICK = Paces(normal=0.1, generous=1.0)

Open = Callable[[Any, Any], Channel]


@pytest.fixture
def url(database: Endpoint) -> str:
    migrate(found := address(database))
    return found.render_as_string(hide_password=False)


@pytest.fixture(params=["local", "postgres", "kafka"])
def opening(request: pytest.FixtureRequest) -> Open:
    """How to open an end of a channel."""
    if request.param == "local":
        exchange = Exchange()
        return lambda receiver, counts: LocalChannel(receiver, counts, exchange=exchange)
    if request.param == "postgres":
        place = request.getfixturevalue("database")
        return lambda receiver, counts: PostgresChannel(receiver, counts, endpoint=place)
    endpoint, topic = broker(request.getfixturevalue("kafka")), f"push-{uuid.uuid4().hex[:8]}"
    return lambda receiver, counts: KafkaChannel(receiver, counts, endpoint=endpoint, topic=topic)


class Busy(MemoryRunner):
    """Takes some milliseconds for each job."""

    def run(self, spec: Any) -> Any:
        self.held = True
        future = super().run(spec)
        threading.Timer(0.005, self.complete, kwargs={"count": 1}).start()
        return future


class Faulty:
    """Loses three of ten messages, doubles some, and lets some come late."""

    def __init__(self, channel: Channel, seed: int) -> None:
        self._channel, self._dice = channel, random.Random(seed)
        self._late: list[tuple[str, Diff]] = []

    def publish(self, hydration_id: str, diff: Diff) -> None:
        lot = self._dice.random()
        if lot < 0.3:
            return
        self._late.append((hydration_id, diff))
        if lot < 0.5:
            return
        self._dice.shuffle(self._late)
        for message in self._late:
            for _ in range(self._dice.choice([1, 1, 2])):
                self._channel.publish(*message)
        self._late.clear()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)


@dataclass(kw_only=True)
class Hydration:
    """A table that goes from memory into memory by several lanes, each as if in a process of its own."""

    url: str
    credits: int = 1
    source: MemorySource = field(default_factory=lambda: MemorySource(keys=range(ROWS)))
    sink: MemorySink = field(default_factory=MemorySink)
    ends: list[Push] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ledger = SqlLedger(self.url)
        self.runner = Busy(source=self.source, sink=self.sink)
        self.budget = Budget(credits=self.credits, range_rows=EACH)
        self.planned = Planner(
            source=self.source,
            sink=self.sink,
            runner=self.runner,
            ledger=self.ledger,
            budget=self.budget,
            mode=Mode.APPEND,
            owner="dag",
            cluster="spark",
        ).plan()
        self.id, self.plan_id = self.planned.hydration.id, self.planned.plan.plan_id

    def drain(self, pushes: list[Push | None]) -> None:
        """Drain it by a lane for each end of a channel."""
        threads = [threading.Thread(target=self._lane, args=(index, push)) for index, push in enumerate(pushes)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()
        self.ledger.finish(self.id)

    def _lane(self, index: int, push: Push | None) -> None:
        with closing(SqlLedger(self.url, publish=push.publish) if push else SqlLedger(self.url)) as ledger:
            limiter = Limiter(
                ledger=ledger,
                hydration_id=self.id,
                budget=self.budget,
                memory=self.runner.memory,
                read_gate=push.read_gate if push else read_gate,
            )
            Hydrator(
                hydration_id=self.id,
                plan=self.planned.plan,
                lane=f"lane-{index}",
                ledger=ledger,
                source=self.source,
                sink=self.sink,
                runner=self.runner,
                limiter=limiter,
                budget=self.budget,
                inline_wait=100.0,
                poll=PollPolicy(initial=0.02, maximum=0.1),
                push=push,
            ).run()

    def essence(self) -> object:
        """Return what is left in the end, but for times, attempts and samples."""
        ranges = [
            (record.seq, record.state, str(record.bounds), record.rows, record.bytes, record.checksum)
            for record in self.ledger.ranges(self.plan_id)
        ]
        found = self.ledger.hydration(self.id)
        total = sum(each.snapshot_progress for each in self.ledger.statistics(self.id))
        return ranges, found.phase, found.credits, total, sorted(self.sink.rows), self.ledger.counts(self.plan_id)


@contextmanager
def ends(opening: Open, number: int, *, paces: Paces = QUICK, seed: int | None = None) -> Iterator[list[Push]]:
    """Give so many processes' ends of a channel; with a seed what they publish meets faults."""

    def opened(receiver: Any, counts: Any) -> Any:
        channel = opening(receiver, counts)
        return channel if seed is None else Faulty(channel, seed)

    made = [Push(opened, paces=paces) for _ in range(number)]
    try:
        yield made
    finally:
        for each in made:
            each.close()


@pytest.fixture
def without(tmp_path) -> object:
    """What a run without push leaves."""
    place = f"sqlite:///{tmp_path / 'without.db'}"
    migrate(place)
    made = Hydration(url=place)
    made.drain([None, None])
    made.ledger.close()
    return made.essence()


@pytest.mark.statement("P5")
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_faults_of_the_channel_change_nothing_in_the_end(url: str, opening: Open, without: object, seed: int | None):
    """P5: with messages lost, doubled and shuffled, rows and ledger are those of a run that was told nothing."""
    hydration = Hydration(url=url)
    with ends(opening, 3, seed=seed) as made:
        hydration.drain([*made])
        if seed is None:
            assert sum(each.counts["clean"] for each in made) > 0
        else:
            assert sum(each.counts["unclean"] for each in made) > 0
    assert hydration.essence() == without
    hydration.ledger.close()


@pytest.mark.statement("P1", "P3")
def test_a_commit_there_is_an_admission_here(url: str, opening: Open):
    """P1, P3: nobody polls within the test's time, so whoever goes on was told."""
    hydration = Hydration(url=url)
    with ends(opening, 2, paces=NEVER) as made:
        hydration.drain([*made])
        assert sum(each.counts["clean"] for each in made) >= 10
    assert sorted(hydration.sink.rows) == list(range(ROWS))
    hydration.ledger.close()


@dataclass(kw_only=True)
class Elsewhere:
    """A server of the channel's own, which can be ended and started again while the ledger goes on."""

    services: Services
    name: str
    opening: Open

    def end(self) -> None:
        self.services.kill(self.name)

    def begin(self) -> None:
        self.services.restart(self.name)


@pytest.fixture(params=mark_long(["postgres", "kafka"], quick=["postgres"]))
def elsewhere(request: pytest.FixtureRequest, services: Services) -> Iterator[Elsewhere]:
    """Each transport on a server that only it uses."""
    name = f"{request.param}:push"
    server = services.up(name)[name]
    if request.param == "postgres":
        place = endpoint_of(server, "postgres")
        yield Elsewhere(
            services=services,
            name=name,
            opening=lambda receiver, counts: PostgresChannel(receiver, counts, endpoint=place),
        )
    else:
        endpoint, topic = broker(server), f"push-{uuid.uuid4().hex[:8]}"
        yield Elsewhere(
            services=services,
            name=name,
            opening=lambda receiver, counts: KafkaChannel(receiver, counts, endpoint=endpoint, topic=topic),
        )
    services.down(name)


@pytest.mark.statement("P5", "P7", "P9")
@pytest.mark.parametrize("down", [1.0, pytest.param(60.0, marks=pytest.mark.long)])
def test_a_server_that_goes_and_comes_back_is_only_noticed(
    url: str, elsewhere: Elsewhere, without: object, down: float, monkeypatch: pytest.MonkeyPatch
):
    """P5, P7, P9: while it is down they poll, which is counted; afterwards push goes on by itself. Nothing fails."""
    monkeypatch.setattr("airflow_provider_backpressure.channels.kafka.ECHO_SECONDS", 3.0)
    monkeypatch.setattr("airflow_provider_backpressure.channels.kafka.BEAT_SECONDS", 0.5)
    hydration = Hydration(url=url)
    with ends(elsewhere.opening, 2) as made:
        fallbacks = lambda: sum(each.counts["fallbacks"] for each in made)  # noqa: E731
        clean = lambda: sum(each.counts["clean"] for each in made)  # noqa: E731
        hydration.ledger.pause(hydration.id, who="test")
        draining = threading.Thread(target=hydration.drain, args=([*made],))
        draining.start()
        until(lambda: all(each.healthy(hydration.id) for each in made), timeout=60)
        before = fallbacks()
        elsewhere.end()
        until(lambda: not any(each.healthy(hydration.id) for each in made), timeout=60)
        until(lambda: fallbacks() > before, timeout=60)
        hydration.ledger.resume(hydration.id, who="test")
        until(lambda: hydration.ledger.counts(hydration.plan_id).committed >= 3, timeout=60)
        hydration.ledger.pause(hydration.id, who="test")
        threading.Event().wait(down)
        elsewhere.begin()
        until(lambda: all(each.healthy(hydration.id) for each in made), timeout=60)
        heard = clean()
        # Published by an end of its own: those of the lanes may still hold back after their failures.
        other = Push(elsewhere.opening, paces=QUICK)
        with closing(other), closing(SqlLedger(url, publish=other.publish)) as ledger:
            ledger.resume(hydration.id, who="test")
            until(lambda: clean() > heard, timeout=60)
        draining.join(120)
        assert not draining.is_alive()
    assert hydration.essence() == without
    hydration.ledger.close()


@pytest.mark.statement("P7", "P9")
@pytest.mark.fault(9)
def test_a_connection_that_is_half_dead_is_noticed(url: str, services: Services, monkeypatch: pytest.MonkeyPatch):
    """P7, P9: a server that is frozen says nothing, and nothing says that it is; the echo does not come."""
    monkeypatch.setattr(listening, "BEAT_SECONDS", 0.3)
    monkeypatch.setattr(listening, "ECHO_SECONDS", 1.0)
    server = services.up("postgres:push")["postgres:push"]
    place = endpoint_of(server, "postgres")
    ledger = SqlLedger(url)
    hydration_id, _ = planned(ledger, 3, credits=1)
    take(ledger, hydration_id)
    push = Push(lambda receiver, counts: PostgresChannel(receiver, counts, endpoint=place), paces=QUICK)
    waiter = Waiter(hydration_id=hydration_id, ledger=ledger, wake=lambda: None)
    push.enter(waiter)

    def hears() -> bool:
        push.read_gate(ledger, hydration_id)
        return push.healthy(hydration_id)

    try:
        until(hears)
        services.kill("postgres:push", signal.SIGSTOP)
        until(lambda: not push.healthy(hydration_id))
        services.kill("postgres:push", signal.SIGCONT)
        until(hears, timeout=40)
        assert push.counts["connected"] >= 2
    finally:
        services.kill("postgres:push", signal.SIGCONT)
        push.leave(waiter)
        push.close()
        ledger.close()
        services.down("postgres:push")


@pytest.mark.statement("P9")
def test_a_full_queue_and_a_listener_that_never_reads_hold_nobody_up(url: str, services: Services, caplog):
    """P9: what cannot be sent is dropped, counted and told once; the ledger's writes go on, and then push too."""
    name = "postgres:queue"
    server = services.up(name, settings={"postgres": {"max_notify_queue_pages": "64"}})[name]
    place = endpoint_of(server, "postgres")
    hydration_id = uuid.uuid4().hex
    push = Push(lambda receiver, counts: PostgresChannel(receiver, counts, endpoint=place), paces=QUICK)
    ledger = SqlLedger(url, publish=push.publish)
    known, _ = planned(ledger, 3, credits=1)
    deaf = psycopg.connect(server.url, autocommit=False)
    deaf.execute(f'LISTEN "{name_of(hydration_id)}"')
    deaf.commit()
    # In a transaction it takes nothing out of the queue, and it never reads.
    deaf.execute("SELECT 1")
    try:
        big = {"paused_why": "x" * 7_000}
        for number in range(400):
            push.channel.publish(hydration_id, Diff(hydration_id=hydration_id, number=number, moment=0.0, changes=big))
            if push.counts["send_failures"]:
                break
            push.channel.flush(5.0)
        until(lambda: push.counts["send_failures"])
        began = time.monotonic()
        for _ in range(20):
            ledger.pause(known, who="test")
        assert time.monotonic() - began < 10
        assert push.counts["dropped"] > 0
        told = [record for record in caplog.records if "are not published for now" in record.getMessage()]
        assert len(told) == 1
        deaf.close()

        def sent() -> bool:
            before = push.counts["dropped"]
            ledger.pause(known, who="test")
            push.flush()
            return push.counts["dropped"] == before

        until(sent, timeout=40)
    finally:
        deaf.close()
        push.close()
        ledger.close()
        services.down(name)


@pytest.mark.statement("P2", "P4")
def test_the_triggers_of_a_process_have_one_listening_connection(
    url: str, database: Endpoint, monkeypatch: pytest.MonkeyPatch
):
    """P2, P4: those of a process share it; told of a commit, each credit lets one through, and nobody looked."""
    monkeypatch.setenv(
        "AIRFLOW_CONN_BACKPRESSURE_DEFAULT",
        json.dumps(
            {
                "conn_type": "backpressure",
                "host": database.host,
                "port": database.port,
                "schema": database.database,
                "login": database.user,
                "password": database.password,
            }
        ),
    )
    writer = Push(lambda receiver, counts: PostgresChannel(receiver, counts, endpoint=database), paces=QUICK)
    ledger = SqlLedger(url, publish=writer.publish)
    hydration_id, plan_id = planned(ledger, 60, credits=2)
    held = [take(ledger, hydration_id) for _ in range(2)]
    monkeypatch.setattr("airflow_provider_backpressure.settings.paces", lambda: NEVER)

    def listening_now() -> int:
        with psycopg.connect(ledger_url(database)) as connection:
            row = connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s "
                "AND (query LIKE '%%LISTEN%%' OR query LIKE '%%pg_notify(''backpressure_process%%')",
                (APPLICATION,),
            ).fetchone()
            assert row is not None
            return int(row[0])

    async def first(seq: int) -> dict[str, Any]:
        made = AdmissionTrigger(
            hydration_id=hydration_id,
            backpressure_conn_id="backpressure_default",
            budget=Budget(credits=2).to_json(),
            watch="commit",
            plan_id=plan_id,
            seq=seq,
            lane=f"range-{seq}",
            poll_interval=60.0,
            first_look=0.0,
        )
        async for event in made.run():
            return dict(event.payload)
        raise AssertionError("no event")

    async def wait() -> int:
        tasks = [asyncio.ensure_future(first(seq)) for seq in range(2, 52)]
        for _ in range(200):
            if await asyncio.to_thread(listening_now) == 1:
                break
            await asyncio.sleep(0.1)
        await asyncio.sleep(2.0)
        assert await asyncio.to_thread(listening_now) == 1
        assert not any(task.done() for task in tasks)
        for record in held:
            await asyncio.to_thread(commit, ledger, plan_id, record.seq)
        done, pending = await asyncio.wait(tasks, timeout=15, return_when=asyncio.FIRST_COMPLETED)
        if len(done) < 2:
            more, pending = await asyncio.wait(pending, timeout=15, return_when=asyncio.FIRST_COMPLETED)
            done |= more
        await asyncio.sleep(1.0)
        count = sum(task.done() for task in tasks)
        for task in pending:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return count

    assert asyncio.run(wait()) == 2
    assert ledger.gate(hydration_id).in_flight == 2
    writer.close()
    ledger.close()


def ledger_url(place: Endpoint) -> str:
    """Return libpq's URL of a database."""
    return f"postgresql://{place.user}:{place.password}@{place.address}"


@pytest.mark.statement("P9")
def test_another_generation_on_the_same_channel_is_harmless(url: str, opening: Open):
    """P9: its messages are ignored, and those that wait go on by polling."""
    hydration = Hydration(url=url)
    with ends(opening, 2) as made:

        def shout(over: threading.Event) -> None:
            while not over.wait(0.02):
                for each in made:
                    each.heard(
                        encode(Diff(hydration_id=hydration.id, number=1, moment=0.0)).replace(b'"v":1', b'"v":9')
                    )

        with beside(shout):
            hydration.drain([*made])
        assert sum(each.counts["ignored"] for each in made) > 0
    assert all(record.state is RangeState.COMMITTED for record in hydration.ledger.ranges(hydration.plan_id))
    hydration.ledger.close()
