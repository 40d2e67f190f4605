"""``pause`` and ``resume``: a person's hand on the tap."""

from argparse import Namespace

from airflow.utils.platform import getuser

from airflow_provider_backpressure.cli.shell import command, named, opened_ledger


@command
def pause(args: Namespace) -> None:
    """Close a hydration's gate: what is in flight goes on to its commit, nothing more is admitted."""
    with opened_ledger(args) as ledger:
        found = named(ledger, args.hydration)
        ledger.pause(found.id, who=getuser(), why=args.why)
        in_flight = ledger.gate(found.id).in_flight
    print(f"{found.sink_identity} is paused; {in_flight} ranges in flight go on to their commit.")


@command
def resume(args: Namespace) -> None:
    """Take the hand off again."""
    with opened_ledger(args) as ledger:
        found = named(ledger, args.hydration)
        ledger.resume(found.id, who=getuser(), why=args.why)
    print(f"{found.sink_identity} goes on.")
