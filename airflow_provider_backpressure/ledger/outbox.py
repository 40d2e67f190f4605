"""Publishes what a write has changed at a gate, once it is committed."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider_backpressure.core.gate.gate_event import Diff
from airflow_provider_backpressure.core.gate.overrides import Steering
from airflow_provider_backpressure.core.transitions import hydration as hydrating
from airflow_provider_backpressure.core.transitions.hydration import Figures

Publish = Callable[[Any, str, Diff], None]
"""Takes the ledger, a hydration's id, and what has changed there. It neither raises nor waits."""


def nobody(ledger: Steering, hydration_id: str, diff: Diff) -> None:
    """Publish nothing."""


@dataclass(kw_only=True)
class Outbox:
    """What one transaction has to publish."""

    diffs: list[Diff] = field(default_factory=list)

    def add(self, before: Figures, after: Figures, **news: Any) -> Figures:
        """Return the figures to be saved, with the number of this change; see :func:`.hydrating.number_change`."""
        figures, diff = hydrating.number_change(before, after, **news)
        self.diffs.append(diff)
        return figures

    def tell(self, publish: Publish, ledger: Any) -> None:
        """Say it."""
        for diff in self.diffs:
            publish(ledger, diff.hydration_id, replace(diff, moment=time.time()))
