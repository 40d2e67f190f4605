"""``ranges``, ``retry-range`` and ``skip-range``: the ranges of a hydration's plan, and those that need a person."""

from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from airflow.utils.platform import getuser

from airflow_provider_backpressure.cli.command import command, find_hydration, open_ledger, print_rows
from airflow_provider_backpressure.core.gate.hydration_record import Hydration
from airflow_provider_backpressure.core.planning.range_repair import repair, skip
from airflow_provider_backpressure.core.ports.ledger import every_range
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord, RangeState
from airflow_provider_backpressure.hooks.hydration_session import HydrationSession
from airflow_provider_backpressure.hooks.recorded_declaration import declaration_of, get_recorded_plan


@command
def ranges(args: Namespace) -> None:
    """Show the ranges of a hydration's plan."""
    states = [RangeState(args.state)] if args.state else None
    with open_ledger(args) as ledger:
        plan_id = get_recorded_plan(find_hydration(ledger, args.hydration)).plan_id
        rows = [_range_facts(record) for record in every_range(ledger, plan_id, states)]
    print_rows(args, rows)


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


@command
def retry_range(args: Namespace) -> None:
    """Remove each range from the target and plan it again; the DAG's next run reads it."""
    with _open_plan(args) as (found, plan, opened):
        for record in _find_ranges(args, plan, opened):
            removed = repair(opened.ledger, opened.source, opened.sink, plan, record, who=getuser(), why=args.why)
            print(f"Range {record.seq} ({record.bounds}) is planned again; {removed} rows were removed.")
    print(f"Trigger the DAG {found.owner} to read them.")


@command
def skip_range(args: Namespace) -> None:
    """Leave ranges out for good; the reason stays in the ledger."""
    with _open_plan(args) as (found, plan, opened):
        for record in _find_ranges(args, plan, opened):
            skip(opened.ledger, opened.sink, plan, record, who=getuser(), why=args.why)
            print(f"Range {record.seq} ({record.bounds}) is left out of {found.sink_identity}.")


@contextmanager
def _open_plan(args: Namespace) -> Iterator[tuple[Hydration, Plan, HydrationSession]]:
    with open_ledger(args) as ledger:
        found = find_hydration(ledger, args.hydration)
    with declaration_of(found, args.backpressure_conn_id).open() as opened:
        yield found, get_recorded_plan(found), opened


def _find_ranges(args: Namespace, plan: Plan, opened: HydrationSession) -> Iterator[RangeRecord]:
    return (opened.ledger.range(plan.plan_id, seq) for seq in args.seq)
