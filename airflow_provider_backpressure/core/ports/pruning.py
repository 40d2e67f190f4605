"""What the ledger may forget: ranges of plans that later ones have followed, and rows that nothing refers to."""

from typing import Protocol


class Pruning(Protocol):
    """Forgetting it. What a run needs is never forgotten: the plan of a hydration with its ranges, and every credit."""

    def find_superseded(self, *, seconds: float) -> list[str]:
        """Return plans whose ranges may go: others are their hydrations' now, and nothing happened in them since.

        ``seconds``: how long ago the last of their ranges was admitted or committed, at least. A plan that was never
        begun is among them as soon as no run has its hydration.
        """
        ...

    def prune_plan(self, plan_id: str, *, most: int = 1000) -> int:
        """Forget ranges of a plan, ``most`` at a time, and return how many went.

        None of the plan that is its hydration's now, and none while one of them holds a credit.
        """
        ...

    def sweep(self, *, seconds: float, acts: bool = False) -> int:
        """Forget sources that nothing reads, and what was to be kept for an hour only; return how many rows went.

        ``acts``: what people did longer ago than ``seconds``, too.
        """
        ...
