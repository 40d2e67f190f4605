"""The ledger as triggers reach it: without blocking the event loop, one for all of a process."""

import asyncio
import json
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING

from airflow.sdk import BaseHook, Connection

from airflow_provider_backpressure.airflow_compat import AirflowNotFoundException
from airflow_provider_backpressure.core.gate.signals import Decision
from airflow_provider_backpressure.core.ports.ledger import Ledger
from airflow_provider_backpressure.core.push.hub import Push, is_pushed
from airflow_provider_backpressure.core.push.wait_queue import Waiter
from airflow_provider_backpressure.hooks.backpressure import CONN_TYPE, open_ledger, url
from airflow_provider_backpressure.hooks.connection_types_and_fields import check_type, unknown_connection_error
from airflow_provider_backpressure.hooks.push_transport import push_over, transport

if TYPE_CHECKING:
    from sqlalchemy import URL


@lru_cache(maxsize=8)
def get_shared_ledger(address: "URL", push: Push | None = None) -> Ledger:
    """Return the ledger that all triggers of this process share: a thousand waiting lanes need few connections."""
    return open_ledger(address, push)


async def open_shared_ledger(conn_id: str) -> Ledger:
    """Return the ledger of an Airflow connection; ``InvalidDeclaration`` where there is no such connection."""
    return (await open_ledger_and_push(conn_id))[0]


async def open_ledger_and_push(conn_id: str) -> tuple[Ledger, Push | None]:
    """Return the ledger of an Airflow connection, and this process's end of its channel, if it has one.

    ``InvalidDeclaration`` where there is no such connection.
    """
    found = await _connection(conn_id, CONN_TYPE)
    # Not `extra_dejson`: it sends a message to the supervisor, which must not block the event loop, and its async
    # form is missing from connections that a local secrets backend gives.
    extra = json.loads(found.extra or "{}")
    chosen = transport(found, extra)
    broker = await _connection(chosen.conn_id, "kafka") if chosen.conn_id else None
    push = push_over(chosen, broker)
    told = () if push is None else (push,)
    return await asyncio.to_thread(lambda: get_shared_ledger(url(found, extra), *told)), push


async def _connection(conn_id: str, conn_type: str) -> Connection:
    try:
        found = await BaseHook.aget_connection(conn_id)
    except AirflowNotFoundException as error:
        raise unknown_connection_error(conn_id, conn_type) from error
    check_type(found, conn_type)
    return found


MOST_SECONDS = 60.0
"""Longest wait for a turn. One is given every few seconds, so it is needed only if the dispatcher has died."""


class TurnWaiter:
    """Waits for its turn where what closes the gate is pushed; for a while where it is not, or without ``push``."""

    def __init__(self, push: Push | None, ledger: Ledger, hydration_id: str, seq: int | None) -> None:
        self._push = push
        self._loop, self._turn = asyncio.get_running_loop(), asyncio.Event()
        self._waiter = Waiter(hydration_id=hydration_id, ledger=ledger, wake=self._wake, seq=seq)
        self._entered = False

    async def wait(self, decision: Decision | None, pause: float, *, most: float = MOST_SECONDS) -> None:
        """Return when it is time for another look. ``decision``: what the last one gave, ``None`` where it failed.

        ``most``: seconds in any case.
        """
        if self._push is None:
            await asyncio.sleep(pause)
            return
        if not self._entered:
            self._push.enter(self._waiter)
            self._entered = True
        if not is_pushed(decision):
            self._push.unpark(self._waiter, failed=decision is None)
            await asyncio.sleep(pause)
            return
        self._turn.clear()
        self._push.park(self._waiter)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._turn.wait(), min(most, MOST_SECONDS))

    def done(self) -> None:
        """Wait no longer. Idempotent."""
        if self._push is not None and self._entered:
            self._push.leave(self._waiter)

    def _wake(self) -> None:
        # The loop may have been closed with this trigger still in it: then there is no waiter any more.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._turn.set)
