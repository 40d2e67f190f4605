"""``plan``: what a DAG's hydrations would be, before anything is written."""

from argparse import Namespace
from typing import Any

from airflow_provider_backpressure.cli.command import command, print_rows
from airflow_provider_backpressure.cli.declarations import declarations
from airflow_provider_backpressure.core.planning.preview import foretold
from airflow_provider_backpressure.hooks.hydration_session import Declaration


@command
def plan(args: Namespace) -> None:
    """Check source, executors and target of each hydration of a DAG, and show its plan; nothing is changed."""
    rows = [_preview(declaration) for declaration in declarations(args)]
    print_rows(args, rows)


def _preview(declaration: Declaration) -> dict[str, Any]:
    with declaration.open() as opened:
        preview = opened.planner().preview()
    return foretold(preview, target=opened.sink.identity, mode=declaration.mode, credits=declaration.budget.credits)
