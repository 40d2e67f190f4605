"""Plans of a table that is followed into a lake, as their notes hold them."""

from airflow_provider_backpressure.core.config import Consistency, Mode
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, ReadSpec, Window, WriteSpec


def make_followed_plan(plan_id: str, *, ranges: int, held_by: str = "", window: Window | None = None) -> Plan:
    """Return a plan under catch_up. ``window``: of the log, for a plan of windows."""
    return Plan(
        plan_id=plan_id,
        epoch=0,
        source_identity="s",
        sink_identity="t",
        consistency=Consistency.CATCH_UP,
        mode=Mode.UPSERT,
        frontier={},
        fingerprint="",
        total=3,
        total_exact=True,
        path="replay" if window else "frame",
        read=ReadSpec(kind="postgres", conn_id="source", columns=(Column(name="id", type="bigint"),), window=window),
        write=WriteSpec(
            kind="spark_table",
            conn_id="sink",
            target="lake.raw.t",
            columns=(Column(name="id", type="bigint"),),
            mode="upsert",
            key=("id",),
            plan_table="{}",
            commit_table="",
            fence="lake.raw.t",
            frontier_table="",
        ),
        ranges=ranges,
        held_by=held_by,
    )
