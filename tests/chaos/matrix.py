"""The matrix of what is killed when, and what a seed makes of a cell."""

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from airflow_provider_backpressure.core.failpoints import Step

SEEDS = "CHAOS_SEEDS"
"""Environment variable: how many seeds each cell is run with. Without it a sample is run, under one seed."""
SIZES = (9_000, 14_000, 20_000)
"""Rows of the source tables to choose from."""


class Victim(StrEnum):
    """Who is killed, always with SIGKILL."""

    LANE = "lane"
    """The process that runs the hydrator: an Airflow task."""
    DRIVER = "driver"
    """The Spark Connect server with all its Python workers."""
    WORKER = "worker"
    """The Python worker that copies the range."""
    EXECUTOR = "executor"
    """The executor's JVM on a standalone cluster."""
    SINK = "sink"
    """All processes of the target's PostgreSQL."""
    LEDGER = "ledger"
    """All processes of the ledger's PostgreSQL."""


IN_SPARK = (Step.IN_COPY, Step.BEFORE_SINK_COMMIT, Step.AFTER_SINK_COMMIT)
"""Steps at which a task is at work on the range; outside of them no executor holds anything of it."""
UNTIL_RESULT = (Step.BEFORE_SUBMIT, Step.AFTER_SUBMIT, *IN_SPARK)
"""Steps before the driver has given the range's result: after it only other ranges are with the driver."""
CELLS: dict[Victim, tuple[Step, ...]] = {
    Victim.LANE: tuple(Step),
    Victim.SINK: tuple(Step),
    Victim.LEDGER: tuple(Step),
    Victim.WORKER: IN_SPARK,
    Victim.DRIVER: UNTIL_RESULT,
    Victim.EXECUTOR: IN_SPARK,
}
"""Steps at which a kill of each can make a difference to the range."""
SAMPLE: dict[Victim, tuple[Step, ...]] = {
    Victim.LANE: (
        Step.BEFORE_SUBMIT,
        Step.AFTER_SUBMIT,
        Step.BEFORE_SINK_COMMIT,
        Step.AFTER_SINK_COMMIT,
        Step.BEFORE_LEDGER_COMMIT,
    ),
    Victim.SINK: (Step.IN_COPY, Step.AFTER_LEDGER_COMMIT),
    Victim.LEDGER: (Step.BEFORE_LEDGER_COMMIT, Step.AFTER_LEDGER_COMMIT),
    Victim.WORKER: (Step.AFTER_SINK_COMMIT,),
    Victim.DRIVER: (Step.IN_COPY,),
    Victim.EXECUTOR: (Step.BEFORE_SINK_COMMIT,),
}
"""A victim for each step or more, and every victim: what every run of the tests can afford."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One cell under one seed."""

    victim: Victim
    step: Step
    seed: int

    def __str__(self) -> str:
        """Return the test's id."""
        return f"{self.victim}-{self.step}-seed{self.seed}"

    @property
    def draw(self) -> "Draw":
        """Return what the seed chooses; the same for each run."""
        chance = random.Random(str(self))
        rows = chance.choice(SIZES)
        range_rows = rows // chance.randint(6, 9)
        ranges = rows // range_rows
        return Draw(
            rows=rows,
            range_rows=range_rows,
            credits=chance.randint(1, 3),
            # Each range has at least two blocks of rows.
            number=chance.randint(1, ranges * 2 if self.step is Step.IN_COPY else ranges),
            release_first=chance.random() < 0.5,
            pauses=(chance.uniform(0, 0.2), chance.uniform(0, 0.4)),
        )


@dataclass(frozen=True, kw_only=True)
class Draw:
    """What a seed has chosen."""

    rows: int
    range_rows: int
    credits: int
    number: int
    """Pass of the step at which the victim is killed."""
    release_first: bool
    """Whether what is held at the step goes on before the victim is back."""
    pauses: tuple[float, float]
    """Seconds before the kill, and between going on and coming back."""


def cases(*victims: Victim) -> Iterator[Case]:
    """Yield every cell of these victims under every seed, or those of the sample."""
    wanted = os.environ.get(SEEDS)
    for victim in victims:
        for step in CELLS[victim] if wanted else SAMPLE[victim]:
            for seed in range(1, int(wanted or 1) + 1):
                yield Case(victim=victim, step=step, seed=seed)
