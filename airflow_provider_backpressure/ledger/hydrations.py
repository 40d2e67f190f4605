"""Statements on ``backpressure_hydration``."""

import hashlib
import json
import uuid
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from airflow_provider_backpressure.core.hydration import Hydration
from airflow_provider_backpressure.core.phases import Phase
from airflow_provider_backpressure.core.snapshot import Plan
from airflow_provider_backpressure.ledger import decisions, law
from airflow_provider_backpressure.ledger.law import Figures
from airflow_provider_backpressure.ledger.models import hydration, range_
from airflow_provider_backpressure.ledger.sqltypes import utc_now

_FIGURES: tuple[sa.ColumnElement[Any], ...] = (
    hydration.c.id,
    hydration.c.phase,
    hydration.c.plan_id,
    hydration.c.next_seq,
    hydration.c.credits,
    hydration.c.credits_max,
    hydration.c.paused_by,
    hydration.c.commit_seconds,
    hydration.c.range_memory_bytes,
    hydration.c.sampled_at,
    hydration.c.hydrated_at,
)
"""Without identity and plan, which may be long and are needed by none of the frequent statements."""

_LOCK = sa.select(*_FIGURES).where(hydration.c.id == sa.bindparam("id")).with_for_update()


def _of_range(*conditions: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """Lock a range's hydration. A range never changes its hydration, so the subquery may be older than the lock."""
    found = sa.select(range_.c.hydration_id).where(range_.c.plan_id == sa.bindparam("plan"), *conditions)
    first = found.order_by(range_.c.seq).limit(1).scalar_subquery()
    return sa.select(*_FIGURES).where(hydration.c.id == first).with_for_update()


_LOCK_BY_RANGE = _of_range(range_.c.seq == sa.bindparam("seq"))
_LOCK_BY_PLAN = _of_range().where(hydration.c.plan_id == sa.bindparam("plan"))
_UPDATE = sa.update(hydration).where(hydration.c.id == sa.bindparam("key"))
_CHANGE = _UPDATE.values(updated_at=utc_now())
_SAVED = (
    "phase",
    "plan_id",
    "next_seq",
    "credits",
    "credits_max",
    "commit_seconds",
    "range_memory_bytes",
    "sampled_at",
    "hydrated_at",
)


def identity(*, environment: str, source_identity: str, sink_identity: str) -> str:
    """Return the digest by which a hydration is found."""
    return hashlib.sha256(json.dumps([environment, source_identity, sink_identity]).encode()).hexdigest()


def by_id(connection: Connection, hydration_id: str) -> Hydration:
    """Return the hydration with this id; ``LedgerRefused`` where there is none."""
    row = connection.execute(sa.select(hydration).where(hydration.c.id == hydration_id)).one_or_none()
    if row is None:
        raise law.unknown(hydration_id)
    return _hydration(row)


def by_identity(connection: Connection, digest: str) -> Hydration | None:
    """Return the hydration of this source and sink."""
    row = connection.execute(sa.select(hydration).where(hydration.c.identity == digest)).one_or_none()
    return None if row is None else _hydration(row)


def latest_first(connection: Connection) -> list[Hydration]:
    """Return every hydration, the latest changed first."""
    rows = connection.execute(sa.select(hydration).order_by(hydration.c.updated_at.desc(), hydration.c.id))
    return [_hydration(row) for row in rows]


def add(connection: Connection, *, credits: int, **values: str) -> None:
    """Add a hydration in its first phase; ``IntegrityError`` where another process was quicker."""
    figures = law.registered(uuid.uuid4().hex, credits)
    connection.execute(
        sa.insert(hydration).values(
            id=figures.id,
            phase=figures.phase.value,
            credits=figures.credits,
            credits_max=figures.credits_max,
            created_at=utc_now(),
            updated_at=utc_now(),
            **values,
        )
    )


def lock(connection: Connection, hydration_id: str) -> Figures:
    """Lock a hydration until the transaction ends and return its figures; ``LedgerRefused`` for an unknown id."""
    row = connection.execute(_LOCK, {"id": hydration_id}).one_or_none()
    if row is None:
        raise law.unknown(hydration_id)
    return _figures(row)


def lock_by_range(connection: Connection, plan_id: str, seq: int) -> Figures:
    """Lock the hydration that a range belongs to; ``LedgerRefused`` for an unknown range."""
    row = connection.execute(_LOCK_BY_RANGE, {"plan": plan_id, "seq": seq}).one_or_none()
    if row is None:
        raise law.unknown_range(plan_id, seq)
    return _figures(row)


def lock_by_plan(connection: Connection, plan_id: str) -> Figures | None:
    """Lock the hydration whose current plan this is; ``None`` where it is nobody's."""
    row = connection.execute(_LOCK_BY_PLAN, {"plan": plan_id}).one_or_none()
    return None if row is None else _figures(row)


def save(connection: Connection, figures: Figures) -> None:
    """Write the figures back under the lock."""
    values = {name: getattr(figures, name) for name in _SAVED}
    connection.execute(_CHANGE, {"key": figures.id, **values, "phase": figures.phase.value})


def change(connection: Connection, hydration_id: str, **values: Any) -> None:
    """Change what is not among the figures."""
    connection.execute(_CHANGE, {"key": hydration_id, **values})


def holder(connection: Connection, hydration_id: str) -> str | None:
    """Return the run that has the hydration for itself; to be asked under the lock."""
    query = sa.select(hydration.c.holder).where(hydration.c.id == hydration_id)
    found: str | None = connection.execute(query).scalar_one()
    return found


def keep_decision(connection: Connection, hydration_id: str, decision: str) -> None:
    """Keep the gate's latest decision; ``LedgerRefused`` for an unknown id."""
    done = connection.execute(_UPDATE, {"key": hydration_id, "decision": decision})
    if done.rowcount == 0:
        raise law.unknown(hydration_id)


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
        credits_max=row.credits_max,
        paused_by=row.paused_by,
        paused_why=row.paused_why,
        decision=decisions.from_json(row.decision),
        created_at=row.created_at,
        updated_at=row.updated_at,
        hydrated_at=row.hydrated_at,
    )


def _figures(row: Row[Any]) -> Figures:
    return Figures(**{**row._mapping, "phase": Phase(row.phase)})
