"""Old plans, samples and acts leave the ledger, some rows at a time."""

import re
from dataclasses import dataclass

from airflow_provider_backpressure.core.monitoring.source_poller import Kept
from airflow_provider_backpressure.core.monitoring.source_poller import prune as prune_samples
from airflow_provider_backpressure.core.ports.ledger import Ledger
from airflow_provider_backpressure.exceptions import InvalidDeclaration

_UNITS = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


@dataclass(frozen=True, kw_only=True)
class Pruned:
    """How much went."""

    plans: int
    ranges: int
    rows: int
    """Of other tables."""


def prune(ledger: Ledger, *, seconds: float, samples: Kept, acts: bool = False) -> Pruned:
    """Forget what is older, some rows at a time, so that no transaction takes long."""
    plans = ledger.find_superseded(seconds=seconds)
    ranges = sum(_empty(ledger, plan_id) for plan_id in plans)
    for hydration in ledger.hydrations():
        prune_samples(ledger, hydration.id, samples)
    return Pruned(plans=len(plans), ranges=ranges, rows=ledger.sweep(seconds=seconds, acts=acts))


def age(text: str) -> float:
    """Return the seconds of ``90d``, ``12h``, ``8w`` or ``30m``; ``InvalidDeclaration`` for anything else."""
    found = re.fullmatch(r"(\d{1,6})([mhdw])", text)
    if found is None:
        raise InvalidDeclaration(f"An age is a number and m, h, d or w, such as 90d, not {text!r}.")
    return int(found[1]) * _UNITS[found[2]]


def _empty(ledger: Ledger, plan_id: str) -> int:
    gone = 0
    while some := ledger.prune_plan(plan_id):
        gone += some
    return gone
