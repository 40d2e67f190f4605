"""``history``: what persons have changed."""

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from airflow_provider_backpressure.cli.command import (
    NESTED,
    SHOWN,
    command,
    find_hydration,
    open_ledger,
    print_rows,
)


@command
def history(args: Namespace) -> None:
    """Show the history of manual changes."""
    with open_ledger(args) as ledger:
        meant = find_hydration(ledger, args.hydration).id if args.hydration else None
        acts = ledger.controls(meant)
    nested = args.output in NESTED
    print_rows(
        args,
        [
            {
                "at": act.at,
                "who": act.who,
                "action": act.action,
                "hydration": act.hydration_id[:SHOWN],
                "values": dict(act.values) if nested else _as_text(act.values),
                "why": act.why,
            }
            for act in acts
        ],
    )


def _as_text(values: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items() if value is not None)
