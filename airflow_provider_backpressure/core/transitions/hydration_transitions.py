"""What becomes of a hydration's figures: registered, planned, its credits, what each range teaches, finished."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from airflow_provider_backpressure.core.gate.cluster_queue import Change
from airflow_provider_backpressure.core.gate.credit_limits import Limit
from airflow_provider_backpressure.core.gate.gate_event import Diff
from airflow_provider_backpressure.core.gate.hydration_record import Phase
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord
from airflow_provider_backpressure.core.transitions.range_transitions import lease_runs
from airflow_provider_backpressure.exceptions import IllegalTransition, LedgerUnavailable

ALPHA = 0.5
"""Weight of the newest commit in the moving mean of commit latency: one from before a fall is forgotten after five."""
DECAY = 0.98
"""How much of the largest memory seen is still expected after each further range: half of it after 34."""
SAMPLE_SECONDS = 1.0
"""Least time between two samples of a hydration."""

LEGAL: dict[Phase, frozenset[Phase]] = {
    Phase.HYDRATION: frozenset({Phase.STEADY_STATE, Phase.REHYDRATION}),
    Phase.STEADY_STATE: frozenset({Phase.REHYDRATION}),
    Phase.REHYDRATION: frozenset({Phase.STEADY_STATE}),
}


def advance(phase: Phase, to: Phase) -> Phase:
    """Return ``to`` where the step is legal; :class:`IllegalTransition` otherwise."""
    if to not in LEGAL[phase]:
        raise IllegalTransition(f"A hydration cannot go from {phase} to {to}.")
    return to


@dataclass(frozen=True, kw_only=True)
class Figures:
    """A hydration's figures under its lock; they change with nearly every step of a range."""

    id: str
    phase: Phase
    plan_id: str | None
    next_seq: int
    """Every planned range of the plan has this sequence number or a higher one: looking for one begins here."""
    credits: int
    credits_declared: int
    """Most ranges in flight as the DAG has it."""
    credits_set: int | None
    """The same as a person has it, which goes before."""
    slots: int | None
    """Tasks that the cluster runs at once; ``None`` where it does not say."""
    cluster: str
    sink_server: str
    paused_by: str | None
    commit_seconds: float | None
    range_memory_bytes: int | None
    sampled_at: datetime | None
    hydrated_at: datetime | None
    verified: bool
    """Whether what was planned last was verified. An increment leaves the phase as it is, and may not have been."""
    number: int
    """Of the latest change of the gate."""
    waits_since: datetime | None = None
    """Since when it waits for a connection to the sink's server; ``None`` where it does not."""
    waits_until: datetime | None = None
    """How long that holds without a sign of life."""

    @property
    def credits_max(self) -> int:
        """The maximum that holds: what is wanted, and no more than the cluster has tasks for."""
        return most_credits(self.credits_set or self.credits_declared, self.slots)

    @property
    def queues(self) -> bool:
        """Whether its ranges need a token of the cluster: it hydrates, or does so again."""
        return self.phase is not Phase.STEADY_STATE

    @property
    def shut(self) -> bool:
        """Whether nothing can be admitted, whatever the credits."""
        return self.paused_by is not None or self.plan_id is None

    def sample_due(self, now: datetime) -> bool:
        """Whether a sample is to be kept; a clock that was set back does not stop them."""
        return self.sampled_at is None or abs((now - self.sampled_at).total_seconds()) >= SAMPLE_SECONDS


def create(hydration_id: str, credits: int, *, cluster: str, sink_server: str) -> Figures:
    """Return the figures of a new hydration."""
    return Figures(
        id=hydration_id,
        phase=Phase.HYDRATION,
        plan_id=None,
        next_seq=0,
        credits=credits,
        credits_declared=credits,
        credits_set=None,
        slots=None,
        cluster=cluster,
        sink_server=sink_server,
        paused_by=None,
        commit_seconds=None,
        range_memory_bytes=None,
        sampled_at=None,
        hydrated_at=None,
        verified=False,
        number=0,
    )


def most_credits(wanted: int, slots: int | None) -> int:
    """Return the maximum of credits on a cluster of so many slots: for each a range that runs and one that is ready."""
    return wanted if not slots else max(1, min(wanted, 2 * slots))


def rescale(figures: Figures, **changes: Any) -> Figures:
    """Return the figures under what else bounds the credits: a raised maximum is given at once, a lowered one binds."""
    changed = replace(figures, **changes)
    raised = changed.credits_max > figures.credits_max
    return replace(changed, credits=changed.credits_max if raised else min(figures.credits, changed.credits_max))


def override(figures: Figures, change: Change) -> Figures:
    """Return the figures after a person's change of the credits."""
    return figures if change.credits is None else rescale(figures, credits_set=change.credits or None)


def holder(found: str | None, *, run: str, over: str | None) -> str:
    """Return who has a hydration for itself after ``run`` asked for it; ``found`` had it before."""
    return run if found is None or found == over else found


def after_admission(figures: Figures, seq: int, *, first: bool) -> Figures:
    """Return the figures after ``seq`` was admitted. ``first``: it was the first planned one of all.

    Who has got a connection waits for the next one behind the others.
    """
    figures = replace(figures, waits_since=None, waits_until=None)
    return replace(figures, next_seq=seq + 1) if first or seq == figures.next_seq else figures


