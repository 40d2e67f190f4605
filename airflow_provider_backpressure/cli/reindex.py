"""``reindex``: a ledger that was lost or restored follows the markers in the target."""

from argparse import Namespace
from typing import Any

from airflow.utils.platform import getuser

from airflow_provider_backpressure.cli.command import SHOWN, command, print_rows
from airflow_provider_backpressure.cli.declarations import declarations
from airflow_provider_backpressure.hooks.hydration_session import Declaration

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
