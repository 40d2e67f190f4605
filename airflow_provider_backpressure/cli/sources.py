"""``sources``: hydrations by the source that they have in common, its numbers their sum, its frontier their meet."""

from argparse import Namespace
from collections import defaultdict
from typing import Any

from airflow_provider_backpressure.cli.command import command, open_ledger, print_rows
from airflow_provider_backpressure.core.frontier import Frontier
from airflow_provider_backpressure.core.gate.hydration import Hydration
from airflow_provider_backpressure.core.ports.ledger import LedgerReader
from airflow_provider_backpressure.core.progress.aggregate import sum_tables
from airflow_provider_backpressure.core.progress.statistics import total_progress


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
