"""``forget``: what a hydration has left in source and ledger is removed; its target keeps its rows and its fence."""

from argparse import Namespace
from contextlib import closing

from airflow_provider_backpressure.cli.command import command, find_hydration, open_ledger
from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.gate.hydration import Hydration
from airflow_provider_backpressure.core.ports.leases import count_leased
from airflow_provider_backpressure.core.ports.ledger import Ledger
from airflow_provider_backpressure.exceptions import LedgerRefused
from airflow_provider_backpressure.hooks.endpoints import endpoint
from airflow_provider_backpressure.hooks.recorded_declaration import declaration_of


@command
def forget(args: Namespace) -> None:
    """Drop the log that the source keeps for a hydration, and remove it from the ledger."""
    with open_ledger(args) as ledger:
        found = find_hydration(ledger, args.hydration)
        _check_idle(ledger, found)
        if found.plan is not None and found.plan.consistency is Consistency.CATCH_UP:
            drop_log(found)
            print(f"{found.source_identity} keeps no log for it any more.")
        ledger.forget(found.id)
        print(f"{found.sink_identity} is forgotten; its rows stay, and so does its fence.")


def drop_log(hydration: Hydration) -> None:
    """Remove what keeps the source's log."""
    source = declaration_of(hydration).source
    with closing(source.open(endpoint(source.conn_id, *source.conn_types))) as opened:
        opened.log(hydration.id).drop()


def _check_idle(ledger: Ledger, hydration: Hydration) -> None:
    held = count_leased(ledger, hydration.id)
    if held:
        raise LedgerRefused(f"{held} ranges of {hydration.sink_identity} are in flight: let them end first.")
