"""What the API answers, as models. Times are UTC; ``null`` is unknown, never 0."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, Field

from airflow_provider_backpressure.core.gate.cluster_queue import MOST_CREDITS, MOST_PRIORITY, MOST_ROWS, Control
from airflow_provider_backpressure.core.gate.hydration_record import Hydration, RangeCounts
from airflow_provider_backpressure.core.progress.status_fields import to_dict
from airflow_provider_backpressure.core.progress.summary import HydrationSummary, Tile
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord

Reason = Annotated[
    str,
    # No database but SQLite keeps NUL in a text.
    Field(min_length=1, max_length=2_000, pattern=r"^[^\x00]*$", description="Kept in the history."),
]


class Line(BaseModel):
    """One hydration in the overview: ``core.progress.status_fields``, as ``status --output json`` has them."""

    id: str
    source: str
    target: str
    owner: str = Field(description="The DAG that runs it; its rights are the hydration's.")
    cluster: str
    state: str = Field(description="What it does: one of the states in `docs/concepts/states.md`.")
    state_note: str = Field(description="By whom, by what, how far, since when.")
    phase: str
    heard_at: datetime | None = Field(description="When a task of it was heard of last.")
    failure: str | None = Field(description="Why its latest task has failed; null once a task works on it again.")
    failed_at: datetime | None
    paused_by: str | None
    paused_why: str | None
    verified_ranges: int | None
    begun: bool = Field(description="Whether it was planned ever.")
    created_at: datetime
    started_at: datetime | None = Field(description="When the latest snapshot was begun.")
    hydrated_at: datetime | None
    duration_seconds: float | None = Field(description="Until its end, its failure, or now.")
    updated_at: datetime
    unit: str = Field(description="What is counted: rows or offsets.")
    percent: float | None
    rows: int = Field(description="Units committed.")
    read: int
    total: int | None
    total_exact: bool
    rows_per_second: float | None = Field(description="Units committed a second over the last minute, while it moves.")
    eta_seconds: float | None
    eta_soonest_seconds: float | None = Field(description="The ETA's interval, by the spread of recent rates.")
    eta_latest_seconds: float | None = Field(description="Null beside an eta_soonest_seconds: perhaps never.")
    memory_used: int | None = Field(description="Bytes of the fullest executor, while it moves.")
    memory_limit: int | None
    messages_received: int
    bytes_received: int
    credits_now: int
    credits_max: int
    in_flight: int
    failed: int | None
    open: bool = Field(description="Whether the gate admits.")
    reasons: list[str] = Field(description="Why it does not.")
    bottleneck: str | None
    queue_position: int | None = Field(description="Place among those that wait for their cluster.")
    starts_in_seconds: float | None = Field(description="Expected, of one that waits for its cluster.")
    followed: bool = Field(description="Whether later runs bring what the source gets.")
    keeping_up: str | None = Field(description="Verdict beside the source; null before the source was looked at.")
    keeping_up_sentence: str
    lag: int | None = Field(
        description="What the source has and the target has not committed, in log units; null where it is not followed."
    )
    lag_age_seconds: float | None = Field(description="Since the source was looked at.")
    log_unit: str | None
    upstream_rate: float | None = Field(description="Log units a second.")
    process_rate: float | None
    offset_known: int | None
    offset_committed: int | None
    open_transactions: int | None
    seen_at: datetime | None = Field(description="When the source was looked at.")
    trouble: str | None = Field(description="What is wrong with the source's log.")
    may_steer: bool

    @classmethod
    def from_summary(cls, now: HydrationSummary, *, may_steer: bool, **more: Any) -> Any:
        """Return the state of a hydration."""
        return cls(**to_dict(now), may_steer=may_steer, **more)


class Overview(BaseModel):
    """A page of hydrations: those that hydrate first, and of these the latest made."""

    hydrations: list[Line]
    total: int = Field(description="How many there are on all pages.")
    may_plan: bool = Field(description="Whether the person may trigger a run of the DAG that was asked for.")


class Moved(BaseModel):
    """What has changed since a page has looked."""

    pushed: bool = Field(description="Whether changes are heard as they happen; if not, ask for the figures in turn.")
    moved: dict[str, int] = Field(description="Number of the latest change by hydration, where it is not the one seen.")


class SignalSeen(BaseModel):
    """One pressure, as the gate last saw it."""

    name: str
    sentence: str
    utilisation: float | None = Field(description="From 1 on the gate is closed.")
    closed: bool
    warning: bool = False


class StageShare(BaseModel):
    """What a stage did in the last minute, as shares of its time."""

    stage: str = Field(
        description="admit, read (read+transform with a transform) or sink; transform: of an earlier release."
    )
    busy: float
    idle: float
    backpressured: float
    level: str


class Counts(BaseModel):
    """Ranges of the plan by state."""

    planned: int
    admitted: int
    committed: int
    failed: int
    revoked: int
    total: int


class PlanTold(BaseModel):
    """What was planned."""

    plan_id: str
    consistency: str
    mode: str
    path: str
    increment: bool
    transform: bool = Field(description="Whether rows pass a transform between source and target.")


class Preview(BaseModel):
    """What a plan would be: nothing is planned yet."""

    at: datetime = Field(description="When source, target and executors were looked at.")
    mode: str
    consistency: str
    rows: int | None
    exact: bool = Field(description="Whether the rows were counted, or estimated.")
    key: str
    columns: int
    range_rows: int
    ranges: int | None = Field(description="About how many.")
    path: str
    credits: int
    python: str = Field(description="Of the executors.")


class Course(BaseModel):
    """A hydration over time, column by column."""

    at: list[datetime]
    percent: list[float | None]
    committed: list[int]
    rate: list[float | None]
    in_flight: list[int | None]
    credits: list[int | None]
    pressure: list[float | None]
    memory_used: list[int | None]
    memory_limit: list[int | None]
    upstream_rate: list[float | None]
    process_rate: list[float | None]
    flow_at: list[datetime]
    flow_seconds: float = Field(description="Length of the stretch that ends at each of ``flow_at``.")
    flow: dict[str, dict[str, list[float | None]]] = Field(description="Shares of time by stage and state.")


class RangeTold(BaseModel):
    """One range of the plan."""

    seq: int
    state: str
    bounds: str
    planned_rows: int
    planned_bytes: int
    rows: int | None
    bytes: int | None
    attempt: int
    lane: str | None
    tag: str | None = Field(description="Names the latest attempt in Spark and in the target.")
    error: str | None
    admitted_at: datetime | None
    committed_at: datetime | None
    seconds: float | None

    @classmethod
    def from_value(cls, record: RangeRecord, **more: Any) -> Any:
        """Return a range."""
        ends = record.admitted_at and record.committed_at
        return cls(
            seq=record.seq,
            state=record.state.value,
            bounds=str(record.bounds),
            planned_rows=record.planned_rows,
            planned_bytes=record.planned_bytes,
            rows=record.rows,
            bytes=record.bytes,
            attempt=record.attempt,
            lane=record.lane,
            tag=record.tag,
            error=record.error,
            admitted_at=record.admitted_at,
            committed_at=record.committed_at,
            seconds=(record.committed_at - record.admitted_at).total_seconds() if ends else None,  # type: ignore[operator]
            **more,
        )


class TaskTold(BaseModel):
    """The task instance that submitted a range."""

    dag_id: str
    run_id: str
    task_id: str | None = Field(description="Null where a range has tasks of its own: the run is known then.")
    map_index: int
    try_number: int | None = Field(description="The try in which it was submitted, where Airflow still knows it.")
    href: str = Field(description="Path of the log in Airflow's own page.")


class Detail(Line):
    """One hydration."""

    environment: str
    lag_by_key: dict[str, int] = Field(description="By partition, table or GTID source, the furthest behind first.")
    credits_declared: int
    credits_set: int | None
    range_rows_set: int | None
    priority: int
    pressure: float | None
    signals: list[SignalSeen]
    stages: list[StageShare]
    ranges: Counts | None
    plan: PlanTold | None
    preview: Preview | None = Field(description="What a run that only plans has found, before the first plan.")
    may_plan: bool = Field(description="Whether the person may trigger a run of the DAG.")
    commit_seconds: float | None = Field(description="Mean time from admission to commit.")
    range_memory_bytes: int | None = Field(description="What a range takes of an executor, learned.")
    failed_range: RangeTold | None = Field(description="The first range that has used up its attempts.")
    task: TaskTold | None = Field(description="The task that reported last.")


class JobTold(BaseModel):
    """The Spark job that copied a range."""

    tag: str = Field(description="Tag of the job, or name of the application.")
    cluster: str
    session_id: str | None = Field(description="Of Spark Connect.")
    href: str | None = Field(description="The session in Spark's pages, where the connection names their `ui_url`.")


class RangeDetail(RangeTold):
    """One range, and where it leads to. Both are of its latest attempt."""

    task: TaskTold | None
    job: JobTold | None


class Ranges(BaseModel):
    """A page of ranges in their order."""

    ranges: list[RangeTold]
    next_after: int | None = Field(description="``after`` of the next page; null on the last one.")

    @classmethod
    def page(cls, records: Sequence[RangeRecord], limit: int) -> "Ranges":
        """Make a page of one record more than are shown, where there is one more."""
        shown = [RangeTold.from_value(record) for record in records[:limit]]
        return cls(ranges=shown, next_after=shown[-1].seq if len(records) > limit else None)


class TileTold(BaseModel):
    """A piece of the map: one range, or some that follow each other."""

    first: int
    last: int
    states: dict[str, int]
    attempts: int
    seconds: float | None

    @classmethod
    def from_value(cls, tile: Tile) -> "TileTold":
        """Return a tile."""
        states = {state.value: number for state, number in tile.states.items()}
        return cls(first=tile.first, last=tile.last, states=states, attempts=tile.attempts, seconds=tile.seconds)


class Map(BaseModel):
    """The map of the plan's ranges."""

    tiles: list[TileTold]


