"""Several are killed in one run, one after the other, at any time."""

import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_provider_backpressure.core.failpoints import Step
from tests.chaos import oracle
from tests.chaos.lives import LIVES, Lives, living
from tests.chaos.matrix import SEEDS, SIZES, Draw, Victim
from tests.chaos.stage import Stage

VICTIMS = (Victim.LANE, Victim.DRIVER, Victim.SINK, Victim.LEDGER)
RANGES = 20


@dataclass(frozen=True, kw_only=True)
class Strike:
    """One of the kills."""

    victim: Victim
    after: int
    """Commits in the ledger behind which it comes."""
    pauses: tuple[float, float]
    """Seconds before the kill, and before the victim is back."""


def strikes(chance: random.Random) -> list[Strike]:
    """Return whom a seed kills when."""
    victims = chance.sample(VICTIMS, chance.randint(2, 3))
    # The last comes early enough for something to be left to do.
    moments = sorted(chance.sample(range(RANGES * 2 // 3), len(victims)))
    return [
        Strike(victim=victim, after=after, pauses=(chance.uniform(0, 0.2), chance.uniform(0, 0.4)))
        for victim, after in zip(victims, moments, strict=True)
    ]


def struck(strike: Strike, lives: Lives) -> set[str]:
    """Kill a victim when it is time and bring it back; return what was in flight."""
    stage = lives.stage

    def due() -> bool:
        if lives.process.exitcode is not None:
            assert lives.process.exitcode != 0, "there is something left to do"
            assert lives.number < LIVES * 2, lives.said()
            lives.begin()
        return sum(one.step is Step.AFTER_LEDGER_COMMIT for one in stage.journal()) >= strike.after

    lives.until(due)
    time.sleep(strike.pauses[0])
    if strike.victim is Victim.LANE:
        lives.kill()
    else:
        stage.kill(strike.victim)
    flying = oracle.in_flight(stage.journal())
    time.sleep(strike.pauses[1])
    if strike.victim is Victim.LANE:
        lives.begin()
    else:
        stage.restart(strike.victim)
    return flying


@pytest.mark.integration
@pytest.mark.fault(3, 4, 6, 8)
@pytest.mark.statement("X1", "X2", "T1")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(1, int(os.environ.get(SEEDS, 1)) + 1))
def test_several_are_killed_at_any_time(
    stage: Stage, seed: int, folder: Path, record_property: Callable[[str, object], None]
) -> None:
    """X1, X2, T1: whatever one kill leaves behind, the next finds it so; the end is the same."""
    chance = random.Random(str(seed))
    rows, order = chance.choice(SIZES), strikes(chance)
    draw = Draw(
        rows=rows, range_rows=rows // RANGES, credits=chance.randint(2, 3), number=0, release_first=False, pauses=(0, 0)
    )
    record_property("killed", " ".join(f"{strike.victim}@{strike.after}" for strike in order))
    composed = stage.hydration(draw)
    planned = stage.plan(composed)
    stage.begin()
    with living(stage, composed, folder) as lives:
        flying = set().union(*[struck(strike, lives) for strike in order])
        lives.to_the_end(most=LIVES * 2)
        oracle.check(stage, composed, planned, flying=flying)
    assert flying, "none was killed for nothing"
