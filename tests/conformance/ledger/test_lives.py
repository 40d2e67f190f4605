"""The queue and processes that die at any moment, or race for it: H4 to H6 with processes of their own."""

import os
import random
import signal
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess

import pytest
import sqlalchemy as sa

from airflow_provider_backpressure.core.admission.gate_watcher import Watch
from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.gate.cluster_queue import Shared
from airflow_provider_backpressure.core.gate.credit_limits import FixedLimit
from airflow_provider_backpressure.triggers import AdmissionTrigger
from tests.conformance.ledger.lives import expire, hydrate, settle, take_halves
from tests.conformance.ledger.support import Subject, admit, commit, cut, make_plan, register
from tests.support.triggerer import Triggerer, ledger_connection, triggerers
from tests.support.waiting import until

CLUSTER = "spark_default"
AT_ONCE = 3
RUNNING, QUEUED = ("kill", "kill", "drop", "fail", "complete"), ("kill", "drop")
"""What may become of a source that hydrates, and of one that waits."""
PROCESSES = get_context("forkserver")
PROCESSES.set_forkserver_preload([hydrate.__module__, Triggerer.__module__])


@dataclass(kw_only=True)
class Life:
    """A process that hydrates a source."""

    hydration_id: str
    process: ForkServerProcess
    told: Connection
    granted: bool = False

    def look(self) -> bool:
        """Whether it says that it has its turn."""
        self.granted = self.granted or (self.told.poll(0) and self.told.recv() == "granted")
        return self.granted

    def end(self, word: str) -> None:
        """Tell it how to end, and wait for that."""
        self.told.send(word)
        self.process.join(60)
        assert self.process.exitcode == 0

    def kill(self) -> None:
        """Kill it, wherever it is."""
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join(60)


@dataclass(kw_only=True)
class Sources:
    """Sources on a cluster, and who hydrates them."""

    subject: Subject
    lives: dict[str, Life] = field(default_factory=dict)
    made: int = 0
    happened: Counter[str] = field(default_factory=Counter)

    def begin(self) -> None:
        """Add a source, with a process that waits for its turn."""
        self.made += 1
        hydration_id = register(self.subject.ledger, source_identity=f"source {self.made}", cluster=CLUSTER)
        self.subject.ledger.save_plan(hydration_id, make_plan(), cut(2))
        self.live(hydration_id)

    def live(self, hydration_id: str) -> None:
        """Start a process for a source."""
        here, there = PROCESSES.Pipe()
        process = PROCESSES.Process(target=hydrate, args=(self.subject.url, hydration_id, there))
        process.start()
        there.close()
        self.lives[hydration_id] = Life(hydration_id=hydration_id, process=process, told=here)

    def end(self, life: Life, how: str) -> None:
        """Let one come to an end; a killed one comes again, a dropped one is removed from the ledger."""
        ledger = self.subject.ledger
        if how in ("fail", "complete"):
            life.end(how)
        else:
            life.kill()
            expire(self.subject.url, life.hydration_id)
            settle(ledger, life.hydration_id)
        if how == "drop":
            ledger.forget(life.hydration_id)
        del self.lives[life.hydration_id]
        if how == "kill":
            self.live(life.hydration_id)
        self.happened[f"{how} {'running' if life.granted else 'queued'}"] += 1

    def agree(self) -> bool:
        """Whether tokens in use are sources that hydrate, as many as may, once everybody has heard."""
        tokens = {entry.hydration_id for entry in self.subject.ledger.queue(CLUSTER) if entry.running}
        assert len(tokens) <= AT_ONCE
        assert tokens <= self.lives.keys()
        hydrating = {one.hydration_id for one in self.lives.values() if one.look()}
        return tokens == hydrating and len(tokens) == min(AT_ONCE, len(self.lives))


@pytest.mark.statement("H4")
@pytest.mark.parametrize("on_server", ["postgresql"], indirect=True)
@pytest.mark.parametrize("events", [12, pytest.param(100, marks=pytest.mark.long)])
def test_after_kills_drops_and_failures_tokens_are_those_of_sources_that_hydrate(
    on_server: Subject, events: int
) -> None:
    """H4: killed with SIGKILL in the middle of their statements, dropped, failed or completed, queued or running."""
    chance, sources = random.Random(7), Sources(subject=on_server)
    on_server.ledger.share(Shared.HYDRATIONS, CLUSTER, AT_ONCE, who="test")
    try:
        for _ in range(events):
            while len(sources.lives) < AT_ONCE + 2:
                sources.begin()
            until(sources.agree, timeout=60, told=lambda: f"after {dict(sources.happened)}")
            life = chance.choice(list(sources.lives.values()))
            how = chance.choice(RUNNING if life.granted else QUEUED)
            sources.end(life, how)
        for life in list(sources.lives.values()):
            sources.end(life, "drop")
    finally:
        for life in sources.lives.values():
            life.kill()
    assert [entry for entry in on_server.ledger.queue(CLUSTER) if entry.running] == []
    wanted = 3 if events == 100 else 0
    assert min(sources.happened[f"{how} running"] for how in set(RUNNING)) >= wanted, sources.happened
    assert sources.happened.total() > events


