"""``verify``: a hydration's target against its markers, range by range, through its own Spark cluster."""

from argparse import Namespace
from collections.abc import Iterable

from rich.console import Console
from rich.progress import track

from airflow_provider_backpressure.cli.command import FAILED, SHOWN, command, find_hydration, open_ledger, print_rows
from airflow_provider_backpressure.core.ports.paging import every_range
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord, RangeState
from airflow_provider_backpressure.core.verification.verifier import Verify
from airflow_provider_backpressure.hooks.recorded_declaration import declaration_of, get_recorded_plan


@command
def verify(args: Namespace) -> int:
    """Compare count and checksum of each committed range; 1 where one differs."""
    with open_ledger(args) as ledger:
        found = find_hydration(ledger, args.hydration)
        plan = get_recorded_plan(found)
        counts = ledger.counts(plan.plan_id)
        with declaration_of(found, args.backpressure_conn_id).open() as opened:
            committed = every_range(ledger, plan.plan_id, [RangeState.COMMITTED])
            report = opened.verifier().verify(_show_progress(committed, counts.committed), Verify.TARGET)
    summary = {
        "id": found.id[:SHOWN],
        "target": found.sink_identity,
        "ranges": report.ranges,
        "open": counts.open,
        "rows": report.rows,
        "checksum": report.checksum,
        "equal": report.equal,
        "differences": "; ".join(mismatch.sentence for mismatch in report.mismatches),
    }
    print_rows(args, [summary])
    return 0 if report.equal else FAILED


def _show_progress(ranges: Iterable[RangeRecord], total: int) -> Iterable[RangeRecord]:
    """Draw a progress bar on a terminal, beside the output, as ranges are given to the executors."""
    console = Console(stderr=True)
    return track(ranges, "comparing", total=total, console=console, transient=True, disable=not console.is_terminal)
