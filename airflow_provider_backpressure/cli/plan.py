"""``plan``: what a DAG's hydrations would be, before anything is written."""

import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import Console
from rich.progress import track

from airflow_provider_backpressure.cli.command import (
    FAILED,
    SHOWN,
    command,
    declarations,
    find_hydration,
    open_ledger,
    print_rows,
)
from airflow_provider_backpressure.core.capacity.capacity_probe import Prober
from airflow_provider_backpressure.core.capacity.saturation_curve import Curve, Step
from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.ports.ledger import every_range
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord, RangeState
from airflow_provider_backpressure.core.verification.verifier import Verify
from airflow_provider_backpressure.exceptions import InvalidDeclaration, LedgerRefused
from airflow_provider_backpressure.hooks.hydration_session import Declaration
from airflow_provider_backpressure.hooks.recorded_declaration import check_transform, declaration_of, get_recorded_plan


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


LEAST_SECONDS = 0.5


@command
def probe(args: Namespace) -> None:
    """Measure, or show what was measured last."""
    _check(args)
    with open_ledger(args) as ledger:
        found = find_hydration(ledger, args.hydration)
        plan = get_recorded_plan(found)
        if args.last:
            kept = ledger.probe(found.id)
            if kept is None:
                raise LedgerRefused(f"{found.sink_identity} was never probed.")
            curve = Curve.from_json(kept)
        else:
            declared = declaration_of(found, args.backpressure_conn_id)
            check_transform(declared)
            with declared.open() as opened:
                prober = Prober(
                    planner=opened.planner(), hydration=found, plan=plan, seconds=args.seconds, tell=_progress
                )
                curve = prober.run(most=args.most, range_rows=args.range_rows)
    if args.output in ("json", "yaml"):
        print_rows(args, [{**row, "verdict": curve.verdict()} for row in _rows(curve)])
    else:
        print_rows(args, [_read_by_people(row) for row in _rows(curve)])
        print(curve.verdict())


def _check(args: Namespace) -> None:
    for name in ("most", "range_rows"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise InvalidDeclaration(f"--{name.replace('_', '-')} must be at least 1, not {value}.")
    if not args.seconds >= LEAST_SECONDS:
        raise InvalidDeclaration(f"--seconds must be at least {LEAST_SECONDS:g}, not {args.seconds:g}.")


def _progress(line: str) -> None:
    print(line, file=sys.stderr)


def _read_by_people(row: dict[str, Any]) -> dict[str, Any]:
    idle = row["sink_idle"]
    return {**row, "sink_idle": None if idle is None else f"{idle:.0%}", "knee": "yes" if row["knee"] else ""}


def _rows(curve: Curve) -> Iterator[dict[str, Any]]:
    steps: tuple[Step, ...] = (*curve.steps, *curve.sizes)
    for step, bound in zip(steps, curve.bounds(), strict=True):
        yield {
            "credits": step.credits,
            "range_rows": step.range_rows,
            "rows_per_second": round(step.rate),
            "in_flight": round(step.in_flight, 1),
            "sink_idle": round(step.sink_idle, 4) if step.flow else None,
            "bound": bound.value,
            "knee": step is curve.knee,
            "at": curve.at,
        }


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
    equal = report.equal and not counts.open
    against = [f"{counts.open} ranges are not committed yet"] if counts.open else []
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