@pytest.mark.statement("H6")
def test_two_that_ask_for_all_of_them_hydrate_the_same_one(on_server: Subject) -> None:
    """H6: each source needs both of two processes, which ask in random order: neither waits in front of another one."""
    ledger = on_server.ledger
    ledger.share(Shared.HYDRATIONS, CLUSTER, 1, who="test")
    every = [register(ledger, source_identity=f"source {number}", cluster=CLUSTER) for number in range(10)]
    for hydration_id in every:
        ledger.save_plan(hydration_id, make_plan(), cut(2))
        ledger.enqueue(hydration_id, run="run")
    with ProcessPoolExecutor(2, mp_context=PROCESSES) as pool:
        both = [pool.submit(take_halves, on_server.url, every, number) for number in range(2)]
        assert [one.result(timeout=120) for one in both] == [every, every]


@dataclass(kw_only=True)
class Halves:
    """Sources of two ranges each; each of two runs hydrates one range of each source, in its turn.

    A run's tasks wait in its own triggerer. A task that is resumed and is not admitted waits again.
    """

    subject: Subject
    every: list[str]
    watch: Watch
    orders: tuple[list[str], list[str]] = field(default_factory=lambda: ([], []))
    """The sources as each run hydrated them."""

    def wait(self, triggerer: Triggerer, number: int, hydration_id: str) -> None:
        """Let a run's task wait for the source's turn."""
        made = AdmissionTrigger(
            hydration_id=hydration_id,
            backpressure_conn_id="backpressure_default",
            budget=Budget(credits=2).to_json(),
            watch=self.watch.value,
            lane=f"lane {number}",
            poll_interval=0.05,
            first_look=0.0,
        )
        triggerer.start_trigger(hydration_id, made.serialize()[1])

    def resume(self, triggerer: Triggerer, number: int) -> None:
        """Resume the tasks whose triggers have fired."""
        ledger, lane = self.subject.ledger, f"lane {number}"
        for hydration_id in triggerer.fired():
            permit = admit(ledger, hydration_id, lane=lane, seq=number)
            if permit is None:
                self.wait(triggerer, number, hydration_id)
                continue
            self.orders[number].append(hydration_id)
            commit(ledger, permit.range.plan_id, number, worker=lane, limit=FixedLimit())
            running = [entry.hydration_id for entry in ledger.queue(CLUSTER) if entry.running]
            assert len(running) <= 1


@pytest.mark.statement("H6")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("watch", [Watch.QUEUE, pytest.param(Watch.GATE, marks=pytest.mark.long)])
def test_two_triggerers_wait_in_one_order(on_server: Subject, watch: Watch) -> None:
    """H6: each source needs tasks of both triggerers: their triggers fire in one order, also where one is killed."""
    ledger, chance = on_server.ledger, random.Random(11)
    ledger.share(Shared.HYDRATIONS, CLUSTER, 1, who="test")
    every = [register(ledger, source_identity=f"source {number}", cluster=CLUSTER) for number in range(8)]
    for hydration_id in every:
        ledger.save_plan(hydration_id, make_plan(), cut(2))
        ledger.enqueue(hydration_id, run="run")
    halves = Halves(subject=on_server, every=every, watch=watch)
    connections = {"backpressure_default": ledger_connection(sa.make_url(on_server.url))}
    with triggerers(3, connections) as (first, second, spare):
        running = [first, second]
        for number, triggerer in enumerate(running):
            for hydration_id in chance.sample(every, len(every)):
                halves.wait(triggerer, number, hydration_id)

        def is_past(sources: int) -> bool:
            for number, triggerer in enumerate(running):
                halves.resume(triggerer, number)
            return all(len(order) >= sources for order in halves.orders)

        until(lambda: is_past(3), 120, told=lambda: halves.orders)
        second.kill()
        running[1] = spare
        for hydration_id in chance.sample(every, len(every)):
            if hydration_id not in halves.orders[1]:
                halves.wait(spare, 1, hydration_id)
        until(lambda: is_past(len(every)), 120, told=lambda: halves.orders)
    assert halves.orders == (every, every)
