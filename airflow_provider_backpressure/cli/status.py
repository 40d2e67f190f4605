"""``status`` and ``ranges``: where hydrations stand."""

import time
from argparse import Namespace
from typing import Any

from airflow.cli.simple_table import AirflowConsole
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from airflow_provider_backpressure.cli.shell import SHOWN, command, named, opened_ledger
from airflow_provider_backpressure.core.hydration import GateState, Hydration
from airflow_provider_backpressure.core.paging import every_range
from airflow_provider_backpressure.core.phases import Phase
from airflow_provider_backpressure.core.ports import LedgerReader
from airflow_provider_backpressure.core.progress import duration, line
from airflow_provider_backpressure.core.ranges import RangeRecord, RangeState
from airflow_provider_backpressure.core.signals import credits_taken, hand
from airflow_provider_backpressure.core.statistics import eta_seconds, total_progress
from airflow_provider_backpressure.exceptions import InvalidDeclaration
from airflow_provider_backpressure.hooks.recorded import recorded_plan

REFRESH_SECONDS = 1.0


@command
def status(args: Namespace) -> None:
    """Show every hydration, or one."""
    with opened_ledger(args) as ledger:
        if args.watch:
            if args.output != "table":
                raise InvalidDeclaration("--watch draws on the screen: it goes with --output table only.")
            _watch(ledger, args)
        else:
            rows = [facts(ledger, one) for one in _chosen(ledger, args)]
            AirflowConsole().print_as(rows, args.output)


@command
def ranges(args: Namespace) -> None:
    """Show the ranges of a hydration's plan."""
    states = [RangeState(args.state)] if args.state else None
    with opened_ledger(args) as ledger:
        plan_id = recorded_plan(named(ledger, args.hydration)).plan_id
        rows = [_range_facts(record) for record in every_range(ledger, plan_id, states)]
    AirflowConsole().print_as(rows, args.output)


def facts(ledger: LedgerReader, hydration: Hydration) -> dict[str, Any]:
    """Return what is shown of a hydration; what is not known stays empty."""
    progress, speed = total_progress(ledger.statistics(hydration.id)), ledger.rate(hydration.id)
    gate = ledger.gate(hydration.id)
    counts = ledger.counts(hydration.plan.plan_id) if hydration.plan else None
    running = hydration.phase is not Phase.STEADY_STATE
    left = eta_seconds(progress, speed) if running and speed else None
    return {
        "id": hydration.id[:SHOWN],
        "source": hydration.source_identity,
        "target": hydration.sink_identity,
        "owner": hydration.owner,
        "phase": hydration.phase.value,
        "percent": None if progress.percent is None else f"{int(progress.percent * 10) / 10:.1f}",
        "rows": progress.committed,
        "total": progress.total,
        "rows_per_second": f"{speed:.0f}" if running and speed is not None else None,
        "eta": duration(left) if left is not None else None,
        "ranges": f"{counts.committed}/{counts.total}" if counts else None,
        "failed": counts.failed if counts else None,
        "in_flight": gate.in_flight,
        "credits": f"{gate.credits}/{hydration.credits_max}",
        "gate": "; ".join(reasons(hydration, gate)) if running else "",
    }


def reasons(hydration: Hydration, gate: GateState) -> list[str]:
    """Return why nothing more is admitted: hand and credits as they are now, measured signals as last seen."""
    now = [hand(gate.paused_by, gate.paused_why), credits_taken(gate.in_flight, gate.credits)]
    known = {signal.name for signal in now}
    seen = [
        signal["sentence"]
        for signal in (hydration.decision or {}).get("signals", ())
        if signal["closed"] and signal["name"] not in known
    ]
    return [signal.sentence for signal in now if signal.closed] + seen


def _chosen(ledger: LedgerReader, args: Namespace) -> list[Hydration]:
    return [named(ledger, args.hydration)] if args.hydration else ledger.hydrations()


def _watch(ledger: LedgerReader, args: Namespace) -> None:
    """Draw until interrupted, or until the one hydration that was named is in steady state."""
    with Live(auto_refresh=False) as screen:
        try:
            while True:
                chosen = _chosen(ledger, args)
                screen.update(Group(*(_drawing(ledger, one) for one in chosen)), refresh=True)
                if args.hydration and chosen[0].phase is Phase.STEADY_STATE:
                    return
                time.sleep(REFRESH_SECONDS)
        except KeyboardInterrupt:
            return


def _drawing(ledger: LedgerReader, hydration: Hydration) -> Table:
    """Return a hydration's picture: names, bar, ranges, credits and the gate's reasons."""
    running = hydration.phase is not Phase.STEADY_STATE
    progress, speed = total_progress(ledger.statistics(hydration.id)), ledger.rate(hydration.id)
    shown, unit = facts(ledger, hydration), hydration.plan.unit if hydration.plan else "rows"
    lines = Table.grid(padding=(0, 1))
    lines.add_row(Text(shown["id"], style="bold"), Text(f"{shown['source']} -> {shown['target']}"))
    lines.add_row(Text(shown["phase"]), Text(line(progress, speed if running else None, unit)))
    if running:
        lines.add_row(
            Text("ranges"),
            Text(f"{shown['ranges']} committed, {shown['in_flight']} in flight, credits {shown['credits']}"),
        )
        lines.add_row(Text("gate"), Text("; ".join(reasons(hydration, ledger.gate(hydration.id))) or "open"))
    return lines


def _range_facts(record: RangeRecord) -> dict[str, Any]:
    return {
        "seq": record.seq,
        "state": record.state.value,
        "bounds": str(record.bounds),
        "planned_rows": record.planned_rows,
        "rows": record.rows,
        "attempt": record.attempt,
        "lane": record.lane,
        "admitted_at": record.admitted_at,
        "committed_at": record.committed_at,
        "error": record.error,
    }
