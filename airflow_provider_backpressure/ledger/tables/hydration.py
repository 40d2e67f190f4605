"""Statements on ``backpressure_hydration``."""

import hashlib
import json
import uuid
from collections.abc import Collection
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from airflow_provider_backpressure.core import transitions as refusals
from airflow_provider_backpressure.core.gate.hydration_record import Hydration, Phase
from airflow_provider_backpressure.core.gate.task_activity import Activity
from airflow_provider_backpressure.core.progress import notified_events as events
from airflow_provider_backpressure.core.progress.lag import Course
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.transitions import hydration_transitions as hydrating
from airflow_provider_backpressure.core.transitions.hydration_transitions import Figures
from airflow_provider_backpressure.ledger.models import control, hydration, metadata, range_
from airflow_provider_backpressure.ledger.sql_types import utc_now
from airflow_provider_backpressure.ledger.tables import control_log as decisions
from airflow_provider_backpressure.ledger.tables import phase as phases

_FIGURES: tuple[sa.ColumnElement[Any], ...] = (
    hydration.c.id,
    hydration.c.phase,
    hydration.c.plan_id,
    hydration.c.next_seq,
    hydration.c.credits,
    hydration.c.credits_max.label("credits_declared"),
    hydration.c.credits_set,
    hydration.c.slots,
    hydration.c.cluster,
    hydration.c.sink_server,
    hydration.c.paused_by,
    hydration.c.commit_seconds,
    hydration.c.range_memory_bytes,
    hydration.c.sampled_at,
    hydration.c.hydrated_at,
    hydration.c.verified,
    hydration.c.gate_changes.label("number"),
    hydration.c.waits_since,
    hydration.c.waits_until,
)
"""Without identity and plan, which may be long and are needed by none of the frequent statements."""
_FIGURE_NAMES = tuple(each.name for each in _FIGURES)

_LOCK = sa.select(*_FIGURES).where(hydration.c.id == sa.bindparam("id")).with_for_update()
_BY_ID = sa.select(hydration).where(hydration.c.id == sa.bindparam("id"))
_BY_IDENTITY = sa.select(hydration).where(hydration.c.identity == sa.bindparam("identity"))
_WHOLE_ROW: tuple[Any, ...] = (hydration, *(each for each in _FIGURES if isinstance(each, sa.Label)))
_WHOLE = sa.select(*_WHOLE_ROW).with_for_update()
_LOCK_WHOLE = _WHOLE.where(hydration.c.id == sa.bindparam("id"))
_LOCK_HOLDER = sa.select(hydration.c.holder).where(hydration.c.id == sa.bindparam("id")).with_for_update()
_LOCK_BY_IDENTITY = _WHOLE.where(hydration.c.identity == sa.bindparam("identity"))


