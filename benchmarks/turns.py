"""Turns: one side copies one table; rounds of them, in another order each."""

import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.accounting import Accounts
from benchmarks.results import Measurement
from benchmarks.stage import Stage
from benchmarks.worker import SideFailed, Worker


def turn(stage: Stage, side: str, number: int, table: str, home: Path) -> Measurement:
    """Let one side copy one table, in a new session on its server, and check the outcome."""
    shutil.rmtree(stage.folder, ignore_errors=True)
    stage.clear(table)
    spark = stage.spark(side)
    order = stage.order(table, spark)
    nothing = Measurement(side=side, round=number, rows=order.rows)
    worker: Worker | None = None
    try:
        worker = Worker(side, order, home=home)
        began = time.perf_counter()
        worker.ask("open")
        opened = time.perf_counter() - began
        roots = {kind: server.pid for kind, server in stage.servers.items()} | {"client": worker.pid}
        if spark:
            roots["spark"] = spark.pid
        with Accounts({part: pid for part, pid in roots.items() if pid}) as accounts:
            details = worker.ask("run")
        worker.ask("close")
    except SideFailed as error:
        return replace(nothing, error=str(error))
    finally:
        if worker:
            worker.end()
    return replace(
        nothing,
        open_seconds=opened,
        wall_seconds=accounts.seconds,
        cpu_seconds={part: tree.cpu_seconds for part, tree in accounts.trees.items()},
        peak_bytes=accounts.trees["spark"].peak_bytes if spark else 0,
        equal=stage.equal(table),
        details=details,
    )


def rounds(sides: list[str], count: int) -> Iterator[tuple[int, str]]:
    """Yield rounds and sides; each round begins with another side than the one before."""
    for number in range(count):
        first = number % len(sides)
        for side in sides[first:] + sides[:first]:
            yield number + 1, side
