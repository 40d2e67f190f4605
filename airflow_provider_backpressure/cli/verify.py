"""``verify``: a target is compared with its commit markers, or with its source."""

from argparse import Namespace
from collections.abc import Iterable

from rich.console import Console
from rich.progress import track

from airflow_provider_backpressure.cli.command import FAILED, SHOWN, command, find_hydration, open_ledger, print_rows
from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.gate.hydration_record import Phase
from airflow_provider_backpressure.core.ports.ledger import every_range
from airflow_provider_backpressure.core.reconciliation.restore_detection import describe_unpublished
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord, RangeState
from airflow_provider_backpressure.core.verification.verifier import Verify
from airflow_provider_backpressure.hooks.recorded_declaration import declaration_of, get_recorded_plan


@command
def verify(args: Namespace) -> int:
    """Compare count and checksum of each committed range; 1 where one differs, and where ranges are open."""
    with open_ledger(args) as ledger:
        found = find_hydration(ledger, args.hydration)
        plan = get_recorded_plan(found)
        counts = ledger.counts(plan.plan_id)
        with declaration_of(found, args.backpressure_conn_id).open() as opened:
            # By value a table is compared as a whole or not at all: open ranges are refused, not found to differ.
            followed = args.full and plan.consistency is Consistency.CATCH_UP
            states = None if followed else [RangeState.COMMITTED, RangeState.REVOKED]
            ranges = every_range(ledger, plan.plan_id, states)
            shown = _show_progress(ranges, counts.committed + counts.revoked)
            report = opened.verifier(plan, found.id).verify(shown, Verify.FULL if args.full else Verify.TARGET)
            row = opened.sink.held()
    against = [f"{counts.open} ranges are not committed yet"] if counts.open else []
    if found.phase is Phase.STEADY_STATE and row is not None and row.plan_id == plan.plan_id and not row.published:
        against.append(": ".join(describe_unpublished(found.sink_identity, plan.plan_id)))
    equal = report.equal and not against
    summary = {
        "id": found.id[:SHOWN],
        "target": found.sink_identity,
        "ranges": report.ranges,
        "open": counts.open,
        "rows": report.rows,
        "checksum": report.checksum,
        "equal": equal,
        "differences": "; ".join([*(mismatch.sentence for mismatch in report.mismatches), *against]),
    }
    print_rows(args, [summary])
    return 0 if equal else FAILED


def _show_progress(ranges: Iterable[RangeRecord], total: int) -> Iterable[RangeRecord]:
    """Draw a progress bar on a terminal, beside the output, as ranges are given to the executors."""
    console = Console(stderr=True)
    return track(ranges, "comparing", total=total, console=console, transient=True, disable=not console.is_terminal)
