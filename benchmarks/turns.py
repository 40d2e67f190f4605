"""Turns: one side copies one table; rounds of them, in another order each."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.accounting import Accounts
from benchmarks.results import Measurement
from benchmarks.stage import Stage
from benchmarks.worker import SideFailed, Worker
from dev.services import Server

OWN = {"spark", "client"}
"""Parts that are a side's own processes: Spark's JVM with its Python workers, and its client."""


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
        roots = processes(stage, worker, spark)
        with Accounts(roots) as opening:
            worker.ask("open")
        with Accounts(roots, own=OWN & set(roots)) as accounts:
            details = worker.ask("run")
        worker.ask("close")
    except SideFailed as error:
        return replace(nothing, error=str(error))
    finally:
        if worker:
            worker.end()
    return replace(
        nothing,
        open_seconds=opening.seconds,
        open_cpu_seconds=sum(tree.cpu_seconds for tree in opening.trees.values()),
        wall_seconds=accounts.seconds,
        cpu_seconds={part: tree.cpu_seconds for part, tree in accounts.trees.items()},
        peak_bytes=accounts.peak_bytes,
        equal=stage.equal(table),
        details=details,
    )


def processes(stage: Stage, worker: Worker, spark: Server | None) -> dict[str, int]:
    """Return the pid at the root of each part that a turn is accounted by."""
    roots = {kind: server.pid for kind, server in stage.servers.items()} | {"client": worker.pid}
    if spark:
        roots["spark"] = spark.pid
    return {part: pid for part, pid in roots.items() if pid}


def rounds(sides: list[str], count: int) -> Iterator[tuple[int, str]]:
    """Yield rounds and sides; each round begins with another side than the one before."""
    for number in range(count):
        first = number % len(sides)
        for side in sides[first:] + sides[:first]:
            yield number + 1, side
