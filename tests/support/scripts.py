"""Scripts of the simulation: what happens next, one move after another, as a seed or a search has it."""

import random
from dataclasses import dataclass

from airflow_provider_backpressure.core.failpoints import Step
from tests.chaos.matrix import Victim

Move = tuple[str, int]
"""What happens, and a number that says to whom."""

WEIGHTS = {
    "step": 180,
    "time": 10,
    "live": 9,
    "restart": 3,
    "kill lane": 8,
    "end lane": 4,
    "kill planner": 3,
    "kill task": 12,
    "twin": 16,
    "driver": 4,
    "memory": 8,
    "sink": 4,
    "ledger": 4,
    "lose answer of sink": 3,
    "lose answer of ledger": 3,
    "pause": 2,
    "credits": 2,
    "smaller ranges": 3,
    "clock": 4,
    "back up": 3,
    "restore ledger": 1,
    "restore sink": 1,
}
"""How often each move is made beside the others."""
MOVES = list(WEIGHTS)


@dataclass(frozen=True, kw_only=True)
class Script:
    """A whole schedule, as a value."""

    ranges: int
    credits: int
    planned: int = 1
    """Whether it begins with a plan: 0 where the planner is a part of it."""
    moves: tuple[Move, ...]

    def __str__(self) -> str:
        """Return it as :meth:`parse` reads it."""
        moves = ", ".join(f"{name} {which}" for name, which in self.moves)
        return f"{self.ranges} ranges, {self.credits} credits, {self.planned} planned: {moves}"

    @classmethod
    def parse(cls, text: str) -> "Script":
        """Read what was printed."""
        head, _, rest = text.partition(":")
        ranges, credits, planned = (int(part.split()[0]) for part in head.split(","))
        moves = (part.strip().rpartition(" ") for part in rest.split(",") if part.strip())
        return cls(
            ranges=ranges, credits=credits, planned=planned, moves=tuple((name, int(which)) for name, _, which in moves)
        )

    @classmethod
    def killing(cls, victim: Victim, step: Step, seed: int) -> "Script":
        """Return a schedule in which somebody is killed at a step of a range, and nothing else befalls anybody."""
        chance = random.Random(f"{victim} {step} {seed}")
        ranges = chance.randint(2, 4)
        names = chance.choices(("step", "time", "live"), (40, 3, 1), k=60)
        strike = (f"strike {victim} {step}", chance.randint(1, ranges))
        return cls(
            ranges=ranges,
            credits=chance.randint(1, 3),
            moves=(strike, *((name, chance.randrange(16)) for name in names)),
        )

    @classmethod
    def of(cls, seed: int, *, moves: int = 90) -> "Script":
        """Return what a seed makes."""
        chance = random.Random(seed)
        names = chance.choices(MOVES, list(WEIGHTS.values()), k=moves)
        return cls(
            ranges=chance.randint(2, 4),
            credits=chance.randint(1, 3),
            planned=int(chance.random() < 0.9),
            moves=tuple((name, chance.randrange(16)) for name in names),
        )
