"""``retry-range``: ranges that failed, or whose rows are wrong, are read once more."""

from argparse import Namespace

from airflow.utils.platform import getuser

from airflow_provider_backpressure.cli.shell import command, named, opened_ledger
from airflow_provider_backpressure.core.repair import repair
from airflow_provider_backpressure.hooks.recorded import declaration_of, recorded_plan


@command
def retry_range(args: Namespace) -> None:
    """Remove each range from the target and plan it again; the DAG's next run reads it."""
    with opened_ledger(args) as ledger:
        found = named(ledger, args.hydration)
        plan = recorded_plan(found)
        with declaration_of(found, args.backpressure_conn_id).open() as opened:
            for seq in args.seq:
                record = ledger.range(plan.plan_id, seq)
                removed = repair(ledger, opened.sink, plan, record, who=getuser(), why=args.why)
                print(f"Range {seq} ({record.bounds}) is planned again; {removed} rows were removed.")
    print(f"Trigger the DAG {found.owner} to read them.")