class Act(BaseModel):
    """One act of a person."""

    at: datetime
    who: str
    action: str
    why: str | None
    values: dict[str, Any]

    @classmethod
    def from_value(cls, act: Control) -> "Act":
        """Return an act."""
        return cls(at=act.at, who=act.who, action=act.action, why=act.why, values=act.values)


class History(BaseModel):
    """Acts of people, the latest first."""

    acts: list[Act]


class Turn(BaseModel):
    """A hydration that hydrates on its cluster, or waits for that."""

    id: str
    target: str
    dag_id: str
    running: bool
    position: int | None
    priority: int
    ready_at: datetime
    starts_in_seconds: float | None = Field(description="Expected; null where unknown.")


class ClusterQueue(BaseModel):
    """The queue of one Spark cluster."""

    cluster: str
    at_once: int = Field(description="How many sources may hydrate at once.")
    running: int
    waiting: int
    turns: list[Turn] = Field(description="In their order; those that the person may see.")
    acts: list[Act] = Field(description="Who changed that, the latest first.")
    may_steer: bool = Field(description="Whether the person may edit the DAG of every hydration there.")


class Queues(BaseModel):
    """The queues of all clusters."""

    clusters: list[ClusterQueue]


class Because(BaseModel):
    """Why a person steers."""

    why: Reason


