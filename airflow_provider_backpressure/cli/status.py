"""``status`` and ``sources``: the state of hydrations, and of their sources."""

from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from airflow_provider_backpressure.cli.command import (
    NESTED,
    command,
    find_hydration,
    open_ledger,
    open_ledger_and_push,
    print_rows,
)
from airflow_provider_backpressure.cli.push import facts as push_facts
from airflow_provider_backpressure.cli.render.hydration_panel import render_hydration
from airflow_provider_backpressure.cli.render.overview import format_log_line, overview
from airflow_provider_backpressure.cli.render.status_values import Facts
from airflow_provider_backpressure.core.gate.hydration_record import Hydration
from airflow_provider_backpressure.core.ports.ledger import Ledger, LedgerReader, every_summary
from airflow_provider_backpressure.core.progress.rates_and_eta import total_progress
from airflow_provider_backpressure.core.progress.summary import HydrationSummary, sum_tables
from airflow_provider_backpressure.core.push.gate_wait import Changes
from airflow_provider_backpressure.core.push.hub import Push
from airflow_provider_backpressure.core.snapshot.topic_offsets import Frontier
from airflow_provider_backpressure.exceptions import InvalidDeclaration

REFRESH_SECONDS = 1.0
PIPE_WIDTH = 100
"""Columns of what is drawn into a file or a pipe."""
NONE = "No hydration was planned yet: trigger a DAG that has one, or look at it with `airflow backpressure plan`."


@command
def status(args: Namespace) -> None:
    """Show every hydration, those of a DAG, or one."""
    with open_ledger_and_push(args) as (ledger, push):
        if args.watch:
            if args.output != "table":
                raise InvalidDeclaration("--watch draws on the screen: it goes with --output table only.")
            _watch(ledger, push, args)
        elif args.output == "table":
            console = open_console()
            console.print(_picture(ledger, _chosen(ledger, args), console))
        else:
            more = {"push": push_facts(ledger, push)} if args.output in NESTED else {}
            print_rows(args, [{**Facts.read(ledger, one).values(), **more} for one in _chosen(ledger, args)])


def open_console() -> Console:
    """Return where is drawn; a pipe has no width of its own."""
    console = Console()
    return console if console.is_terminal else Console(width=PIPE_WIDTH)


def _chosen(ledger: Ledger, args: Namespace) -> list[HydrationSummary]:
    if not args.hydration:
        return list(every_summary(ledger))
    owned = [one.id for one in ledger.hydrations(owner=args.hydration)]
    ids = owned or [find_hydration(ledger, args.hydration).id]
    return ledger.glances(ids=ids, limit=len(ids))


def _picture(ledger: Ledger, chosen: list[HydrationSummary], console: Console) -> RenderableType:
    """Return the whole picture of one hydration, the table of several."""
    if not chosen:
        return Text(NONE)
    return overview(chosen, console) if len(chosen) > 1 else render_hydration(Facts.read(ledger, chosen[0]), console)


def _watch(ledger: Ledger, push: Push | None, args: Namespace) -> None:
    """Draw until interrupted, or until each hydration that was named is in steady state."""
    console = open_console()
    looks = _looks(ledger, push, args)
    try:
        if console.is_terminal:
            with Live(console=console, auto_refresh=False) as screen:
                for chosen in looks:
                    screen.update(Group(_picture(ledger, chosen, console)), refresh=True)
        else:
            _log(looks)
    except KeyboardInterrupt:
        return


def _looks(ledger: Ledger, push: Push | None, args: Namespace) -> Iterator[list[HydrationSummary]]:
    """Yield the state of the watched hydrations, at each change."""
    with closing(Changes(push=push, ledger=ledger, pause=REFRESH_SECONDS)) as changes:
        while True:
            chosen = _chosen(ledger, args)
            yield chosen
            if args.hydration and not any(one.running for one in chosen):
                return
            changes.wait([one.hydration.id for one in chosen])


def _log(looks: Iterator[list[HydrationSummary]]) -> None:
    """Write a line with its time for each change: where the output is kept, nothing can be drawn over."""
    told: dict[str, str] = {}
    for chosen in looks:
        for one in chosen:
            text = format_log_line(one)
            if told.get(one.hydration.id) != text:
                told[one.hydration.id] = text
                print(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {text}", flush=True)


@command
def sources(args: Namespace) -> None:
    """Show each source of each DAG."""
    with open_ledger(args) as ledger:
        found: dict[tuple[str, str], list[Hydration]] = defaultdict(list)
        for one in ledger.hydrations():
            if one.plan is not None:
                found[one.owner, one.plan.read.conn_id].append(one)
        rows = [_facts(ledger, *names, tables) for names, tables in sorted(found.items(), key=lambda each: each[0])]
    print_rows(args, rows)


def _sum(frontier: Frontier | None) -> int | None:
    return None if frontier is None else sum(frontier.values())


def _facts(ledger: LedgerReader, owner: str, conn_id: str, tables: list[Hydration]) -> dict[str, Any]:
    found = sum_tables([(total_progress(ledger.statistics(one.id)), ledger.course(one.id)) for one in tables])
    progress = found.progress
    return {
        "owner": owner,
        "source": conn_id,
        "tables": found.tables,
        "percent": None if progress.percent is None else int(progress.percent * 10) / 10,
        "rows": progress.committed,
        "total": progress.total,
        "total_exact": progress.total_exact,
        "keeping_up": found.verdict.value,
        "offset_known": _sum(found.known),
        "offset_committed": _sum(found.committed),
        "lag": found.lag,
        "messages_received": progress.messages,
        "bytes_received": progress.bytes,
    }
