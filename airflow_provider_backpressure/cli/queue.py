"""``queue``: which hydrations hold a token of a Spark cluster or wait for one, and how many run there at once."""

from argparse import Namespace
from typing import Any

from airflow.utils.platform import getuser

from airflow_provider_backpressure.cli.command import (
    SHOWN,
    command,
    open_ledger,
    print_rows,
)
from airflow_provider_backpressure.core.default_limits import HYDRATIONS_AT_ONCE
from airflow_provider_backpressure.core.gate.cluster_queue import QueueEntry, Shared, by_turn
from airflow_provider_backpressure.core.ports.ledger import Ledger
from airflow_provider_backpressure.core.progress.displayed_state import State
from airflow_provider_backpressure.core.progress.rates_and_eta import duration
from airflow_provider_backpressure.core.progress.summary import HydrationSummary
from airflow_provider_backpressure.exceptions import InvalidDeclaration

ON, OFF = "on", "off"


@command
def queue(args: Namespace) -> None:
    """Show the queue; with ``--concurrency`` change how many sources hydrate at once on a cluster."""
    with open_ledger(args) as ledger:
        if args.concurrency is not None:
            if not args.cluster:
                raise InvalidDeclaration("Name the cluster that shall hydrate so many sources at once: --cluster.")
            if args.concurrency < 0:
                raise InvalidDeclaration(f"The concurrency must be at least 0, not {args.concurrency}.")
            ledger.share(Shared.HYDRATIONS, args.cluster, args.concurrency, who=getuser(), why=args.why)
        print_rows(args, rows(ledger, args.cluster))


def rows(ledger: Ledger, cluster: str | None) -> list[dict[str, Any]]:
    """Return a line for each hydration that holds a token or waits, cluster by cluster, in the order of turns."""
    entries = ledger.queue(cluster)
    ids = [entry.hydration_id for entry in entries]
    seen = {now.hydration.id: now for now in ledger.glances(ids=ids, limit=len(ids))} if ids else {}
    lines = []
    for name in sorted({entry.cluster for entry in entries}):
        most = ledger.get_shared(Shared.HYDRATIONS, name)
        own = by_turn(entry for entry in entries if entry.cluster == name and entry.hydration_id in seen)
        lines += [_line(entry, seen[entry.hydration_id], HYDRATIONS_AT_ONCE if most is None else most) for entry in own]
    return lines


def _line(entry: QueueEntry, now: HydrationSummary, concurrency: int) -> dict[str, Any]:
    start = now.starts_in_seconds
    return {
        "cluster": entry.cluster,
        "at_once": concurrency,
        "position": now.place.position or None,
        "id": entry.hydration_id[:SHOWN],
        "target": now.hydration.sink_identity,
        "state": (now.state if entry.running else State.QUEUED).value,
        "priority": entry.priority,
        "ready_at": entry.ready_at,
        "starts_in": None if start is None else duration(start),
    }
