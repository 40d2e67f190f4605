"""Which driver should copy: psycopg or asyncpg, with and without the checksum of rows, and what the checksum takes.

`python -m benchmarks.copy_loop --rows 2000000 --rounds 5`: TPC-H `lineitem` from one database into another, the ways in
turn, each in a process of its own. CPU seconds are those of the worker and of both its backends, from `/proc`.
`checksum` are the seconds by the clock that the copy path's way has spent within its checksum: at most a tenth.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import asyncpg
import psycopg
from xxhash import xxh3_64_intdigest

from airflow_provider_backpressure.connectors.postgres.tasks.copy_streams import CopyIn, CopyOut
from airflow_provider_backpressure.connectors.postgres.tasks.staging_table import END, HEADER, Buffer, RowSum
from benchmarks import machine, page, report
from dev import tpch
from dev.services import temporary_services

TABLE, SCHEMA, SOURCE, SINK = "lineitem", "raw", "copy_source", "copy_sink"
OUT = f"COPY (SELECT * FROM {TABLE}) TO STDOUT (FORMAT binary)"
IN = f"COPY {SCHEMA}.{TABLE} FROM STDIN (FORMAT binary)"
HEADING = "The copy path's loop"
PATH = "psycopg"
"""The way that the copy path goes."""
BOUND = 0.10
SETTINGS = {"autovacuum": "off", "max_wal_size": "16GB"}
LOGIN = "COPY_LOOP_LOGIN"
"""Name of the variable by which a way's process learns how to connect: a command line would show the password."""


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One way's turn: seconds."""

    way: str
    rows: int
    checksum: str
    wall: float
    worker: float
    source: float
    sink: float
    checksum_seconds: float = 0.0
    """Of the wall time, what was spent on hashing rows; 0 where that was not looked at."""

    @property
    def cpu(self) -> float:
        """CPU of all three processes."""
        return self.worker + self.source + self.sink


def psycopg_way(login: dict[str, Any], *, checksum: bool) -> Turn:
    """What the copy path does, but for its marker."""
    with _psycopg(login, SOURCE) as source, _psycopg(login, SINK) as sink, sink.transaction():
        clock, total = Clock(source.info.backend_pid, sink.info.backend_pid), TimedSum()
        out, into = CopyOut(source, OUT), CopyIn(sink, IN)
        for messages in out:
            if checksum:
                total.update(messages)
            into.put(b"".join(messages))
        into.end()
        turn = clock.turn(into.rows, total.finish(out.rows) if checksum else "")
        return replace(turn, checksum_seconds=total.seconds)


def psycopg_copy_way(login: dict[str, Any]) -> Turn:
    """psycopg's own ``Copy`` objects, with the checksum."""
    with _psycopg(login, SOURCE) as source, _psycopg(login, SINK) as sink, sink.transaction():
        clock, total = Clock(source.info.backend_pid, sink.info.backend_pid), RowSum()
        reader, writer = source.cursor(), sink.cursor()
        with reader.copy(OUT) as out, writer.copy(IN) as into:
            for message in out:
                total.update([bytes(message)])
                into.write(message)
        return clock.turn(writer.rowcount, total.finish(reader.rowcount))


async def asyncpg_way(login: dict[str, Any], *, checksum: bool) -> Turn:
    """asyncpg over a bounded queue; its blocks do not end where rows do, so rows have to be found for the checksum."""
    source, sink = await _asyncpg(login, SOURCE), await _asyncpg(login, SINK)
    clock, blocks = Clock(source.get_server_pid(), sink.get_server_pid()), asyncio.Queue[bytes | None](4)
    hashed = Hashed()

    async def read() -> None:
        try:
            await source.copy_from_query(f"SELECT * FROM {TABLE}", output=blocks.put, format="binary")
        finally:
            await blocks.put(None)

    async def rows() -> Any:
        while (block := await blocks.get()) is not None:
            if checksum:
                hashed.update(block)
            yield block

    async with sink.transaction():
        reading = asyncio.ensure_future(read())
        status = await sink.copy_to_table(TABLE, schema_name=SCHEMA, source=rows(), format="binary")
        await reading
    turn = clock.turn(int(status.split()[-1]), str(hashed) if checksum else "")
    await source.close()
    await sink.close()
    return turn


class Hashed:
    """Sum of row hashes over blocks that are cut anywhere."""

    def __init__(self) -> None:
        self._rest, self._sum, self._begun = b"", 0, False

    def update(self, block: bytes) -> None:
        """Hash the whole rows of what is there and keep the rest."""
        text = self._rest + block
        if not self._begun:
            text, self._begun = text[HEADER.size :], True
        end = 0
        for row in _whole_rows(text):
            self._sum += xxh3_64_intdigest(row)
            end += len(row)
        self._rest = text[end:]

    def __str__(self) -> str:
        return f"pgcopy-xxh3:{self._sum % 2**64:016x}"


def _whole_rows(text: bytes) -> Iterator[bytes]:
    at = 0
    while at + 2 <= len(text):
        start, fields = at, int.from_bytes(text[at : at + 2], signed=True)
        if fields == END:
            return
        at += 2
        for _ in range(fields):
            if at + 4 > len(text):
                return
            at += 4 + max(int.from_bytes(text[at : at + 4], signed=True), 0)
        if at > len(text):
            return
        yield text[start:at]


def _cpu_seconds(pid: int) -> float:
    """User and system time of one process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class TimedSum(RowSum):
    """The copy path's checksum, and how long it was at work. A look at the clock is for 32 KiB of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    def update(self, messages: Sequence[Buffer]) -> None:
        """See ``RowSum.update``."""
        began = time.perf_counter()
        super().update(messages)
        self.seconds += time.perf_counter() - began