class Setting(Because):
    """Figures to be changed; what is left out stays, and 0 takes a figure back to what the DAG declares."""

    credits: int | None = Field(default=None, ge=0, le=MOST_CREDITS, description="Most ranges in flight.")
    range_rows: int | None = Field(
        default=None, ge=0, le=MOST_ROWS, description="Most rows in a range planned from now on."
    )
    priority: int | None = Field(default=None, ge=-MOST_PRIORITY, le=MOST_PRIORITY)


class QueueSetting(Because):
    """How many sources may hydrate at once on a Spark cluster."""

    cluster: str = Field(max_length=250)
    at_once: int = Field(ge=0, le=10_000)


def counts(found: RangeCounts) -> Counts:
    """Return the numbers of ranges."""
    names = ("planned", "admitted", "committed", "failed", "revoked", "total")
    return Counts(**{name: getattr(found, name) for name in names})


def preview_of(text: str | None) -> Preview | None:
    """Return the preview that was kept."""
    return None if text is None else Preview.model_validate_json(text)


def plan_of(hydration: Hydration) -> PlanTold | None:
    """Return the plan."""
    plan = hydration.plan
    if plan is None:
        return None
    return PlanTold(
        plan_id=plan.plan_id,
        consistency=plan.consistency.value,
        mode=str(plan.mode),
        path=plan.path,
        increment=bool(plan.increment),
        transform=plan.transform is not None,
    )
