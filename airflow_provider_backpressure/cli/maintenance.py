"""``prune``, ``rehydrate``, ``reindex`` and ``forget``: the ledger is cleaned, rebuilt, or left by a hydration."""

from argparse import Namespace
from contextlib import closing
from dataclasses import replace
from typing import Any

from airflow.api.client import get_current_api_client
from airflow.utils.platform import getuser

from airflow_provider_backpressure import settings
from airflow_provider_backpressure.airflow_compat import AirflowException
from airflow_provider_backpressure.cli.command import (
    SHOWN,
    command,
    declarations,
    find_hydration,
    open_ledger,
    print_rows,
)
from airflow_provider_backpressure.core.config import Consistency, Mode
from airflow_provider_backpressure.core.gate.hydration_record import Hydration
from airflow_provider_backpressure.core.monitoring.ledger_pruning import prune
from airflow_provider_backpressure.core.planning.catch_up_windows import open_log
from airflow_provider_backpressure.core.planning.preconditions import way_out
from airflow_provider_backpressure.core.ports.ledger import History, Ledger, count_leased
from airflow_provider_backpressure.exceptions import (
    InvalidDeclaration,
    LedgerRefused,
    SinkRefused,
)
from airflow_provider_backpressure.hooks.hydration_session import Declaration
from airflow_provider_backpressure.hooks.recorded_declaration import declaration_of, to_json
from airflow_provider_backpressure.hooks.source_and_sink_connections import endpoint


@command
def prune_(args: Namespace) -> None:
    """Remove ranges of earlier plans, samples, and what nothing refers to."""
    kept = settings.history() if args.older_than is None else History(seconds=args.older_than, plans=None)
    with open_ledger(args) as ledger:
        gone = prune(ledger, kept, samples=settings.samples_kept(), acts=args.acts)
    print(f"Removed {gone.ranges} ranges of {gone.plans} earlier plans, and {gone.rows} other rows.")


RESTART = {"backpressure": "restart"}


@command
def rehydrate(args: Namespace) -> None:
    """Check that lakes are whole and targets are ready, and trigger the DAG; its run does the work."""
    checked = [_check(declaration) for declaration in declarations(args)]
    try:
        run = get_current_api_client().trigger_dag(dag_id=args.dag_id, conf=RESTART, triggering_user_name=getuser())
    except AirflowException as error:
        raise InvalidDeclaration(
            f"Lake and target are ready, but no run can fill the target ({error}): put the file of the DAG "
            f"{args.dag_id!r} back."
        ) from error
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
        opened.ledger.keep_declaration(found.id, to_json(declaration))
        counts = opened.ledger.counts(found.plan.plan_id) if found.plan else None
        return {
            "id": found.id[:SHOWN],
            "source": found.source_identity,
            "target": found.sink_identity,
            "phase": found.phase.value,
            "ranges": f"{counts.committed}/{counts.total}" if counts else None,
            "found": planned.note if planned else AGREE,
        }


@command
def forget(args: Namespace) -> None:
    """Drop the log that the source keeps for a hydration, and remove it from the ledger."""
    with open_ledger(args) as ledger:
        found = find_hydration(ledger, args.hydration)
        _check_unleased(ledger, found)
        stream = found.plan.stream if found.plan is not None else ""
        sharing = _find_sharing(ledger, stream or found.id) - {found.sink_identity}
        if sharing and not stream:
            raise LedgerRefused(
                f"{len(sharing)} tables share the log of {found.source_identity}: forget {', '.join(sorted(sharing))} "
                "first."
            )
        if found.plan is not None and found.plan.consistency is Consistency.CATCH_UP:
            drop_log(found)
            if stream and not sharing:
                drop_log(replace(found, id=stream, plan=replace(found.plan, stream="")))
                ledger.forget(stream)
            print(f"{found.source_identity} keeps no log for it any more.")
        ledger.forget(found.id)
        print(f"{found.sink_identity} is forgotten; its rows stay, and so does its fence.")


def _find_sharing(ledger: Ledger, stream: str) -> set[str]:
    """Return the targets of the tables that share a log."""
    return {one.sink_identity for one in ledger.hydrations() if one.plan is not None and one.plan.stream == stream}


def drop_log(hydration: Hydration) -> None:
    """Remove what keeps the source's log for a hydration; a log that tables share is kept for the others."""
    source = declaration_of(hydration).source
    with closing(source.open(endpoint(source.conn_id, *source.conn_types))) as opened:
        open_log(opened, hydration.id, hydration.plan).drop()


def _check_unleased(ledger: Ledger, hydration: Hydration) -> None:
    held = count_leased(ledger, hydration.id)
    if held:
        raise LedgerRefused(f"{held} ranges of {hydration.sink_identity} are in flight: let them end first.")
