"""A triggerer of the tests: a process with one event loop, in which Airflow's triggers of this package run."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import Any

import sqlalchemy as sa

from airflow_provider_backpressure.triggers import AdmissionTrigger

PROCESSES = get_context("forkserver")
READY, OVER = "ready", "over"


@dataclass(kw_only=True)
class Triggerer:
    """The process as the test sees it: it takes triggers by name and says which of them have fired."""

    process: ForkServerProcess
    pipe: Connection

    def start_trigger(self, name: str, fields: Mapping[str, Any]) -> None:
        """Start a trigger from its serialized fields, as Airflow does."""
        self.pipe.send(json.dumps([name, fields]))

    def fired(self) -> list[str]:
        """Return the names of the triggers that have fired since the last call."""
        found = []
        while self.pipe.poll():
            found.append(self.pipe.recv())
        return found

    def kill(self) -> None:
        """Kill it with all its triggers."""
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join(60)


@contextmanager
def triggerers(number: int, connections: Mapping[str, Mapping[str, Any]]) -> Iterator[list[Triggerer]]:
    """Give so many triggerers, all of them ready. ``connections``: Airflow's, by their id."""
    made = [_start(connections) for _ in range(number)]
    try:
        for one in made:
            assert one.pipe.poll(240), "a triggerer did not start"
            assert one.pipe.recv() == READY
        yield made
        for one in made:
            if one.process.is_alive():
                one.pipe.send(OVER)
                one.process.join(60)
                assert one.process.exitcode == 0
    finally:
        for one in made:
            if one.process.is_alive():
                one.kill()
            one.pipe.close()


def ledger_connection(address: sa.URL) -> dict[str, Any]:
    """Return the fields of the Airflow connection to a ledger on a server. Nothing is pushed: triggers poll."""
    dialect = address.get_backend_name()
    return {
        "conn_type": "backpressure",
        "host": address.host,
        "port": address.port,
        "schema": address.database,
        "login": address.username,
        "password": address.password,
        "extra": {"push": "none", **({"dialect": dialect} if dialect == "mysql" else {})},
    }


def _start(connections: Mapping[str, Mapping[str, Any]]) -> Triggerer:
    here, there = PROCESSES.Pipe()
    process = PROCESSES.Process(target=_run, args=(json.dumps(connections), there))
    process.start()
    there.close()
    return Triggerer(process=process, pipe=here)


def _run(connections: str, pipe: Connection) -> None:
    for conn_id, fields in json.loads(connections).items():
        os.environ[f"AIRFLOW_CONN_{conn_id.upper()}"] = json.dumps(fields)
    pipe.send(READY)
    asyncio.run(_run_triggers(pipe))


async def _run_triggers(pipe: Connection) -> None:
    """Start what is asked for, and say what has fired, until the test has what it wants."""
    waiting: set[asyncio.Task[str]] = set()
    order = asyncio.create_task(asyncio.to_thread(pipe.recv))
    while True:
        done, _ = await asyncio.wait({*waiting, order}, return_when=asyncio.FIRST_COMPLETED)
        for task in done & waiting:
            pipe.send(task.result())
        waiting -= done
        if order in done:
            if order.result() == OVER:
                break
            name, fields = json.loads(order.result())
            waiting.add(asyncio.create_task(_first_event(name, fields)))
            order = asyncio.create_task(asyncio.to_thread(pipe.recv))
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def _first_event(name: str, fields: dict[str, Any]) -> str:
    async for event in AdmissionTrigger(**fields).run():
        assert event.payload["why"] == "open", event.payload
        return name
    raise AssertionError("the trigger ended without an event")
