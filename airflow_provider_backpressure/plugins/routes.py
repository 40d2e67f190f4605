"""The machine API: what the page is made from, for other clients too. Every route asks the auth manager."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Query, Request, status

from airflow_provider_backpressure.core.default_limits import HYDRATIONS_AT_ONCE
from airflow_provider_backpressure.core.gate.cluster_queue import (
    Change,
    QueueEntry,
    Shared,
    Work,
    estimate_seconds,
    estimate_starts,
    in_order,
)
from airflow_provider_backpressure.core.planning.range_repair import repair, replan, skip
from airflow_provider_backpressure.core.ports.ledger import Ledger
from airflow_provider_backpressure.core.progress.bottleneck import find_level
from airflow_provider_backpressure.core.progress.rates_and_eta import Sample
from airflow_provider_backpressure.core.progress.summary import FlowAt, HydrationSummary
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord, RangeState
from airflow_provider_backpressure.core.stage_metrics import Stage, State, unify_stages
from airflow_provider_backpressure.exceptions import InvalidDeclaration
from airflow_provider_backpressure.hooks.recorded_declaration import (
    get_recorded_plan,
    open_recorded_sink,
    open_recorded_source,
)
from airflow_provider_backpressure.plugins import response_models as answers
from airflow_provider_backpressure.plugins import task_and_job_links as links
from airflow_provider_backpressure.plugins.long_poll import Live
from airflow_provider_backpressure.plugins.permissions import (
    MOST_NUMBER,
    NONE_SUCH,
    Opened,
    Seen,
    Seq,
    Steered,
    User,
    answer_refusals,
    check_readable,
    from_here,
    may_steer,
    may_trigger,
    range_of,
    readable,
    seen,
    steerable,
)

if TYPE_CHECKING:
    import pandas as pd

SMOOTHED = "10s"
"""Over how long the rate of a moment is taken, at least: commits come in steps."""
COLUMNS = (
    "committed",
    "rate",
    "in_flight",
    "credits",
    "pressure",
    "memory_used",
    "memory_limit",
    "upstream_rate",
    "process_rate",
)
WHOLE = ("committed", "in_flight", "credits", "memory_used", "memory_limit")


def chart_columns(points: Sequence[Sample], flows: Sequence[FlowAt], *, total: int | None) -> dict[str, Any]:
    """Return columns over time: of the samples, and of what the stages did."""
    import pandas as pd

    frame = pd.DataFrame([vars(point) for point in points], columns=[*Sample.__dataclass_fields__])
    frame["rate"] = _rate(frame)
    columns = {name: _plain(frame[name], whole=name in WHOLE) for name in COLUMNS}
    done = [_percent(point.committed, total) for point in points]
    return {"at": [point.at for point in points], "percent": done, **columns, **_flow(flows)}


def _rate(frame: "pd.DataFrame") -> "pd.Series[float]":
    """Return units a second, each over the time since the latest sample that is :data:`SMOOTHED` or more before it."""
    import pandas as pd

    if frame.empty:
        return pd.Series(dtype=float)
    own = pd.DataFrame({"at": pd.to_datetime(frame["at"], utc=True), "committed": frame["committed"].astype(float)})
    asked = pd.DataFrame({"at": own["at"] - pd.Timedelta(SMOOTHED)})
    before = pd.merge_asof(asked, own.rename(columns={"at": "then"}), left_on="at", right_on="then")
    # Nothing is that old yet: from the first sample on.
    then, committed = before["then"].fillna(own["at"].iloc[0]), before["committed"].fillna(own["committed"].iloc[0])
    seconds = (own["at"] - then).dt.total_seconds()
    return ((own["committed"] - committed).clip(lower=0) / seconds).where(seconds > 0)


def _percent(committed: int, total: int | None) -> float | None:
    if total is None:
        return None
    return 100.0 if total == 0 else min(100.0, round(100.0 * committed / total, 3))


def _plain(column: "pd.Series[Any]", *, whole: bool) -> list[Any]:
    """Return values as JSON has them: ``None`` for what is not known."""
    kept = column.astype(object).where(column.notna(), None)
    return [None if value is None else int(value) if whole else round(float(value), 4) for value in kept]


def _flow(flows: Sequence[FlowAt]) -> dict[str, Any]:
    def shares(stage: Stage, state: State) -> list[float | None]:
        spent = (one.flow.get(stage) for one in flows)
        return [round(time.share(state), 4) if time and time.seconds else None for time in spent]

    by_stage = {stage.value: {state.value: shares(stage, state) for state in State} for stage in Stage}
    return {"flow_at": [one.at for one in flows], "flow": by_stage}


READ_ACTS, SHOWN_ACTS = 100, 3


def queues(ledger: Ledger, user: User) -> answers.Queues:
    """Return the queues of the clusters on which the person sees a hydration, or something waits.

    Hydrations that the person may not see are only counted.
    """
    entries, clusters = ledger.queue(), ledger.clusters()
    owners = set().union(*clusters.values())
    shown = readable(user, owners)
    acts = [act for act in ledger.controls("", limit=READ_ACTS) if act.values.get("kind") == Shared.HYDRATIONS]
    found = ledger.glances(ids=[entry.hydration_id for entry in entries], limit=max(1, len(entries)))
    by_id = {one.hydration.id: one for one in found if one.hydration.owner in shown}
    running = {entry.hydration_id for entry in entries if entry.running}
    works = {
        one.hydration.id: Work(left=one.progress.left, rate=one.speed if one.hydration.id in running else None)
        for one in found
    }
    told = []
    for name in sorted(clusters):
        own = [entry for entry in entries if entry.cluster == name]
        if own or clusters[name] & shown:
            most = ledger.get_shared(Shared.HYDRATIONS, name)
            queue = _queue(name, own, by_id, works, HYDRATIONS_AT_ONCE if most is None else most)
            queue.may_steer = clusters[name] <= shown and clusters[name] <= steerable(user, clusters[name])
            queue.acts = [answers.Act.from_value(act) for act in acts if act.values.get("name") == name][:SHOWN_ACTS]
            told.append(queue)
    return answers.Queues(clusters=told)


def _queue(
    name: str,
    own: Sequence[QueueEntry],
    shown: Mapping[str, HydrationSummary],
    works: Mapping[str, Work],
    most: int,
) -> answers.ClusterQueue:
    here = {entry.hydration_id: works[entry.hydration_id] for entry in own if entry.hydration_id in works}
    starts = estimate_starts(own, estimate_seconds(own, here), concurrency=most)
    places = {entry.hydration_id: number for number, entry in enumerate(in_order(own), start=1)}
    turns = [
        answers.Turn(
            id=entry.hydration_id,
            target=now.hydration.sink_identity,
            dag_id=now.hydration.owner,
            running=entry.running,
            position=places.get(entry.hydration_id),
            priority=entry.priority,
            ready_at=entry.ready_at,
            starts_in_seconds=starts.get(entry.hydration_id),
        )
        for entry in own
        if (now := shown.get(entry.hydration_id)) is not None
    ]
    running = sum(entry.running for entry in own)
    return answers.ClusterQueue(
        cluster=name,
        at_once=most,
        running=running,
        waiting=len(own) - running,
        turns=turns,
        acts=[],
        may_steer=False,
    )


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
    lines = [answers.Line.from_summary(one, may_steer=mine[one.hydration.owner]) for one in found]
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
    found: answers.Detail = answers.Detail.from_summary(
        now,
        may_steer=may_steer(user, one.owner),
        environment=one.environment,
        lag_by_key=_lags(now),
        credits_declared=one.credits_declared,
        credits_set=one.credits_set,
        range_rows_set=one.range_rows_set,
        priority=one.priority,
        pressure=decision.get("pressure"),
        signals=[answers.SignalSeen(**signal) for signal in now.signals],
        stages=_stages(now),
        ranges=answers.counts(ledger.counts(one.plan.plan_id)) if one.plan else None,
        plan=answers.plan_of(one),
        preview=None if one.plan else answers.preview_of(ledger.preview(one.id)),
        may_plan=may_trigger(user, one.owner),
        commit_seconds=gate.commit_seconds,
        range_memory_bytes=gate.range_memory_bytes,
        failed_range=_find_failed(now, ledger),
        task=links.task_by_lane(one.activity.lane, one.activity.try_number) if one.activity else None,
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
    columns = chart_columns(points, flows, total=now.progress.total)
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


def _find_failed(now: HydrationSummary, ledger: Ledger) -> answers.RangeTold | None:
    if now.hydration.plan is None or not now.failed:
        return None
    found = ledger.ranges(now.hydration.plan.plan_id, states=[RangeState.FAILED], limit=1)
    return _to_answer(found[0]) if found else None


def _lags(now: HydrationSummary) -> dict[str, int]:
    lags = (now.course.latest.lag if now.course else None) or {}
    return dict(sorted(lags.items(), key=lambda each: -each[1])[:MOST_KEYS])


def _stages(now: HydrationSummary) -> list[answers.StageShare]:
    told = unify_stages(now.flow)
    return [
        answers.StageShare(
            stage=stage.value,
            level=find_level(told[stage]).value,
            **{state.value: round(told[stage].share(state), 4) for state in State},
        )
        for stage in Stage
        if stage in told and told[stage].seconds
    ]


control_router = APIRouter(prefix="/api", dependencies=[Depends(from_here)])


@control_router.post("/hydrations/{hydration_id}/pause")
def pause(now: Steered, because: answers.Because, ledger: Opened, user: User) -> answers.Detail:
    """Close the gate manually: ranges in flight are still committed, no more are admitted."""
    ledger.pause(now.hydration.id, who=user.get_name(), why=because.why)
    return _anew(now.hydration.id, ledger, user)


@control_router.post("/hydrations/{hydration_id}/resume")
def resume(now: Steered, because: answers.Because, ledger: Opened, user: User) -> answers.Detail:
    """Resume a paused hydration."""
    ledger.resume(now.hydration.id, who=user.get_name(), why=because.why)
    return _anew(now.hydration.id, ledger, user)


@control_router.post("/hydrations/{hydration_id}/set")
def set_(now: Steered, setting: answers.Setting, ledger: Opened, user: User) -> answers.Detail:
    """Change credits, the size of ranges that are planned from now on, or the place in the queue."""
    try:
        change = Change(credits=setting.credits, range_rows=setting.range_rows, priority=setting.priority)
    except InvalidDeclaration as error:
        raise HTTPException(status.HTTP_422_UNPROCESSABLE_CONTENT, str(error)) from error
    ledger.steer(now.hydration.id, change, who=user.get_name(), why=setting.why)
    return _anew(now.hydration.id, ledger, user)


@control_router.post("/hydrations/{hydration_id}/ranges/{seq}/retry")
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


@control_router.post("/hydrations/{hydration_id}/ranges/{seq}/skip")
def skip_(now: Steered, seq: Seq, because: answers.Because, ledger: Opened, user: User) -> answers.RangeTold:
    """Leave a planned or failed range out for good. One that was tried is refused by the target first."""
    record = range_of(now, seq, ledger)
    with answer_refusals():
        plan = get_recorded_plan(now.hydration)
        with open_recorded_sink(now.hydration) as sink:
            skip(ledger, sink, plan, record, who=user.get_name(), why=because.why)
    return _to_answer(ledger.range(plan.plan_id, seq))


@control_router.post("/queue")
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
