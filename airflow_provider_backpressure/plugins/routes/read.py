"""The machine API: what the page is made from, for other clients too. Every route asks the auth manager."""

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Query, Request, status

from airflow_provider_backpressure.core.progress.summary import HydrationSummary
from airflow_provider_backpressure.core.snapshot.ranges import RangeState
from airflow_provider_backpressure.core.stage_metrics import Stage, State, unify_stages
from airflow_provider_backpressure.plugins import charts as figures
from airflow_provider_backpressure.plugins import links
from airflow_provider_backpressure.plugins import schemas as answers
from airflow_provider_backpressure.plugins.authorization import User, may_steer, may_trigger, readable
from airflow_provider_backpressure.plugins.dependencies import (
    MOST_NUMBER,
    NONE_SUCH,
    Opened,
    Seen,
    Seq,
    check_readable,
    range_of,
)
from airflow_provider_backpressure.plugins.long_poll import Live
from airflow_provider_backpressure.plugins.routes.queues import queues

MOST_LINES, MOST_RANGES, MOST_ACTS = 200, 1_000, 500
DAY, WEEK = 86_400.0, 604_800.0
FLOW_SECONDS, FLOW_STRETCHES = 3_600.0, 120
MOST_KEYS = 50
MOST_WAIT = 20.0
DAG_ID = r"^[\w.-]+$"
"""What Airflow takes for one."""

router = APIRouter(prefix="/api")


def parse_followed(
    ledger: Opened,
    user: User,
    seen: Annotated[
        list[Annotated[str, Query(pattern=r"^[0-9a-f]{32}:-?[0-9]{1,18}$")]],
        Query(max_length=MOST_LINES, description="`id:number` of each hydration; -1 where none was seen yet."),
    ] = [],  # noqa: B006
) -> dict[str, int]:
    """Return what a page follows, with the number of the change that it has seen of each."""
    numbers = {each.partition(":")[0]: int(each.partition(":")[2]) for each in seen}
    owned = ledger.find_owners(numbers) if numbers else {}
    if len(owned) < len(numbers):
        raise HTTPException(status.HTTP_404_NOT_FOUND, NONE_SUCH)
    for owner in set(owned.values()):
        check_readable(user, owner)
    return numbers


@router.get("/hydrations")
def hydrations(
    ledger: Opened,
    user: User,
    dag_id: Annotated[str | None, Query(pattern=DAG_ID, max_length=250, description="Those of one DAG.")] = None,
    limit: Annotated[int, Query(ge=1, le=MOST_LINES)] = 100,
    offset: Annotated[int, Query(ge=0, le=MOST_NUMBER)] = 0,
) -> answers.Overview:
    """Return the state of hydrations: those of the DAGs that the person may see."""
    owners = readable(user, {dag_id} if dag_id is not None else ledger.owners())
    found = ledger.glances(owners=owners, limit=limit, offset=offset)
    mine = {owner: may_steer(user, owner) for owner in {one.hydration.owner for one in found}}
    lines = [answers.Line.from_value(one, may_steer=mine[one.hydration.owner]) for one in found]
    total = ledger.how_many(owners=owners)
    may_plan = dag_id is not None and may_trigger(user, dag_id)
    return answers.Overview(hydrations=lines, total=total, may_plan=may_plan)


@router.get("/changes")
async def changes(
    request: Request,
    seen: Annotated[Mapping[str, int], Depends(parse_followed)],
    seconds: Annotated[
        float, Query(ge=0, le=MOST_WAIT, allow_inf_nan=False, description="How long to wait at most.")
    ] = MOST_WAIT / 2,
) -> answers.Moved:
    """Wait until the gate of one of these hydrations has changed, and return the numbers of the latest changes.

    Answers at once where changes are not heard here: the client looks by itself then.
    """
    live: Live = request.app.state.live
    heard = await live.wait(seen, seconds=seconds)
    return answers.Moved(pushed=heard.pushed, moved=dict(heard.moved))


