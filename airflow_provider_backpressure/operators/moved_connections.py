"""Hydrations that follow a log, and whose connections lead to other addresses than when they were planned.

A hydration is known by the addresses of its source and target. After a fail-over, or under another host name, the log
and the target may be the same ones all the same. Then the hydration moves there with all that the ledger has of it, and
continues. Otherwise it moves when a run restarts it, which reads everything again.
"""

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress

from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.gate.hydration_record import Hydration
from airflow_provider_backpressure.core.planning.catch_up_windows import stand
from airflow_provider_backpressure.core.ports import ChecksPosition
from airflow_provider_backpressure.exceptions import (
    RESTART,
    InvalidDeclaration,
    LedgerRefused,
    SinkRefused,
    SnapshotLost,
    Terminal,
)
from airflow_provider_backpressure.hooks.hydration_session import Declaration, HydrationSession
from airflow_provider_backpressure.hooks.recorded_declaration import declaration_of

log = logging.getLogger(__name__)


def find_moved(opened: HydrationSession, every: Iterable[Hydration]) -> Hydration | None:
    """Return the hydration of a log that the session's connections led to before; ``None`` where there is none.

    ``every``: the hydrations of the DAG, the latest changed first.
    """
    for one in every:
        if one.plan is None or one.plan.consistency is not Consistency.CATCH_UP:
            continue
        if one.environment != opened.environment or not is_moved(opened, one):
            continue
        sides = ((one.source_identity, opened.source.identity), (one.sink_identity, opened.sink.identity))
        if any(_split(before)[1] != _split(now)[1] for before, now in sides):
            continue
        # What cannot be read by this version is not known to be the same.
        with suppress(InvalidDeclaration):
            if one.declaration is not None and is_declared_alike(declaration_of(one), opened.declaration):
                return one
    return None


def is_moved(opened: HydrationSession, hydration: Hydration) -> bool:
    """Whether a hydration is known by other addresses than those that the session's connections lead to."""
    known = (hydration.source_identity, hydration.sink_identity)
    return known != (opened.source.identity, opened.sink.identity)


def has_same_connections(one: Declaration, other: Declaration) -> bool:
    """Whether two declarations read from one connection and write to one, by the same kinds of source and sink."""
    sides = ((one.source, other.source), (one.sink, other.sink))
    return all(type(a) is type(b) and a.conn_id == b.conn_id for a, b in sides)


def is_declared_alike(one: Declaration, other: Declaration) -> bool:
    """Whether two declarations are of the same table and the same target of the same connections."""
    if not has_same_connections(one, other) or one.source.table != other.source.table:
        return False
    names: Sequence[str] = getattr(other.sink, "templated", ())
    return all(getattr(one.sink, name, None) == getattr(other.sink, name, None) for name in names)


def follow_connections(opened: HydrationSession, hydration: Hydration, *, restart: bool) -> None:
    """Let a hydration move to where the connections lead by now; nothing where it is there.

    ``LedgerRefused`` where it cannot continue there. With ``restart`` it begins again there: ``SinkRefused`` where that
    would remove the rows of others.
    """
    if not is_moved(opened, hydration):
        return
    if restart:
        check_own_rows(opened, hydration)
    else:
        check_continues(opened, hydration)
    move(opened, hydration, restart=restart)


def check_continues(opened: HydrationSession, hydration: Hydration) -> None:
    """Raise ``LedgerRefused`` unless the log continues, and the plan holds the target, where the connections lead."""
    plan = hydration.plan
    if plan is None:
        return
    try:
        row, holders = opened.sink.held(), {plan.plan_id}
        if not plan.epoch:
            # A planner was killed between ledger and target.
            holders.add(plan.held_by or "")
        if (row.plan_id if row is not None else "") not in holders:
            raise SinkRefused(f"{opened.sink.identity} is not held by plan {plan.plan_id}.")
        followed = opened.source.log(hydration.id)
        if isinstance(followed, ChecksPosition):
            followed.check(stand(plan, ()).end)
    except (Terminal, SnapshotLost) as error:
        before, now = _describe(opened, hydration)
        raise LedgerRefused(
            f"{now}, and before {before}: what was followed does not continue there. Point the connection back, or "
            f"{RESTART} and read all again from there. ({error})"
        ) from error


def check_own_rows(opened: HydrationSession, hydration: Hydration) -> None:
    """Raise ``SinkRefused`` where the target at another address holds rows that the hydration has not written."""
    if hydration.sink_identity == opened.sink.identity:
        return
    row = opened.sink.held()
    is_own = row is not None and row.plan is not None and row.plan.hydration_id == hydration.id
    if not is_own and opened.sink.holds_rows():
        before, now = _describe(opened, hydration)
        raise SinkRefused(
            f"{now}, and before {before}: {opened.sink.identity} holds rows of others, which a restart would remove. "
            "Empty it first, or point the connection back."
        )


def move(opened: HydrationSession, hydration: Hydration, *, restart: bool = False) -> None:
    """Let a hydration be known by the addresses that the connections lead to; nothing where it is.

    ``restart``: it begins again there.
    """
    if not is_moved(opened, hydration):
        return
    source, sink = opened.source.identity, opened.sink.identity
    opened.ledger.move(hydration.id, source_identity=source, sink_identity=sink)
    before, now = _describe(opened, hydration)
    log.warning("%s, and before %s: hydration %s of %s is there from now on.", now, before, hydration.id, source)
    if restart and hydration.source_identity != source:
        log.warning(
            "If %s is another server that still runs, it keeps its log for the hydration: in PostgreSQL drop the slot "
            "and the publication backpressure_%s there.",
            *(_split(hydration.source_identity)[0], hydration.id),
        )


def _describe(opened: HydrationSession, hydration: Hydration) -> tuple[str, str]:
    """Return where the hydration was, and a clause about the connections that lead to other addresses now."""
    declared = opened.declaration
    sides = (
        (declared.source.conn_id, hydration.source_identity, opened.source.identity),
        (declared.sink.conn_id or declared.spark_conn_id, hydration.sink_identity, opened.sink.identity),
    )
    moved = [(conn_id, _split(before)[0], _split(now)[0]) for conn_id, before, now in sides if before != now]
    now = " and ".join(f"the connection {conn_id} leads to {address}" for conn_id, _, address in moved)
    return " and ".join(f"to {address}" for _, address, _ in moved), now[:1].upper() + now[1:]


def _split(identity: str) -> tuple[str, str]:
    """Return the address and the name that an identity consists of."""
    address, _, name = identity.rpartition("/")
    return address, name
