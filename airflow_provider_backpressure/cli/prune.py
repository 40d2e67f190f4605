"""``prune``: what is old, and what no run needs any more, is removed from the ledger."""

from argparse import Namespace

from airflow_provider_backpressure import settings
from airflow_provider_backpressure.cli.command import command, open_ledger
from airflow_provider_backpressure.core.monitoring.retention import age, prune


@command
def prune_(args: Namespace) -> None:
    """Remove ranges of earlier plans, samples, and what nothing refers to."""
    seconds = settings.history_seconds() if args.older_than is None else age(args.older_than)
    with open_ledger(args) as ledger:
        gone = prune(ledger, seconds=seconds, samples=settings.samples_kept(), acts=args.acts)
    print(f"Removed {gone.ranges} ranges of {gone.plans} earlier plans, and {gone.rows} other rows.")
