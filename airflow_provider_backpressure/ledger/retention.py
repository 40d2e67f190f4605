"""The part of the ledger on a database that forgets what is old. See ``core.ports.pruning``."""

from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_backpressure.core.snapshot.ranges import RangeState
from airflow_provider_backpressure.ledger.database import Database, repeatable
from airflow_provider_backpressure.ledger.models import control, flow, hydration, push, range_
from airflow_provider_backpressure.ledger.tables import flow as flows
from airflow_provider_backpressure.ledger.tables import hydration as hydrations
from airflow_provider_backpressure.ledger.tables import push as pushes
from airflow_provider_backpressure.ledger.tables import source_position as upstreams
from airflow_provider_backpressure.ledger.tables.range import is_in, now

HOUR = 3600.0


class SqlPruning:
    """Methods of :class:`..store.SqlLedger`, which has the database."""

    _database: Database

    def find_superseded(self, *, seconds: float) -> list[str]:
        """See ``Pruning.find_superseded``. Reads every range there is."""
        with self._database.read() as connection:
            return _find_superseded(connection, seconds=seconds)

    @repeatable
    def prune_plan(self, plan_id: str, *, most: int = 1000) -> int:
        """See ``Pruning.prune_plan``."""
        with self._database.write() as connection:
            figures = hydrations.lock_by_any_range(connection, plan_id)
            if figures is None or figures.plan_id == plan_id or _held(connection, figures.id, plan_id):
                return 0
            return _remove(connection, plan_id, most=most)

    @repeatable
    def sweep(self, *, seconds: float, acts: bool = False) -> int:
        """See ``Pruning.sweep``."""
        with self._database.write() as connection:
            at = now(connection)
            cuts = {flow: at - flows.KEPT, push: at - pushes.KEPT}
            if acts:
                cuts[control] = at - timedelta(seconds=seconds)
            gone = sum(connection.execute(sa.delete(of).where(of.c.at < cut)).rowcount for of, cut in cuts.items())
            return gone + upstreams.strays(connection, seconds=HOUR)


def _find_superseded(connection: Connection, *, seconds: float) -> list[str]:
    cut = now(connection) - timedelta(seconds=seconds)
    begun, ended = sa.func.max(range_.c.admitted_at), sa.func.max(range_.c.committed_at)
    held = sa.func.max(sa.case((is_in(RangeState.ADMITTED), 1), else_=0))
    never = sa.and_(begun.is_(None), ended.is_(None), sa.func.max(hydration.c.holder).is_(None))
    quiet = sa.or_(
        never, sa.and_(sa.or_(begun.is_not(None), ended.is_not(None)), _before(begun, cut), _before(ended, cut))
    )
    query: sa.Select[Any] = (
        sa.select(range_.c.plan_id)
        .join(hydration, hydration.c.id == range_.c.hydration_id)
        .where(sa.or_(hydration.c.plan_id.is_(None), hydration.c.plan_id != range_.c.plan_id))
        .group_by(range_.c.plan_id)
        .having(held == 0, quiet)
    )
    return list(connection.scalars(query))


def _before(latest: Any, cut: Any) -> sa.ColumnElement[bool]:
    return sa.or_(latest.is_(None), latest <= cut)


def _held(connection: Connection, hydration_id: str, plan_id: str) -> bool:
    """Whether a range of the plan holds a credit."""
    held = sa.and_(range_.c.hydration_id == hydration_id, is_in(RangeState.ADMITTED), range_.c.plan_id == plan_id)
    return connection.execute(sa.select(range_.c.seq).where(held).limit(1)).first() is not None


def _remove(connection: Connection, plan_id: str, *, most: int) -> int:
    """Remove the first ranges of a plan; looks into the key only."""
    mine = range_.c.plan_id == plan_id
    last = sa.select(range_.c.seq).where(mine).order_by(range_.c.seq).offset(most - 1).limit(1)
    end = connection.execute(last).scalar_one_or_none()
    return connection.execute(sa.delete(range_).where(mine, sa.true() if end is None else range_.c.seq <= end)).rowcount