def after_commit(
    figures: Figures,
    record: RangeRecord,
    *,
    attempt: int,
    limit: Limit,
    pressure: float,
    memory_bytes: int | None,
    now: datetime,
) -> Figures:
    """Return the figures after a range of the current plan was committed; ``record`` is the range before that."""
    return replace(
        figures,
        credits=limit.after(figures.credits, pressure, figures.credits_max),
        commit_seconds=_commit_seconds(figures.commit_seconds, record, attempt, now),
        range_memory_bytes=_range_memory(figures.range_memory_bytes, memory_bytes),
    )


def _commit_seconds(mean: float | None, record: RangeRecord, attempt: int, now: datetime) -> float | None:
    """Learn from a commit that its lane has waited for. One found later has the time when it was found, not its own."""
    if record.attempt != attempt or record.admitted_at is None or not lease_runs(record, now):
        return mean
    seconds = max(0.0, (now - record.admitted_at).total_seconds())
    return seconds if mean is None else ALPHA * seconds + (1 - ALPHA) * mean


def _range_memory(maximum: int | None, seen: int | None) -> int | None:
    """Keep the maximum; one that is not seen again fades."""
    if seen is None or maximum is None:
        return maximum if seen is None else seen
    return max(seen, int(maximum * DECAY))


def reopen_range(figures: Figures, seq: int) -> Figures:
    """Return the figures after a range of the current plan went back to the planned ones."""
    return replace(figures, next_seq=min(figures.next_seq, seq), verified=False)


def start_plan(figures: Figures, plan: Plan) -> Figures:
    """Return the figures under a new plan: a hydrated target is rebuilt, or continues from where it is.

    ``LedgerUnavailable`` where the plan that it builds on is repaired, and is to be read and verified again first, or
    was followed by another one while this one was made, as by a planner that was frozen.
    """
    if plan.builds_on and plan.builds_on != figures.plan_id:
        raise LedgerUnavailable(f"Another plan has followed plan {plan.builds_on} meanwhile.")
    if plan.builds_on and not (figures.verified or plan.replays):
        raise LedgerUnavailable(f"A range of plan {plan.builds_on} is repaired meanwhile: it is read again first.")
    begun = _begin(figures, plan)
    if figures.phase is Phase.STEADY_STATE and plan.increment:
        return begun
    # What was landed before is brought back rather than read for the first time.
    rebuilt = figures.phase is Phase.STEADY_STATE or (plan.landed and figures.phase is Phase.HYDRATION)
    phase = advance(figures.phase, Phase.REHYDRATION) if rebuilt else figures.phase
    return replace(begun, phase=phase, hydrated_at=None)


def restore(figures: Figures, plan: Plan) -> Figures:
    """Return the figures under a plan that was taken over from the sink: trust was lost, and is won back."""
    lost = figures.phase is not Phase.REHYDRATION
    phase = advance(figures.phase, Phase.REHYDRATION) if lost else figures.phase
    return replace(_begin(figures, plan), phase=phase, hydrated_at=None)


def _begin(figures: Figures, plan: Plan) -> Figures:
    return replace(figures, plan_id=plan.plan_id, next_seq=0, sampled_at=None, verified=False)


def finish(figures: Figures, now: datetime) -> Figures:
    """Return the figures of a hydration whose ranges are all committed; an increment leaves it hydrated."""
    if figures.phase is Phase.STEADY_STATE:
        return replace(figures, verified=True)
    return replace(figures, phase=advance(figures.phase, Phase.STEADY_STATE), hydrated_at=now, verified=True)


TOLD = ("phase", "credits", "slots", "commit_seconds", "range_memory_bytes", "paused_by")
"""Figures that are part of the gate's state."""


def number_change(
    before: Figures,
    after: Figures,
    *,
    in_flight: int = 0,
    seq: int | None = None,
    known: bool = True,
    **changes: Any,
) -> tuple[Figures, Diff]:
    """Return the figures with the number of this change of the gate, and the diff for others.

    ``in_flight``: how many more ranges hold a credit. ``changes``: what else of the gate's state is known to be new.
    ``known``: whether that is all; otherwise others have to read it.
    """
    new = {name: getattr(after, name) for name in TOLD if getattr(after, name) != getattr(before, name)}
    numbered = replace(after, number=before.number + 1)
    return numbered, Diff(
        hydration_id=after.id,
        number=numbered.number,
        moment=0.0,
        changes={**new, **changes} if known else None,
        in_flight=in_flight,
        seq=seq,
    )


RENEWED_BELOW = 0.75
"""Share of its lease below which a token or a wait is renewed: not with every range or look."""


def stands_by(figures: Figures, now: datetime, seconds: float) -> Figures:
    """Return the figures of a hydration that waits for a connection, and still does; not renewed at every look.

    One whose wait has run out begins behind the others.
    """
    until = figures.waits_until
    left = 0.0 if until is None else (until - now).total_seconds()
    if left > seconds * RENEWED_BELOW:
        return figures
    since = figures.waits_since if left > 0 else now
    return replace(figures, waits_since=since, waits_until=now + timedelta(seconds=seconds))


def goes_before(figures: Figures, priority: int, mine: Figures, my_priority: int, now: datetime) -> bool:
    """Whether the next connection to a server is another one's rather than mine: by priority, then by who waits longer.

    Who is paused, or has shown no sign of life, holds nobody up.
    """
    if figures.id == mine.id or figures.paused_by is not None or not _waits(figures, now):
        return False
    if priority != my_priority:
        return priority > my_priority
    return not _waits(mine, now) or (figures.waits_since, figures.id) < (mine.waits_since, mine.id)


def _waits(figures: Figures, now: datetime) -> bool:
    return figures.waits_until is not None and figures.waits_until > now
