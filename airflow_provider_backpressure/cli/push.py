"""``push``: the state of push, and its switches for every process."""

from argparse import Namespace
from typing import Any

from airflow.utils.platform import getuser

from airflow_provider_backpressure.cli.command import NESTED, command, open_ledger_and_push, print_rows
from airflow_provider_backpressure.core.ports.ledger import Ledger
from airflow_provider_backpressure.core.push.channel_counters import HISTOGRAMS, merge_recorded, quantile
from airflow_provider_backpressure.core.push.hub import Push, Switch, is_on, turn

ON, OFF = "on", "off"


@command
def push(args: Namespace) -> None:
    """Show it; with ``--publish`` or ``--subscribe`` turn a switch for every process."""
    with open_ledger_and_push(args) as (ledger, end):
        for switch in Switch:
            wanted = getattr(args, switch.value)
            if wanted is not None:
                turn(ledger, switch, on=wanted == ON, who=getuser(), why=args.why)
        found = facts(ledger, end)
    if args.output not in NESTED:
        for name in HISTOGRAMS:
            found[name] = format_histogram(found[name])
    print_rows(args, [found])


def facts(ledger: Ledger, end: Push | None) -> dict[str, Any]:
    """Return the switches, and what all processes together have counted that said so within the last hour."""
    return {
        "transport": end.transport if end else "none",
        **{switch.value: ON if is_on(ledger, switch) else OFF for switch in Switch},
        **merge_recorded(ledger.push_counts()),
    }


def format_histogram(histogram: dict[str, Any]) -> str:
    """Return a histogram as a person reads it."""
    half, most = quantile(histogram, 0.5), quantile(histogram, 0.99)
    return "" if half is None or most is None else f"half <= {half * 1000:g} ms, 99 % <= {most * 1000:g} ms"
