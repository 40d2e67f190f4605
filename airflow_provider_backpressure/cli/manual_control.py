"""``pause``, ``resume``, ``set`` and ``change-owner``: what a person changes."""

from argparse import Namespace

from airflow.utils.platform import getuser

from airflow_provider_backpressure.cli.command import command, find_hydration, open_ledger
from airflow_provider_backpressure.core.gate.cluster_queue import Change
from airflow_provider_backpressure.core.gate.hydration_record import Hydration
from airflow_provider_backpressure.core.ports.ledger import LedgerReader
from airflow_provider_backpressure.core.transitions import still_owned
from airflow_provider_backpressure.exceptions import InvalidDeclaration
from airflow_provider_backpressure.settings import environment


@command
def pause(args: Namespace) -> None:
    """Close a hydration's gate, or all: ranges in flight are still committed, no more are admitted."""
    with open_ledger(args) as ledger:
        for found in _find_hydrations(ledger, args):
            ledger.pause(found.id, who=getuser(), why=args.why)
            in_flight = ledger.gate(found.id).in_flight
            print(f"{found.sink_identity} is paused; {in_flight} ranges in flight will still be committed.")


@command
def resume(args: Namespace) -> None:
    """Resume a paused hydration."""
    with open_ledger(args) as ledger:
        for found in _find_hydrations(ledger, args):
            ledger.resume(found.id, who=getuser(), why=args.why)
            print(f"{found.sink_identity} continues.")


@command
def set_(args: Namespace) -> None:
    """Change what a running hydration may take, and its place in the queue."""
    change = Change(credits=args.credits, range_rows=args.range_rows, priority=args.priority)
    with open_ledger(args) as ledger:
        found = find_hydration(ledger, args.hydration)
        ledger.steer(found.id, change, who=getuser(), why=args.why)
        now = ledger.hydration(found.id)
    rows = f"{now.range_rows_set:,}" if now.range_rows_set else "as declared"
    print(f"{now.sink_identity}: credits {now.credits} of at most {now.credits_max}, priority {now.priority}.")
    print(f"Rows of a range from now on: {rows}.")


@command
def change_owner(args: Namespace) -> None:
    """Let a DAG own what another DAG has hydrated: all of it, or one hydration."""
    with open_ledger(args) as ledger:
        own = [one for one in ledger.hydrations() if (one.owner, one.environment) == (args.old_dag_id, environment())]
        if args.hydration is not None:
            wanted = find_hydration(ledger, args.hydration).id
            own = [one for one in own if one.id == wanted]
        if not own:
            raise InvalidDeclaration(f"{args.old_dag_id} owns no such hydration: `status` lists those there are.")
        for one in own:
            if one.holder is not None and _is_running(one.owner, one.holder):
                raise still_owned(one.sink_identity, one.owner, f"its run {one.holder} is running")
        for one in own:
            ledger.change_owner(one.id, args.new_dag_id, who=getuser(), why=args.why)
            print(f"{one.sink_identity} belongs to {args.new_dag_id}; its next run continues.")


def _is_running(dag_id: str, run_id: str) -> bool:
    """Whether Airflow has this run running; asked of its database: a command has no API of a running task."""
    from airflow.models.dagrun import DagRun  # noqa: TID251

    return any(run.state == "running" for run in DagRun.find(dag_id=dag_id, run_id=run_id))


def _find_hydrations(ledger: LedgerReader, args: Namespace) -> list[Hydration]:
    if args.all == bool(args.hydration):
        raise InvalidDeclaration("Name a hydration, or --all of them.")
    return ledger.hydrations() if args.all else [find_hydration(ledger, args.hydration)]