def _of_range(*conditions: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """Lock a range's hydration. A range never changes its hydration, so the subquery may be older than the lock."""
    found = sa.select(range_.c.hydration_id).where(range_.c.plan_id == sa.bindparam("plan"), *conditions)
    first = found.order_by(range_.c.seq).limit(1).scalar_subquery()
    return sa.select(*_FIGURES).where(hydration.c.id == first).with_for_update()


_TAKEN = sa.select(hydration.c.id).where(hydration.c.id == sa.bindparam("id"))
_LOCK_BY_RANGE = _of_range(range_.c.seq == sa.bindparam("seq"))
_LOCK_BY_ANY_RANGE = _of_range()
_LOCK_BY_PLAN = _of_range().where(hydration.c.plan_id == sa.bindparam("plan"))
_ADD = sa.insert(hydration).values(created_at=utc_now(), updated_at=utc_now())
_ADD_HELD = _ADD.values(heard_at=utc_now())
_ADD_AND_READ, _ADD_HELD_AND_READ = _ADD.returning(*_WHOLE_ROW), _ADD_HELD.returning(*_WHOLE_ROW)
_UPDATE = sa.update(hydration).where(hydration.c.id == sa.bindparam("key"))
_CHANGE = _UPDATE.values(updated_at=utc_now())
_HEARD = _UPDATE.values(heard_at=utc_now())
_HELD = _CHANGE.values(heard_at=utc_now())
_EXCHANGE_PLAN = _CHANGE.where(hydration.c.plan == sa.bindparam("before")).values(plan=sa.bindparam("after"))
_RELEASE = _CHANGE.where(hydration.c.holder == sa.bindparam("run"))
_SAVED = (
    "phase",
    "plan_id",
    "next_seq",
    "credits",
    "credits_set",
    "slots",
    "cluster",
    "sink_server",
    "commit_seconds",
    "range_memory_bytes",
    "sampled_at",
    "hydrated_at",
    "verified",
    "waits_since",
    "waits_until",
)


def identity(*, environment: str, source_identity: str, sink_identity: str) -> str:
    """Return the digest by which a hydration is found."""
    return hashlib.sha256(json.dumps([environment, source_identity, sink_identity]).encode()).hexdigest()


def by_id(connection: Connection, hydration_id: str) -> Hydration:
    """Return the hydration with this id; ``LedgerRefused`` where there is none."""
    row = connection.execute(_BY_ID, {"id": hydration_id}).one_or_none()
    if row is None:
        raise refusals.unknown(hydration_id)
    return _hydration(row)


def by_identity(connection: Connection, digest: str) -> Hydration | None:
    """Return the hydration of this source and sink."""
    row = connection.execute(_BY_IDENTITY, {"identity": digest}).one_or_none()
    return None if row is None else _hydration(row)


def latest_first(connection: Connection, owner: str | None = None) -> list[Hydration]:
    """Return every hydration, or those of one owner, the latest changed first."""
    query = sa.select(hydration).order_by(hydration.c.updated_at.desc(), hydration.c.id)
    rows = connection.execute(query if owner is None else query.where(hydration.c.owner == owner))
    return [_hydration(row) for row in rows]


def owners(connection: Connection) -> set[str]:
    """Return who has hydrations."""
    return set(connection.scalars(sa.select(hydration.c.owner).distinct()))


def find_owners(connection: Connection, ids: Collection[str]) -> dict[str, str]:
    """Return whose each of these hydrations is."""
    query = sa.select(hydration.c.id, hydration.c.owner).where(hydration.c.id.in_(ids))
    return {row.id: row.owner for row in connection.execute(query)}


def clusters(connection: Connection) -> dict[str, set[str]]:
    """Return who has hydrations on each cluster."""
    found: dict[str, set[str]] = {}
    for row in connection.execute(sa.select(hydration.c.cluster, hydration.c.owner).distinct()):
        found.setdefault(row.cluster, set()).add(row.owner)
    return found


def how_many(connection: Connection, owners: Collection[str]) -> int:
    """Count the hydrations of some owners."""
    return connection.execute(sa.select(sa.func.count()).where(hydration.c.owner.in_(owners))).scalar_one()


def chosen(
    connection: Connection,
    *,
    owners: Collection[str] | None,
    ids: Collection[str] | None,
    limit: int,
    offset: int,
) -> list[Hydration]:
    """Return a page of hydrations: those that hydrate first, and of these the latest made first."""
    settled = sa.case((hydration.c.phase == Phase.STEADY_STATE.value, 1), else_=0)
    query = sa.select(hydration).order_by(settled, hydration.c.created_at.desc(), hydration.c.id)
    if owners is not None:
        query = query.where(hydration.c.owner.in_(owners))
    if ids is not None:
        query = query.where(hydration.c.id.in_(ids))
    return [_hydration(row) for row in connection.execute(query.limit(limit).offset(offset))]


def add(
    connection: Connection,
    *,
    credits: int,
    cluster: str,
    sink_server: str,
    had: str | None = None,
    run: str | None = None,
    **values: str,
) -> tuple[Figures, Hydration]:
    """Add a hydration in its first phase and return it, locked; ``IntegrityError`` where another process was quicker.

    ``had``: its id in a ledger that was lost, if no other hydration has that here. ``run``: what has it for itself.
    """
    taken = had is not None and connection.execute(_TAKEN, {"id": had}).first() is not None
    figures = hydrating.create(
        had if had and not taken else uuid.uuid4().hex, credits, cluster=cluster, sink_server=sink_server
    )
    own = {
        "id": figures.id,
        "phase": figures.phase.value,
        "verified": figures.verified,
        "credits": figures.credits,
        "credits_max": figures.credits_declared,
        "cluster": cluster,
        "sink_server": sink_server,
        "holder": run,
    }
    if connection.dialect.insert_returning:
        row = connection.execute(_ADD_AND_READ if run is None else _ADD_HELD_AND_READ, {**own, **values}).one()
    else:
        connection.execute(_ADD if run is None else _ADD_HELD, {**own, **values})
        row = connection.execute(_LOCK_WHOLE, {"id": figures.id}).one()
    phases.begin(connection, figures.id, 1, figures.phase)
    return _figures(row), _hydration(row)


def lock_whole(connection: Connection, hydration_id: str) -> tuple[Figures, Hydration]:
    """Lock a hydration as :func:`lock` does, and return all of it."""
    row = connection.execute(_LOCK_WHOLE, {"id": hydration_id}).one_or_none()
    if row is None:
        raise refusals.unknown(hydration_id)
    return _figures(row), _hydration(row)


def lock_by_identity(connection: Connection, digest: str) -> tuple[Figures, Hydration] | None:
    """Lock the hydration of this source and sink until the transaction ends and return it; ``None``: there is none."""
    row = connection.execute(_LOCK_BY_IDENTITY, {"identity": digest}).one_or_none()
    return None if row is None else (_figures(row), _hydration(row))


def lock_holder(connection: Connection, hydration_id: str) -> str | None:
    """Lock a hydration as :func:`lock` does, and return the run that has it for itself."""
    row = connection.execute(_LOCK_HOLDER, {"id": hydration_id}).one_or_none()
    if row is None:
        raise refusals.unknown(hydration_id)
    return row.holder  # type: ignore[no-any-return]


def lock(connection: Connection, hydration_id: str) -> Figures:
    """Lock a hydration until the transaction ends and return its figures; ``LedgerRefused`` for an unknown id."""
    row = connection.execute(_LOCK, {"id": hydration_id}).one_or_none()
    if row is None:
        raise refusals.unknown(hydration_id)
    return _figures(row)


def lock_if_there(connection: Connection, hydration_id: str) -> bool:
    """Lock a hydration until the transaction ends; ``False`` where there is none."""
    return connection.execute(_LOCK, {"id": hydration_id}).one_or_none() is not None


def lock_by_range(connection: Connection, plan_id: str, seq: int) -> Figures:
    """Lock the hydration that a range belongs to; ``LedgerRefused`` for an unknown range."""
    row = connection.execute(_LOCK_BY_RANGE, {"plan": plan_id, "seq": seq}).one_or_none()
    if row is None:
        raise refusals.unknown_range(plan_id, seq)
    return _figures(row)


def lock_by_plan(connection: Connection, plan_id: str) -> Figures | None:
    """Lock the hydration whose current plan this is; ``None`` where there is none."""
    row = connection.execute(_LOCK_BY_PLAN, {"plan": plan_id}).one_or_none()
    return None if row is None else _figures(row)


def lock_by_any_range(connection: Connection, plan_id: str) -> Figures | None:
    """Lock the hydration that a plan's ranges belong to, its current plan or not; ``None`` where there are none."""
    row = connection.execute(_LOCK_BY_ANY_RANGE, {"plan": plan_id}).one_or_none()
    return None if row is None else _figures(row)


def check_epoch(connection: Connection, hydration_id: str, epoch: int) -> None:
    """Raise ``PlanSuperseded`` where a hydration's plan no longer has this epoch; to be asked under the lock."""
    plan = by_id(connection, hydration_id).plan
    if plan is not None and plan.epoch != epoch:
        raise refusals.supersession_error(plan.plan_id, epoch)


def save(connection: Connection, figures: Figures, **more: Any) -> None:
    """Write the figures back under the lock, with ``more`` that is not among them."""
    values = {name: getattr(figures, name) for name in _SAVED}
    own = {
        "key": figures.id,
        "phase": figures.phase.value,
        "credits_max": figures.credits_declared,
        "gate_changes": figures.number,
    }
    connection.execute(_CHANGE, {**values, **own, **more})


def save_moved(connection: Connection, before: Figures, after: Figures, **more: Any) -> None:
    """Write figures back, with ``more`` beside them, and when a phase began that they are in now."""
    save(connection, after, **more)
    if after.phase is not before.phase:
        phases.enter(connection, after.id, after.phase)


def change(connection: Connection, hydration_id: str, **values: Any) -> None:
    """Change what is not among the figures."""
    connection.execute(_CHANGE, {"key": hydration_id, **values})


def exchange_plan(connection: Connection, hydration_id: str, *, before: str, plan: str) -> bool:
    """Change a hydration's plan where it is the one ``before`` to the letter; whether it was."""
    values = {"key": hydration_id, "before": before, "after": plan}
    return connection.execute(_EXCHANGE_PLAN, values).rowcount == 1


def keep_holder(connection: Connection, hydration_id: str, holder: str, *, heard: bool) -> None:
    """Keep which run has the hydration for itself, and that it was heard now."""
    connection.execute(_HELD if heard else _CHANGE, {"key": hydration_id, "holder": holder})


def release_holder(connection: Connection, hydration_id: str, run: str) -> bool:
    """Let no run have a hydration that this one has; ``False`` where it has not, ``LedgerRefused``: unknown id."""
    if connection.execute(_RELEASE, {"key": hydration_id, "run": run, "holder": None}).rowcount:
        return True
    _kept(connection, hydration_id, hydration.c.holder)
    return False


def probe(connection: Connection, hydration_id: str) -> str | None:
    """Return what the latest probe has measured; ``LedgerRefused`` for an unknown id."""
    return _kept(connection, hydration_id, hydration.c.probe)


def keep_probe(connection: Connection, hydration_id: str, curve: str) -> None:
    """Keep what a probe has measured; ``LedgerRefused`` for an unknown id."""
    _keep(connection, hydration_id, probe=curve)


def preview(connection: Connection, hydration_id: str) -> str | None:
    """Return what a plan would be, as last seen; ``LedgerRefused`` for an unknown id."""
    return _kept(connection, hydration_id, hydration.c.preview)


def keep_preview(connection: Connection, hydration_id: str, facts: str) -> None:
    """Keep what a plan would be; ``LedgerRefused`` for an unknown id."""
    _keep(connection, hydration_id, preview=facts)


def keep_declaration(
    connection: Connection, hydration_id: str, declaration: str | None, activity: Activity | None
) -> None:
    """Keep what a hydration was declared to do, and with it what a task does; ``LedgerRefused`` for an unknown id."""
    if activity is None:
        _keep(connection, hydration_id, declaration=declaration)
        return
    values = {"key": hydration_id, "declaration": declaration, "activity": activity.to_json()}
    if connection.execute(_HEARD, values).rowcount == 0:
        raise refusals.unknown(hydration_id)


def keep_failure(connection: Connection, hydration_id: str, failure: str | None) -> None:
    """Keep why a task has failed; ``LedgerRefused`` for an unknown id."""
    at = sa.null() if failure is None else utc_now()
    if connection.execute(_UPDATE.values(failure=failure, failed_at=at), {"key": hydration_id}).rowcount == 0:
        raise refusals.unknown(hydration_id)


def keep_activity(connection: Connection, hydration_id: str, activity: Activity | None) -> None:
    """Keep what a task does and when it was heard; ``LedgerRefused`` for an unknown id."""
    own = {} if activity is None else {"activity": activity.to_json()}
    if connection.execute(_HEARD, {"key": hydration_id, **own}).rowcount == 0:
        raise refusals.unknown(hydration_id)


def hear(connection: Connection, ids: Collection[str]) -> None:
    """Keep that these were heard now; nothing else is changed."""
    connection.execute(sa.update(hydration).where(hydration.c.id.in_(ids)).values(heard_at=utc_now()))


def _kept(connection: Connection, hydration_id: str, column: sa.Column[Any]) -> str | None:
    row = connection.execute(sa.select(column).where(hydration.c.id == hydration_id)).one_or_none()
    if row is None:
        raise refusals.unknown(hydration_id)
    return row[0]  # type: ignore[no-any-return]


def _keep(connection: Connection, hydration_id: str, **values: str | None) -> None:
    if connection.execute(_UPDATE, {"key": hydration_id, **values}).rowcount == 0:
        raise refusals.unknown(hydration_id)


def course(connection: Connection, hydration_id: str) -> Course | None:
    """Return the course as of the latest sight; ``None`` before the first one."""
    text = connection.execute(sa.select(hydration.c.course).where(hydration.c.id == hydration_id)).scalar_one_or_none()
    return None if text is None else Course.from_json(text)


def keep_course(connection: Connection, hydration_id: str, course: Course) -> None:
    """Keep the course; an unchanged one does not count as a change."""
    connection.execute(_UPDATE, {"key": hydration_id, "course": course.to_json()})


def read_alerts(connection: Connection, hydration_id: str) -> events.Occurring:
    """Return the alerts that last, whether reported already or not."""
    text = connection.execute(sa.select(hydration.c.occurring).where(hydration.c.id == hydration_id)).scalar_one()
    return events.from_json(text)


def keep_occurring(connection: Connection, hydration_id: str, found: events.Occurring) -> None:
    """Keep it."""
    connection.execute(_UPDATE, {"key": hydration_id, "occurring": events.to_json(found)})


def keep_wait(connection: Connection, figures: Figures) -> None:
    """Keep since when it waits for a connection; an unchanged time does not count as a change."""
    wait = {"waits_since": figures.waits_since, "waits_until": figures.waits_until}
    connection.execute(_UPDATE, {"key": figures.id, **wait})


def keep_sampled(connection: Connection, hydration_id: str, at: datetime) -> None:
    """Keep when the latest sample was taken."""
    connection.execute(_UPDATE, {"key": hydration_id, "sampled_at": at})


def forget(connection: Connection, hydration_id: str) -> None:
    """Remove a hydration and every row of it in the other tables; the acts of people stay."""
    for table in metadata.tables.values():
        column = table.c.id if table is hydration else table.c.get("hydration_id")
        if column is not None and table is not control:
            connection.execute(sa.delete(table).where(column == hydration_id))


def keep_decision(connection: Connection, hydration_id: str, decision: str) -> None:
    """Keep the gate's latest decision; ``LedgerRefused`` for an unknown id."""
    _keep(connection, hydration_id, decision=decision)


def _hydration(row: Row[Any]) -> Hydration:
    return Hydration(
        id=row.id,
        environment=row.environment,
        source_identity=row.source_identity,
        sink_identity=row.sink_identity,
        owner=row.owner,
        cluster=row.cluster,
        phase=Phase(row.phase),
        plan=Plan.from_json(row.plan) if row.plan else None,
        holder=row.holder,
        credits=row.credits,
        credits_max=hydrating.most_credits(row.credits_set or row.credits_max, row.slots),
        credits_declared=row.credits_max,
        credits_set=row.credits_set,
        range_rows_set=row.range_rows_set,
        priority=row.priority,
        slots=row.slots,
        sink_server=row.sink_server,
        paused_by=row.paused_by,
        paused_why=row.paused_why,
        decision=decisions.from_json(row.decision),
        created_at=row.created_at,
        updated_at=row.updated_at,
        hydrated_at=row.hydrated_at,
        verified=bool(row.verified),
        failure=row.failure,
        failed_at=row.failed_at,
        declaration=row.declaration,
        activity=Activity.from_json(row.activity) if row.activity else None,
        heard_at=max(filter(None, (row.heard_at, row.sampled_at)), default=None),
    )


def _figures(row: Row[Any]) -> Figures:
    values = {name: row._mapping[name] for name in _FIGURE_NAMES}
    return Figures(**{**values, "phase": Phase(row.phase)})
