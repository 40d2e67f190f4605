"""``probe``: on a sample it is measured how many credits help, and what holds rows up."""

import sys
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from airflow_provider_backpressure.cli.command import command, find_hydration, open_ledger, print_rows
from airflow_provider_backpressure.core.capacity.capacity_probe import Prober
from airflow_provider_backpressure.core.capacity.saturation_curve import Curve, Step
from airflow_provider_backpressure.exceptions import InvalidDeclaration, LedgerRefused
from airflow_provider_backpressure.hooks.recorded_declaration import check_transform, declaration_of, get_recorded_plan

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
