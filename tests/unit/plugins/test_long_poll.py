"""Pages that wait for changes: told at once, by one waiter of the process, and without a thread for each."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from airflow_provider_backpressure.channels.in_process import Exchange, LocalChannel
from airflow_provider_backpressure.core.push.hub import Paces, Push, Switch, turn
from airflow_provider_backpressure.plugins import long_poll as live
from airflow_provider_backpressure.plugins.long_poll import Heard, Live
from airflow_provider_backpressure.testing import MemoryLedger
from tests.conformance.ledger.support import planned, take

NEVER = Paces(normal=60.0, generous=60.0)
"""Whoever hears with these was told."""
PAGES = 200


class Counted(MemoryLedger):
    """Counts how often a gate is read."""

    reads = 0

    def gate(self, hydration_id: str) -> Any:
        """Count, and read."""
        Counted.reads += 1
        return super().gate(hydration_id)


@pytest.fixture
def exchange() -> Exchange:
    return Exchange()


@pytest.fixture
def push(exchange: Exchange) -> Push:
    """The API server's end."""
    return Push(lambda receiver, counts: LocalChannel(receiver, counts, exchange=exchange), paces=NEVER)


@pytest.fixture
def ledger(exchange: Exchange) -> MemoryLedger:
    """Written to by another process."""
    other = Push(lambda receiver, counts: LocalChannel(receiver, counts, exchange=exchange), paces=NEVER)
    Counted.reads = 0
    return Counted(publish=other.publish)


def run(what: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(what, 20))


async def current(page: Live, hydration_id: str) -> int:
    """Return the number of the latest change, as a page learns it with its first question."""
    return (await page.wait({hydration_id: -1}, seconds=5)).moved[hydration_id]


def test_a_page_hears_of_a_change_as_it_happens(ledger: MemoryLedger, push: Push):
    hydration_id, _ = planned(ledger)
    page = Live(lambda: (ledger, push))

    async def look() -> None:
        number = await current(page, hydration_id)
        waiting = asyncio.ensure_future(page.wait({hydration_id: number}, seconds=15))
        await asyncio.sleep(0.05)
        assert not waiting.done(), "nothing has changed"
        await asyncio.to_thread(take, ledger, hydration_id)
        assert await waiting == Heard(pushed=True, moved={hydration_id: number + 1})
        # What happens between two questions is not lost.
        await asyncio.to_thread(take, ledger, hydration_id)
        assert (await page.wait({hydration_id: number + 1}, seconds=15)).moved == {hydration_id: number + 2}
        assert await page.wait({hydration_id: number + 2}, seconds=0.05) == Heard(pushed=True, moved={})

    run(look())


def test_many_pages_share_one_waiter_and_no_thread_waits(ledger: MemoryLedger, push: Push):
    hydration_id, _ = planned(ledger)
    page = Live(lambda: (ledger, push))

    async def look() -> None:
        number = await current(page, hydration_id)
        reads, threads = Counted.reads, threading.active_count()
        waiting = [asyncio.ensure_future(page.wait({hydration_id: number}, seconds=15)) for _ in range(PAGES)]
        while len(page._followed[push, hydration_id].bells) < PAGES:
            await asyncio.sleep(0.01)
        # The event loop's own pool opens the ledger; it has its size, whatever the number of pages.
        assert threading.active_count() - threads < 50
        await asyncio.to_thread(take, ledger, hydration_id)
        assert {one.moved[hydration_id] for one in await asyncio.gather(*waiting)} == {number + 1}
        assert Counted.reads == reads, "the diff told it: the ledger was not read"

    run(look())


def test_without_push_the_page_is_told_at_once(ledger: MemoryLedger):
    hydration_id, _ = planned(ledger)
    assert run(Live(lambda: (ledger, None)).wait({hydration_id: 3}, seconds=15)) == Heard(pushed=False, moved={})


@pytest.mark.parametrize("switch", list(Switch))
def test_a_page_is_told_when_push_is_turned_off(
    ledger: MemoryLedger, push: Push, switch: Switch, monkeypatch: pytest.MonkeyPatch
):
    """Within the time in which a switch binds; and what has moved by then is told all the same."""
    monkeypatch.setattr(live, "SETTLE_SECONDS", 0.2)
    hydration_id, _ = planned(ledger)
    page = Live(lambda: (ledger, push))

    async def look() -> None:
        number = await current(page, hydration_id)
        turn(ledger, switch, on=False, who="ada")
        while (await page.wait({hydration_id: number}, seconds=0.3)).pushed:
            push.switches._next = -1.0

    run(look())


def test_what_nobody_looks_at_is_followed_no_more(
    ledger: MemoryLedger, push: Push, exchange: Exchange, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(live, "LINGER_SECONDS", 0.05)
    hydration_id, _ = planned(ledger)
    page = Live(lambda: (ledger, push))

    async def look() -> None:
        await current(page, hydration_id)
        while exchange.subscribers(hydration_id):
            await asyncio.sleep(0.01)

    run(look())
    assert page._followed == {}
