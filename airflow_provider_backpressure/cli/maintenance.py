"""``prune``: what is old, and what no run needs any more, is removed from the ledger."""

from argparse import Namespace
from typing import Any

from airflow.api.client import get_current_api_client
from airflow.utils.platform import getuser

from airflow_provider_backpressure import settings
from airflow_provider_backpressure.cli.command import SHOWN, command, declarations, open_ledger, print_rows
from airflow_provider_backpressure.core.config import Mode
from airflow_provider_backpressure.core.monitoring.new_data import age, prune
from airflow_provider_backpressure.core.planning.preconditions import way_out
from airflow_provider_backpressure.exceptions import InvalidDeclaration, SinkRefused
from airflow_provider_backpressure.hooks.hydration_session import Declaration


@command
def prune_(args: Namespace) -> None:
    """Remove ranges of earlier plans, samples, and what nothing refers to."""
    seconds = settings.history_seconds() if args.older_than is None else age(args.older_than)
    with open_ledger(args) as ledger:
        gone = prune(ledger, seconds=seconds, samples=settings.samples_kept(), acts=args.acts)
    print(f"Removed {gone.ranges} ranges of {gone.plans} earlier plans, and {gone.rows} other rows.")


RESTART = {"backpressure": "restart"}


@command
def rehydrate(args: Namespace) -> None:
    """Check that lakes are whole and targets are ready, and trigger the DAG; its run does the work."""
    checked = [_check(declaration) for declaration in declarations(args)]
    run = get_current_api_client().trigger_dag(dag_id=args.dag_id, conf=RESTART, triggering_user_name=getuser())
    print_rows(args, [{**row, "run": run["dag_run_id"] if run else None} for row in checked])


def _check(declaration: Declaration) -> dict[str, Any]:
    """Return what will be read; nothing of it is asked of the upstream, and nothing is changed."""
    if not hasattr(declaration.source, "lake"):
        raise InvalidDeclaration(
            f"{declaration.source.table} is not read from a lake: give the DAG a LandedSource, or trigger it with "
            '{"backpressure": "restart"} to read the upstream again.'
        )
    with declaration.open() as opened:
        snapshot = opened.source.snapshot()
        if declaration.mode is Mode.APPEND and opened.sink.holds_rows():
            raise SinkRefused(f"{opened.sink.identity} still holds rows: {way_out(opened.sink)}.")
        return {"lake": opened.source.identity, "target": opened.sink.identity, "rows": snapshot.total}


AGREE = "ledger and target agree"


@command
def reindex(args: Namespace) -> None:
    """Compare ledger and target of each hydration of a DAG, and rebuild the ledger where the target knows more."""
    print_rows(args, [_reindex(declaration, accept=args.accept) for declaration in declarations(args)])


def _reindex(declaration: Declaration, *, accept: bool) -> dict[str, Any]:
    with declaration.open() as opened:
        planner = opened.planner()
        planned = planner.reindex(planner.register(), who=getuser(), accept=accept)
        found = planner.register()
        counts = opened.ledger.counts(found.plan.plan_id) if found.plan else None
        return {
            "id": found.id[:SHOWN],
            "source": found.source_identity,
            "target": found.sink_identity,
            "phase": found.phase.value,
            "ranges": f"{counts.committed}/{counts.total}" if counts else None,
            "found": planned.note if planned else AGREE,
        }
