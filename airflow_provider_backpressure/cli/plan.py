"""``plan``: what a DAG's hydrations would be, before anything is written."""

from argparse import Namespace
from typing import Any

from airflow_provider_backpressure.cli.command import (
    command,
    declarations,
    print_rows,
)
from airflow_provider_backpressure.hooks.hydration_session import Declaration
from airflow_provider_backpressure.hooks.recorded_declaration import check_transform


@command
def plan(args: Namespace) -> None:
    """Check source, executors and target of each hydration of a DAG, and show its plan; nothing is changed."""
    rows = [_preview(declaration) for declaration in declarations(args)]
    if args.output == "table":
        print("\n\n".join(format_preview(row) for row in rows))
    else:
        print_rows(args, rows)


def format_preview(row: dict[str, Any]) -> str:
    """Return a plan as lines of a name and a value: a table of its columns would wrap on any screen, and in a pipe."""
    facts = {name: value for name, value in row.items() if name not in ("source", "target")}
    width = max(map(len, facts))
    lines = [f"{row['source']} -> {row['target']}"]
    for name, value in facts.items():
        shown = f"{value:,}" if type(value) is int else "" if value is None else str(value)
        lines.append(f"  {name.replace('_', ' '):{width}}  {shown}".rstrip())
    return "\n".join(lines)


def _preview(declaration: Declaration) -> dict[str, Any]:
    check_transform(declaration)
    with declaration.open() as opened:
        preview = opened.planner().preview()
    return preview.to_json(target=opened.sink.identity, mode=declaration.mode, credits=declaration.budget.credits)