class Clock:
    """Wall and CPU time of worker and backends from now on."""

    def __init__(self, source: int, sink: int) -> None:
        self._pids = (os.getpid(), source, sink)
        self._cpu = [_cpu_seconds(pid) for pid in self._pids]
        self._began = time.perf_counter()

    def turn(self, rows: int, checksum: str) -> Turn:
        """Return what has passed."""
        wall = time.perf_counter() - self._began
        worker, source, sink = (_cpu_seconds(pid) - before for pid, before in zip(self._pids, self._cpu, strict=True))
        return Turn(way="", rows=rows, checksum=checksum, wall=wall, worker=worker, source=source, sink=sink)


WAYS: dict[str, Callable[[dict[str, Any]], Turn]] = {
    "psycopg": lambda login: psycopg_way(login, checksum=True),
    "psycopg, no checksum": lambda login: psycopg_way(login, checksum=False),
    "psycopg Copy": psycopg_copy_way,
    "asyncpg": lambda login: asyncio.run(asyncpg_way(login, checksum=True)),
    "asyncpg, no checksum": lambda login: asyncio.run(asyncpg_way(login, checksum=False)),
}


def _psycopg(login: dict[str, Any], database: str) -> psycopg.Connection:
    return psycopg.connect(**login, dbname=database, autocommit=True)


async def _asyncpg(login: dict[str, Any], database: str) -> asyncpg.Connection:
    return await asyncpg.connect(**login, database=database)


def _take_turn(way: str, login: dict[str, Any]) -> Turn:
    with _psycopg(login, SINK) as connection:
        connection.execute(f"TRUNCATE {SCHEMA}.{TABLE}")
        connection.execute("CHECKPOINT")
    environment = {**os.environ, LOGIN: json.dumps(login)}
    command = [sys.executable, "-m", "benchmarks.copy_loop", "--turn", way]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return Turn(**{**json.loads(done.stdout), "way": way})


def _prepare(login: dict[str, Any], rows: int) -> None:
    with _psycopg(login, "postgres") as connection:
        for name in (SOURCE, SINK):
            connection.execute(f"CREATE DATABASE {name}")
    with _psycopg(login, SOURCE) as connection:
        tpch.fill(connection, TABLE, rows=rows)
        connection.execute(f"SELECT count(*) FROM {TABLE} WHERE l_comment = ''")
    with _psycopg(login, SINK) as connection:
        tpch.create_empty(connection, SCHEMA, TABLE)


def _table(turns: list[Turn]) -> str:
    lines = ["| way | wall s | CPU s | worker | source | sink | checksum |", "|---|---|---|---|---|---|---|"]
    names = ("wall", "cpu", "worker", "source", "sink", "checksum_seconds")
    for way in WAYS:
        mine = [turn for turn in turns if turn.way == way]
        figures = [median(getattr(turn, name) for turn in mine) for name in names]
        lines.append(f"| {way} | " + " | ".join(f"{figure:.2f}" for figure in figures) + " |")
    return "\n".join(lines)


def checksum_share(turns: list[Turn]) -> float:
    """Return which part of the copy path's wall time its checksum takes: the median over the rounds."""
    return median(turn.checksum_seconds / turn.wall for turn in turns if turn.way == PATH)


def section(command: str, turns: list[Turn]) -> str:
    """Return the figures as Markdown."""
    return "\n\n".join(
        [
            f"What a slice costs in a Spark task, without Spark: {turns[0].rows:,} rows of `lineitem` go from one "
            f"database into another in one process. `{PATH}` is the copy path's own code:\n\n```sh\n{command}\n```",
            _table(turns),
            "Seconds; CPU is that of the worker and of both its backends. `checksum` is the wall time within the "
            "checksum, by a clock around each call of it.",
            f"- {verdict(turns)}",
            report.machine(machine.describe()),
        ]
    )


def verdict(turns: list[Turn]) -> str:
    """Return what is promised and whether it held."""
    share = checksum_share(turns)
    outcome = "held" if share <= BOUND else "MISSED"
    return f"checksum at most {BOUND:.0%} of the time of a copy: {share:.1%}, {outcome}"


def main() -> int:
    """Run, or take one way's turn in this process; 0 where the bound holds."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rows", type=int, default=2_000_000)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--write-docs", action="store_true", help=f"write the section {HEADING!r} of benchmarks.md")
    arguments.add_argument("--turn", choices=list(WAYS), help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.turn:
        print(json.dumps(asdict(WAYS[given.turn](json.loads(os.environ[LOGIN])))))
        return 0
    with temporary_services() as services:
        server = services.up("postgres", settings={"postgres": SETTINGS})["postgres"]
        login = {"host": server.host, "port": server.port, "user": server.user, "password": server.password}
        _prepare(login, given.rows)
        turns = [_take_turn(way, login) for _ in range(given.rounds) for way in WAYS]
    sums = {turn.checksum for turn in turns if turn.checksum}
    assert len(sums) == 1, f"The ways disagree: {sums}"
    assert {turn.rows for turn in turns} == {given.rows}
    print(f"{given.rows} rows, medians of {given.rounds} rounds, load {os.getloadavg()[0]:.1f}\n\n{_table(turns)}")
    print(verdict(turns))
    if given.write_docs:
        command = f"python -m benchmarks.copy_loop --rows {given.rows} --rounds {given.rounds}"
        page.write(HEADING, section(command, turns))
    return 0 if checksum_share(turns) <= BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
