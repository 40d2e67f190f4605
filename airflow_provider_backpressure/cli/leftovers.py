"""What there is of the product outside of targets and ledger: by hydration in its sink, by database in its log."""

from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from airflow_provider_backpressure.cli.doctor.checks import CHECKS
from airflow_provider_backpressure.core.endpoints import NOWHERE
from airflow_provider_backpressure.core.gate.hydration import Hydration
from airflow_provider_backpressure.core.ports import Sink
from airflow_provider_backpressure.exceptions import BackpressureError, SourceRefused, SourceUnavailable
from airflow_provider_backpressure.hooks.endpoints import endpoint
from airflow_provider_backpressure.hooks.endpoints.connection import connection
from airflow_provider_backpressure.hooks.recorded_declaration import declaration_of

THERE, REMOVED = "there", "removed"
STRANGE = "left alone: no hydration of this ledger has it"


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One thing that is there."""

    where: str
    """The connection by which it is reached."""
    what: str
    state: str
    reached: bool = True


def in_sink(hydration: Hydration, *, remove: bool) -> Iterator[Trace]:
    """Yield what is kept of a target, and remove it; the target itself is never touched."""
    assert hydration.plan is not None, "without a plan nothing was written"
    where = hydration.plan.write.conn_id
    try:
        with closing(_open_sink(hydration)) as sink:
            before = sink.traces()
            if remove:
                sink.erase()
            after = sink.traces() if remove else before
    except BackpressureError as error:
        yield Trace(where=where, what=hydration.sink_identity, state=f"not reached: {error}", reached=False)
        return
    for what in before:
        yield Trace(where=where, what=what, state=THERE if what in after else REMOVED)


def in_logs(conn_id: str, known: Collection[str], *, remove: bool) -> Iterator[Trace]:
    """Yield the slots and publications in a PostgreSQL database, and remove those of hydrations that are ``known``."""
    try:
        if str(connection(conn_id, *CHECKS).conn_type) == "postgres":
            yield from _logs(conn_id, known, remove=remove)
    except BackpressureError as error:
        yield Trace(where=conn_id, what="slots and publications", state=f"not reached: {error}", reached=False)


def _open_sink(hydration: Hydration) -> Sink:
    sink = declaration_of(hydration).sink
    return sink.open(endpoint(sink.conn_id, *sink.conn_types) if sink.conn_id else NOWHERE)


def _logs(conn_id: str, known: Collection[str], *, remove: bool) -> Iterator[Trace]:
    from airflow_provider_backpressure.connectors.postgres.errors import Errors
    from airflow_provider_backpressure.connectors.postgres.replication_slots import (
        PREFIX,
        drop_publication,
        drop_slot,
        publications_of_ours,
        slots_of_ours,
    )
    from airflow_provider_backpressure.connectors.postgres.shared_connection import Session

    errors = Errors(refused=SourceRefused, unavailable=SourceUnavailable)
    with closing(Session(endpoint(conn_id, "postgres"), errors=errors)) as session:
        slots = [("replication slot", slot.name, drop_slot) for slot in slots_of_ours(session)]
        publications = [("publication", name, drop_publication) for name in publications_of_ours(session)]
        for kind, name, drop in slots + publications:
            state = STRANGE
            if name.removeprefix(PREFIX) in known:
                state = REMOVED if remove else THERE
                if remove:
                    session.transaction(partial(drop, name=name))
            yield Trace(where=conn_id, what=f"{kind} {name}", state=state)