@router.get("/hydrations/{hydration_id}")
def detail(now: Seen, ledger: Opened, user: User) -> answers.Detail:
    """Return the state of one hydration, with the gate's whole decision."""
    one, gate = now.hydration, ledger.gate(now.hydration.id)
    decision = one.decision or {}
    found: answers.Detail = answers.Detail.from_value(
        now,
        may_steer=may_steer(user, one.owner),
        environment=one.environment,
        lag_by_key=_lags(now),
        credits_declared=one.credits_declared,
        credits_set=one.credits_set,
        range_rows_set=one.range_rows_set,
        priority=one.priority,
        paused_by=one.paused_by,
        paused_why=one.paused_why,
        pressure=decision.get("pressure"),
        signals=[answers.SignalSeen(**signal) for signal in decision.get("signals", ())],
        stages=_stages(now),
        ranges=answers.counts(ledger.counts(one.plan.plan_id)) if one.plan else None,
        plan=answers.plan_of(one),
        foretold=None if one.plan else answers.foretold_of(ledger.preview(one.id)),
        may_plan=may_trigger(user, one.owner),
        commit_seconds=gate.commit_seconds,
        range_memory_bytes=gate.range_memory_bytes,
        created_at=one.created_at,
        hydrated_at=one.hydrated_at,
    )
    return found


@router.get("/hydrations/{hydration_id}/course")
def course(
    now: Seen,
    ledger: Opened,
    seconds: Annotated[float, Query(gt=0, le=WEEK, allow_inf_nan=False, description="How far back.")] = DAY,
) -> answers.Course:
    """Return a hydration over time: progress and executor memory, rate, credits, pressure, what the stages did."""
    points = ledger.history(now.hydration.id, seconds=seconds)
    length = min(seconds, FLOW_SECONDS)
    flows = ledger.flows(now.hydration.id, seconds=length, most=FLOW_STRETCHES)
    columns = figures.course(points, flows, total=now.progress.total)
    return answers.Course(**columns, flow_seconds=length / FLOW_STRETCHES)


@router.get("/hydrations/{hydration_id}/map")
def map_(now: Seen, ledger: Opened) -> answers.Map:
    """Return the map of the plan's ranges, some to a tile where there are more than 2,000."""
    plan = now.hydration.plan
    return answers.Map(tiles=[answers.TileTold.from_value(tile) for tile in ledger.tiles(plan.plan_id)] if plan else [])


@router.get("/hydrations/{hydration_id}/ranges")
def ranges(
    now: Seen,
    ledger: Opened,
    state: Annotated[list[RangeState] | None, Query(description="Of these states only.")] = None,
    after: Annotated[int, Query(ge=-1, le=MOST_NUMBER, description="Those behind this one.")] = -1,
    limit: Annotated[int, Query(ge=1, le=MOST_RANGES)] = 100,
) -> answers.Ranges:
    """Return ranges of the plan in their order."""
    plan = now.hydration.plan
    found = ledger.ranges(plan.plan_id, states=state, after_seq=after, limit=limit + 1) if plan else []
    return answers.Ranges.page(found, limit)


@router.get("/hydrations/{hydration_id}/ranges/{seq}")
def range_(now: Seen, seq: Seq, ledger: Opened) -> answers.RangeDetail:
    """Return one range, and where it leads to: the log of its task, its job in Spark."""
    record = range_of(now, seq, ledger)
    found: answers.RangeDetail = answers.RangeDetail.from_value(
        record, task=links.task_of(record), job=links.job_of(record, now.hydration.cluster)
    )
    return found


@router.get("/hydrations/{hydration_id}/history")
def history(now: Seen, ledger: Opened, limit: Annotated[int, Query(ge=1, le=MOST_ACTS)] = 50) -> answers.History:
    """Return who steered the hydration, when and why, the latest first."""
    return answers.History(acts=[answers.Act.from_value(act) for act in ledger.controls(now.hydration.id, limit=limit)])


@router.get("/queue")
def queue(ledger: Opened, user: User) -> answers.Queues:
    """Return the queue of each Spark cluster; of hydrations that the person may not see, only that they are there."""
    return queues(ledger, user)


def _lags(now: HydrationSummary) -> dict[str, int]:
    lags = (now.course.latest.lag if now.course else None) or {}
    return dict(sorted(lags.items(), key=lambda each: -each[1])[:MOST_KEYS])


def _stages(now: HydrationSummary) -> list[answers.StageShare]:
    told = unify_stages(now.flow)
    return [
        answers.StageShare(
            stage=stage.value,
            level=told[stage].level.value,
            **{state.value: round(told[stage].share(state), 4) for state in State},
        )
        for stage in Stage
        if stage in told and told[stage].seconds
    ]
