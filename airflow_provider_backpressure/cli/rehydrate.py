"""``rehydrate``: a run of a DAG fills its targets again from what was landed in a lake."""

from argparse import Namespace
from typing import Any

from airflow.api.client import get_current_api_client
from airflow.utils.platform import getuser

from airflow_provider_backpressure.cli.command import command, print_rows
from airflow_provider_backpressure.cli.declarations import declarations
from airflow_provider_backpressure.core.config import Mode
from airflow_provider_backpressure.core.planning.preconditions import way_out
from airflow_provider_backpressure.exceptions import InvalidDeclaration, SinkRefused
from airflow_provider_backpressure.hooks.hydration_session import Declaration

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
