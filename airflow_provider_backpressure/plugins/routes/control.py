"""Steering: each act asks for the right to edit the DAG, comes from Airflow's own pages, and leaves who and why."""

from typing import Any

from fastapi import APIRouter, Depends, HTTPException, status

from airflow_provider_backpressure.core.gate.queue import Change, Shared
from airflow_provider_backpressure.core.planning.repair import repair, replan, skip
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord, RangeState
from airflow_provider_backpressure.exceptions import InvalidDeclaration
from airflow_provider_backpressure.hooks.recorded_declaration import (
    get_recorded_plan,
    open_recorded_sink,
    open_recorded_source,
)
from airflow_provider_backpressure.plugins import schemas as answers
from airflow_provider_backpressure.plugins.dependencies import (
    Opened,
    Seq,
    Steered,
    User,
    answer_refusals,
    from_here,
    range_of,
    seen,
    steerable,
)
from airflow_provider_backpressure.plugins.routes.read import detail, queues

router = APIRouter(prefix="/api", dependencies=[Depends(from_here)])


@router.post("/hydrations/{hydration_id}/pause")
def pause(now: Steered, because: answers.Because, ledger: Opened, user: User) -> answers.Detail:
    """Close the gate manually: ranges in flight are still committed, no more are admitted."""
    ledger.pause(now.hydration.id, who=user.get_name(), why=because.why)
    return _anew(now.hydration.id, ledger, user)


@router.post("/hydrations/{hydration_id}/resume")
def resume(now: Steered, because: answers.Because, ledger: Opened, user: User) -> answers.Detail:
    """Resume a paused hydration."""
    ledger.resume(now.hydration.id, who=user.get_name(), why=because.why)
    return _anew(now.hydration.id, ledger, user)


@router.post("/hydrations/{hydration_id}/set")
def set_(now: Steered, setting: answers.Setting, ledger: Opened, user: User) -> answers.Detail:
    """Change credits, the size of ranges that are planned from now on, or the place in the queue."""
    try:
        change = Change(credits=setting.credits, range_rows=setting.range_rows, priority=setting.priority)
    except InvalidDeclaration as error:
        raise HTTPException(status.HTTP_422_UNPROCESSABLE_CONTENT, str(error)) from error
    ledger.steer(now.hydration.id, change, who=user.get_name(), why=setting.why)
    return _anew(now.hydration.id, ledger, user)


@router.post("/hydrations/{hydration_id}/ranges/{seq}/retry")
def retry(now: Steered, seq: Seq, because: answers.Because, ledger: Opened, user: User) -> answers.RangeTold:
    """Plan a range again that failed, or is wrong in the target: its rows are removed there if the source has them.

    A run under way reads it; without one, the DAG's next run.
    """
    record, who = range_of(now, seq, ledger), user.get_name()
    with answer_refusals():
        plan = get_recorded_plan(now.hydration)
        if record.state is RangeState.COMMITTED:
            with open_recorded_source(now.hydration) as source, open_recorded_sink(now.hydration) as sink:
                repair(ledger, source, sink, plan, record, who=who, why=because.why)
        else:
            replan(ledger, plan, record, who=who, why=because.why)
    return _to_answer(ledger.range(plan.plan_id, seq))


@router.post("/hydrations/{hydration_id}/ranges/{seq}/skip")
def skip_(now: Steered, seq: Seq, because: answers.Because, ledger: Opened, user: User) -> answers.RangeTold:
    """Leave a planned or failed range out for good. One that was tried is refused by the target first."""
    record = range_of(now, seq, ledger)
    with answer_refusals():
        plan = get_recorded_plan(now.hydration)
        with open_recorded_sink(now.hydration) as sink:
            skip(ledger, sink, plan, record, who=user.get_name(), why=because.why)
    return _to_answer(ledger.range(plan.plan_id, seq))


@router.post("/queue")
def set_queue(queue: answers.QueueSetting, ledger: Opened, user: User) -> answers.Queues:
    """Change how many sources hydrate at once on a Spark cluster.

    It concerns every hydration there, so it takes the right to edit each one's DAG.
    """
    owners = ledger.clusters().get(queue.cluster, set())
    if not owners or not owners <= steerable(user, owners):
        # Not every user may know whether there is such a cluster.
        raise HTTPException(
            status.HTTP_403_FORBIDDEN, f"You may not edit every DAG with a hydration on {queue.cluster}."
        )
    ledger.share(Shared.HYDRATIONS, queue.cluster, queue.at_once, who=user.get_name(), why=queue.why)
    return queues(ledger, user)


def _anew(hydration_id: str, ledger: Opened, user: Any) -> answers.Detail:
    return detail(seen(hydration_id, ledger, user), ledger, user)


def _to_answer(record: RangeRecord) -> answers.RangeTold:
    told: answers.RangeTold = answers.RangeTold.from_value(record)
    return told
