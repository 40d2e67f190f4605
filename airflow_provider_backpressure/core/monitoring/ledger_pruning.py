"""Old plans, samples and acts leave the ledger, and old plans' markers their targets, some rows at a time."""

from dataclasses import dataclass
from datetime import timedelta

from airflow_provider_backpressure.core.monitoring.source_observer import Kept
from airflow_provider_backpressure.core.monitoring.source_observer import prune as prune_samples
from airflow_provider_backpressure.core.ports.ledger import History, Ledger
from airflow_provider_backpressure.core.ports.sink import Sink
from airflow_provider_backpressure.core.snapshot.plan import Plan

KEPT = timedelta(hours=1)
"""How long the times of stages are kept, and what processes have counted of push."""


@dataclass(frozen=True, kw_only=True)
class Pruned:
    """How much went."""

    plans: int
    ranges: int
    rows: int
    """Of other tables."""


def prune(ledger: Ledger, kept: History, *, samples: Kept, acts: bool = False) -> Pruned:
    """Forget what is older, some rows at a time, so that no transaction takes long.

    Targets keep their markers: those go at the end of a run, which has its target open.
    """
    plans = ledger.find_superseded(kept)
    ranges = sum(_empty(ledger, plan_id) for plan_id in plans)
    for hydration in ledger.hydrations():
        prune_samples(ledger, hydration.id, samples)
    return Pruned(plans=len(plans), ranges=ranges, rows=ledger.sweep(seconds=kept.seconds, acts=acts))


def end_run(ledger: Ledger, sink: Sink, hydration_id: str, plan: Plan, *, kept: History, samples: Kept) -> Pruned:
    """Forget what the hydration needs no more, once ``plan`` is complete: earlier plans in target and ledger, samples.

    The target comes first: a plan that the ledger has forgotten would not be found again. The target refuses late
    attempts of a forgotten plan by its plan row, which is the newest plan's, so their markers are not needed for that.
    """
    plans = ledger.find_superseded(kept, hydration_id=hydration_id)
    markers = sink.prune(plan, plans) if plans else 0
    ranges = sum(_empty(ledger, plan_id) for plan_id in plans)
    prune_samples(ledger, hydration_id, samples)
    return Pruned(plans=len(plans), ranges=ranges, rows=markers)


def _empty(ledger: Ledger, plan_id: str) -> int:
    gone = 0
    while some := ledger.prune_plan(plan_id):
        gone += some
    return gone
