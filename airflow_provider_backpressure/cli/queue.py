"""``queue``: which sources hydrate on each Spark cluster, which wait, and how many may at once."""

from argparse import Namespace
from typing import Any

from airflow.utils.platform import getuser

from airflow_provider_backpressure.cli.command import SHOWN, command, open_ledger, print_rows
from airflow_provider_backpressure.core.gate.overrides import Shared
from airflow_provider_backpressure.core.gate.queue import CONCURRENCY, QueueEntry, estimate_starts, in_order
from airflow_provider_backpressure.core.ports.ledger import Ledger
from airflow_provider_backpressure.core.progress.progress_line import duration
from airflow_provider_backpressure.core.progress.samples import eta
from airflow_provider_backpressure.core.progress.statistics import total_progress
from airflow_provider_backpressure.exceptions import InvalidDeclaration


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
    lines = []
    for name in dict.fromkeys(sorted(entry.cluster for entry in entries)):
        own = [entry for entry in entries if entry.cluster == name]
        most = ledger.get_shared(Shared.HYDRATIONS, name)
        concurrency = CONCURRENCY if most is None else most
        left = {entry.hydration_id: _left(ledger, entry) for entry in own if entry.running}
        starts = estimate_starts(own, left, concurrency=concurrency)
        places = {entry.hydration_id: number for number, entry in enumerate(in_order(own), start=1)}
        lines += [_line(ledger, entry, concurrency, places, starts) for entry in own]
    return lines


def _line(
    ledger: Ledger,
    entry: QueueEntry,
    concurrency: int,
    places: dict[str, int],
    starts: dict[str, float | None],
) -> dict[str, Any]:
    start = starts.get(entry.hydration_id)
    return {
        "cluster": entry.cluster,
        "at_once": concurrency,
        "position": None if entry.running else places[entry.hydration_id],
        "id": entry.hydration_id[:SHOWN],
        "target": ledger.hydration(entry.hydration_id).sink_identity,
        "state": "hydrating" if entry.running else "waiting",
        "priority": entry.priority,
        "ready_at": entry.ready_at,
        "starts_in": None if start is None else duration(start),
    }


def _left(ledger: Ledger, entry: QueueEntry) -> float | None:
    speed = ledger.rate(entry.hydration_id)
    left = eta(total_progress(ledger.statistics(entry.hydration_id)), speed, ())
    return left.seconds if left else None
