"""``uninstall``: what the product keeps in targets, sources and the ledger is listed, and removed if that is wished."""

from argparse import Namespace
from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial

from airflow.configuration import conf
from sqlalchemy.engine import URL, make_url

from airflow_provider_backpressure.cli.command import (
    FAILED,
    command,
    open_ledger,
    print_rows,
)
from airflow_provider_backpressure.cli.doctor import CHECKS
from airflow_provider_backpressure.core.endpoints import NOWHERE
from airflow_provider_backpressure.core.gate.hydration_record import Hydration
from airflow_provider_backpressure.core.planning.catch_up_windows import SUFFIX
from airflow_provider_backpressure.core.ports.ledger import Ledger
from airflow_provider_backpressure.core.ports.sink import Sink
from airflow_provider_backpressure.exceptions import (
    BackpressureError,
    InvalidDeclaration,
    LedgerRefused,
    SourceRefused,
    SourceUnavailable,
)
from airflow_provider_backpressure.hooks.backpressure import CONN_TYPE, DIALECTS, url
from airflow_provider_backpressure.hooks.connection_types_and_fields import connection
from airflow_provider_backpressure.hooks.push_transport import KAFKA, transport
from airflow_provider_backpressure.hooks.recorded_declaration import declaration_of
from airflow_provider_backpressure.hooks.source_and_sink_connections import endpoint
from airflow_provider_backpressure.ledger.migration import drop

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
    from airflow_provider_backpressure.connectors.postgres.connect import Session
    from airflow_provider_backpressure.connectors.postgres.errors import Errors
    from airflow_provider_backpressure.connectors.postgres.replication_slots import (
        PREFIX,
        drop_publication,
        drop_slot,
        publications_of_ours,
        slots_of_ours,
    )

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


@command
def uninstall(args: Namespace) -> int:
    """List it; with ``--yes`` remove it, and with ``--ledger`` the ledger's tables as the last."""
    if (args.ledger or args.force) and not args.yes:
        raise InvalidDeclaration("--ledger and --force go with --yes: without it nothing is removed.")
    with open_ledger(args) as ledger:
        hydrations = ledger.hydrations()
        if args.yes:
            _check_idle(ledger, hydrations)
        traces = [*_traces(args, hydrations), *_topic(args.backpressure_conn_id)]
    rows = [{name: value for name, value in asdict(one).items() if name != "reached"} for one in traces]
    print_rows(args, rows)
    whole = all(one.reached for one in traces)
    if args.ledger:
        _drop_ledger(args, whole=whole)
    return 0 if whole or args.force else FAILED


def _traces(args: Namespace, hydrations: list[Hydration]) -> Iterator[Trace]:
    known = {one.id for one in hydrations}
    plans = [one.plan for one in hydrations if one.plan is not None]
    databases = {plan.read.conn_id for plan in plans if plan.read.kind.removesuffix(SUFFIX) == "postgres"}
    for conn_id in sorted(databases | set(args.conn_id or ())):
        yield from in_logs(conn_id, known, remove=args.yes)
    for hydration in sorted(hydrations, key=lambda one: one.sink_identity):
        if hydration.plan is not None:
            yield from in_sink(hydration, remove=args.yes)


def _topic(conn_id: str) -> Iterator[Trace]:
    found = connection(conn_id, CONN_TYPE)
    chosen = transport(found, found.extra_dejson)
    if chosen.kind == KAFKA:
        state = "left alone: others may use it, and it keeps messages for ten minutes only"
        yield Trace(where=chosen.conn_id, what=f"topic {chosen.topic}", state=state)


def _check_idle(ledger: Ledger, hydrations: list[Hydration]) -> None:
    """Raise ``LedgerRefused`` while a range is in flight whose lease has not run out."""
    for one in hydrations:
        held = ledger.gate(one.id).in_flight - len(ledger.find_abandoned(one.id))
        if held > 0:
            raise LedgerRefused(
                f"{held} ranges of {one.sink_identity} are in flight: pause the DAG {one.owner} and let its run end."
            )


def _drop_ledger(args: Namespace, *, whole: bool) -> None:
    if not whole and not args.force:
        raise LedgerRefused(
            "The ledger stays: it alone knows of what was not reached. Mend that and try again, or give --force."
        )
    found = connection(args.backpressure_conn_id, CONN_TYPE)
    address = _owner(url(found, found.extra_dejson))
    drop(address)
    print(
        f"The ledger is gone. The connection {args.backpressure_conn_id} and its role stay. `airflow db migrate` would "
        "create the tables again while this package is installed."
    )


def _owner(address: URL) -> URL:
    """Return the metadata database's own address where the ledger is there: its restricted role owns no table."""
    metadata = make_url(conf.get_mandatory_value("database", "sql_alchemy_conn"))
    return metadata if _place(metadata) == _place(address) else address


def _place(address: URL) -> tuple[str, str | None, int | None, str | None]:
    kind = address.get_backend_name()
    return kind, address.host, address.port or DIALECTS.get(kind), address.database
