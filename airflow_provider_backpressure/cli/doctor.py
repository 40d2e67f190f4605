"""What ``doctor`` looks at behind a connection, by the connection's type."""

from argparse import Namespace
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from airflow_provider_backpressure.cli.command import FAILED, command, print_rows
from airflow_provider_backpressure.cli.login_leaks import check_pages
from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.gate.hydration_record import Hydration
from airflow_provider_backpressure.core.planning.catch_up_windows import SUFFIX
from airflow_provider_backpressure.core.planning.executor_packages import NEEDED_MODULES, check_modules
from airflow_provider_backpressure.core.ports import Runner
from airflow_provider_backpressure.core.snapshot.spark_messages import ChecksumSpec, Column, ReadSpec
from airflow_provider_backpressure.exceptions import (
    BackpressureError,
    LedgerRefused,
    RunnerRefused,
    SourceRefused,
    SourceUnavailable,
)
from airflow_provider_backpressure.hooks.backpressure import CONN_TYPE, BackpressureHook, url
from airflow_provider_backpressure.hooks.connection_types_and_fields import connection
from airflow_provider_backpressure.hooks.recorded_declaration import declaration_of
from airflow_provider_backpressure.hooks.source_and_sink_connections import endpoint
from airflow_provider_backpressure.hooks.spark_and_yarn import open_runner
from airflow_provider_backpressure.ledger.role_grants import find_missing_rights

if TYPE_CHECKING:
    from airflow_provider_backpressure.connectors.kafka.source.formats import Format

Look = Callable[[Endpoint], Iterator[str]]
"""Yields what it found well; raises at the first problem."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that was looked at."""

    what: str
    ok: bool
    finding: str


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Where a registry keeps the schemas of a topic's keys or values."""

    name: str
    part: str
    """``key`` or ``value``."""
    format: "Format"
    chosen: tuple[str, ...] | None = None
    """Columns that are read; ``None``: all."""


def postgres(place: Endpoint) -> Iterator[str]:
    """Check that the server accepts the login, and that no pooler shares its sessions."""
    from airflow_provider_backpressure.connectors.postgres.connect import CONTROL, connect
    from airflow_provider_backpressure.connectors.postgres.errors import Errors

    errors = Errors(refused=SourceRefused, unavailable=SourceUnavailable)
    with (
        connect(place, errors=errors, application_name=CONTROL) as first,
        connect(place, errors=errors, application_name=CONTROL) as second,
        errors.translate_errors(place),
    ):
        version = first.execute("SHOW server_version").fetchone()
        yield f"PostgreSQL {version[0] if version else ''} answers {place.user} at {place.address}."
        before = first.execute("SELECT pg_backend_pid()").fetchone()
        with second.transaction():
            after = second.execute("SELECT pg_backend_pid()").fetchone()
        if before == after:
            raise SourceRefused(
                f"{place.address} is a pooler in transaction mode, where sessions are not one's own: connect to the "
                "server itself, or to a pool in session mode."
            )
    yield "Each connection is a session of its own."


def postgres_slots(place: Endpoint, known: Collection[str]) -> Iterator[str]:
    """Check that each of our slots, which keep the server's log, belongs to a hydration that follows it."""
    from airflow_provider_backpressure.connectors.postgres.connect import Session
    from airflow_provider_backpressure.connectors.postgres.errors import Errors
    from airflow_provider_backpressure.connectors.postgres.replication_slots import PREFIX, slots_of_ours
    from airflow_provider_backpressure.core.health_signal_declarations import size

    with closing(Session(place, errors=Errors(refused=SourceRefused, unavailable=SourceUnavailable))) as session:
        slots = slots_of_ours(session)
    orphans = [slot for slot in slots if slot.name.removeprefix(PREFIX) not in known]
    for slot in slots:
        if slot not in orphans:
            yield f"The slot {slot.name} keeps {size(slot.held_bytes)} of log for its hydration."
    if orphans:
        listed = ", ".join(f"{slot.name} ({size(slot.held_bytes)} of log)" for slot in orphans)
        raise SourceRefused(
            f"Slots keep log that no plan of this ledger follows: {listed}. Where no other Airflow has them, and "
            "nothing is being planned just now: "
            f"SELECT pg_drop_replication_slot('{orphans[0].name}'); DROP PUBLICATION IF EXISTS {orphans[0].name};"
        )


def kafka(place: Endpoint) -> Iterator[str]:
    """A broker that lets us in."""
    from airflow_provider_backpressure.connectors.kafka.cluster_metadata import describe_cluster
    from airflow_provider_backpressure.connectors.kafka.connect import library_version

    found = describe_cluster(place)
    yield f"Kafka answers {place.user or 'without a login'} at {place.host}: {found}."
    yield f"The client is librdkafka {library_version(place)}."


def mysql(place: Endpoint) -> Iterator[str]:
    """A server of a version that can be read from, and whether what it says is encrypted."""
    from airflow_provider_backpressure.connectors.mysql.connect import CONTROL, connect
    from airflow_provider_backpressure.connectors.mysql.errors import Errors
    from airflow_provider_backpressure.connectors.mysql.server_versions import is_mariadb, version

    errors = Errors(refused=SourceRefused, unavailable=SourceUnavailable)
    with connect(place, errors=errors, name=CONTROL) as connection, errors.translate_errors(place):
        product = "MariaDB" if is_mariadb(connection) else "MySQL"
        number = ".".join(str(part) for part in version(connection))
        yield f"{product} {number} answers {place.user} at {place.host}:{place.port}."
        with connection.cursor() as cursor:
            cursor.execute("SHOW SESSION STATUS LIKE 'Ssl_cipher'")
            row = cursor.fetchone()
    yield f"The connection is encrypted ({row[1]})." if row and row[1] else "The connection is not encrypted."


def registry(place: Endpoint) -> Iterator[str]:
    """A schema registry that lets us in."""
    from airflow_provider_backpressure.connectors.kafka.source.schema_registry import Registry

    types = ", ".join(Registry(endpoint=place).types())
    yield f"The schema registry answers {_login(place)} at {place.host}: it holds schemas of the types {types}."


def check_subjects(conn_id: str, subjects: Iterable[Subject]) -> Iterator[Check]:
    """Check the subjects that topics are read by, each as a run that plans does: its versions, and their columns."""
    from airflow_provider_backpressure.connectors.kafka.source.schema_versions import pin

    def read_subject(subject: Subject) -> Iterator[str]:
        place = endpoint(conn_id, *CHECKS)
        found = pin(subject.format, subject.name, subject.part, place, subject.chosen)
        count = len(found.versions)
        columns = ", ".join(f"{name} {type_}" for name, type_ in found.columns.items())
        yield (
            f"The schema registry answers {_login(place)} at {place.host}: the subject has {count} "
            f"version{'s' * (count != 1)}, the latest is schema {found.latest.id} ({found.latest.type}). "
            f"Columns: {columns}."
        )
        for reason in found.misfits.values():
            yield f"A record of another version is refused, where there is one: {reason}."

    for subject in subjects:
        yield from _run_checks(f"subject {subject.name} of {conn_id}", partial(read_subject, subject))


def _login(place: Endpoint) -> str:
    return place.user or ("a token" if place.password else "without a login")


CHECKS: Mapping[str, Look] = {"http": registry, "kafka": kafka, "mysql": mysql, "postgres": postgres}
"""How to look at a connection from here, by its type."""

SLOTS: Mapping[str, Callable[[Endpoint, Collection[str]], Iterator[str]]] = {"postgres": postgres_slots}
"""What looks for slots that keep a server's log, by its type; it is given the ids of the hydrations that are known."""

REACHES: Mapping[str, Callable[[str], ChecksumSpec]] = {
    "mysql": lambda conn_id: ChecksumSpec(
        kind="mysql",
        conn_id=conn_id,
        query="SELECT '1\\n'",
        read=ReadSpec(kind="mysql", conn_id=conn_id, columns=(Column(name="one", type="integer"),)),
    ),
    "postgres": lambda conn_id: ChecksumSpec(kind="postgres", conn_id=conn_id, query="SELECT 1 AS one"),
}
"""What a task on the executors is asked, to see that they reach it; a topic's broker is first asked by a range."""


EXECUTOR_SECONDS = 60.0
"""Longest wait for a task on the executors that asks a database for one row."""


@command
def doctor(args: Namespace) -> int:
    """Look at the connections given, or at those of the hydrations in the ledger; 1 where there is a problem."""
    checks = list(_every(args))
    rows = [{"check": one.what, "result": "ok" if one.ok else "problem", "finding": one.finding} for one in checks]
    print_rows(args, rows)
    return 0 if all(one.ok for one in checks) else FAILED


def _every(args: Namespace) -> Iterator[Check]:
    ledger = args.backpressure_conn_id
    yield from _run_checks(f"ledger {ledger}", partial(_ledger, ledger))
    known = _known(ledger)
    databases = args.conn_id or sorted({name for one in known for name in _databases(one)})
    for database in databases:
        yield from _run_checks(f"{_kind(database)} {database}", partial(_database, database))
    for database in databases:
        yield from _run_checks(f"slots of {database}", partial(_slots, database, find_followers(known)))
    for conn_id, subjects in find_subjects(known, args.conn_id).items():
        yield from check_subjects(conn_id, subjects)
    for cluster in args.spark_conn_id or sorted({one.cluster for one in known}):
        yield from _run_checks(f"spark {cluster}", partial(_spark, cluster))
        yield from _run_checks(f"logins on pages of {cluster}", partial(check_pages, cluster))
        for database in databases:
            yield from _run_checks(f"{database} from {cluster}", partial(_check_cluster, cluster, database))


def _run_checks(what: str, look: Callable[[], Iterator[str]]) -> Iterator[Check]:
    """Yield what was found well, up to the first problem."""
    try:
        for finding in look():
            yield Check(what=what, ok=True, finding=finding)
    except BackpressureError as error:
        yield Check(what=what, ok=False, finding=str(error))


def _known(conn_id: str) -> list[Hydration]:
    try:
        with closing(BackpressureHook(conn_id).ledger()) as ledger:
            return ledger.hydrations()
    except BackpressureError:
        return []


def find_followers(known: Iterable[Hydration]) -> set[str]:
    """Return the hydrations that follow a log: a slot of any other was left by a plan that never came about."""
    return {one.id for one in known if one.plan is not None and one.plan.consistency is Consistency.CATCH_UP}


def find_subjects(known: Iterable[Hydration], only: Collection[str] | None = None) -> dict[str, list[Subject]]:
    """Return the subjects that hydrations read by, by the connection of their registry.

    ``only``: connections of topics or of registries that are asked about; none for all.
    """
    from airflow_provider_backpressure.connectors.kafka.source.config import KafkaSource

    found: dict[str, list[Subject]] = {}
    for one in known:
        if one.plan is None:
            continue
        try:
            source = declaration_of(one).source
        except BackpressureError:
            continue  # Of a package that is not here.
        if not isinstance(source, KafkaSource):
            continue
        for part, format_ in source.formats.items():
            if only and {source.conn_id, format_.registry_conn_id}.isdisjoint(only):
                continue
            chosen = source.columns if part == "value" else None
            subject = Subject(name=source.subject(part), part=part, format=format_, chosen=chosen)
            subjects = found.setdefault(format_.registry_conn_id, [])
            if subject not in subjects:
                subjects.append(subject)
    return {conn_id: sorted(found[conn_id], key=lambda each: each.name) for conn_id in sorted(found)}


def _databases(hydration: Hydration) -> tuple[str, ...]:
    sides = (hydration.plan.read, hydration.plan.write) if hydration.plan else ()
    return tuple(side.conn_id for side in sides if side.kind.removesuffix(SUFFIX) in CHECKS)


def _ledger(conn_id: str) -> Iterator[str]:
    found = connection(conn_id, CONN_TYPE)
    with closing(BackpressureHook(conn_id).ledger()) as ledger:
        yield f"The tables are there; hydrations: {len(ledger.hydrations())}."
    lacking = find_missing_rights(url(found, found.extra_dejson))
    if lacking:
        raise LedgerRefused(
            f"The ledger's role lacks {', '.join(lacking)}: `airflow backpressure grants` prints the SQL for it."
        )
    yield "The role may read and write them."


def _database(conn_id: str) -> Iterator[str]:
    yield from CHECKS[_type(conn_id)](endpoint(conn_id, *CHECKS))


def _slots(conn_id: str, known: set[str]) -> Iterator[str]:
    look = SLOTS.get(_type(conn_id))
    if look is not None:
        yield from look(endpoint(conn_id, *CHECKS), known)


def _kind(conn_id: str) -> str:
    with suppress(BackpressureError):
        return "registry" if CHECKS[_type(conn_id)] is registry else "database"
    return "database"


def _type(conn_id: str) -> str:
    return str(connection(conn_id, *CHECKS).conn_type)


def _spark(conn_id: str) -> Iterator[str]:
    with _runner(conn_id) as runner:
        found = runner.probe(NEEDED_MODULES)
        yield f"{f'Spark is {found.spark}; the' if found.spark else 'The'} executors run Python {found.python}."
        check_modules(found, conn_id)
        yield "They have " + ", ".join(f"{name} {version}" for name, version in found.modules.items() if version) + "."
        reading = runner.memory()
        if reading is None:
            raise RunnerRefused(
                f"The executors' memory cannot be read, which closes the gate: set the extra ui_url of {conn_id!r} to "
                "the address of Spark's monitoring page, and let this host reach it."
            )
        size = f"{reading.limit_bytes / 2**30:.1f} GiB each"
        if reading.isolated:
            yield f"Each range gets executors of its own, of {size}."
        else:
            yield f"Their memory can be read: {size}."


def _check_cluster(cluster: str, conn_id: str) -> Iterator[str]:
    question = REACHES.get(_type(conn_id))
    if question is None:
        return
    with _runner(cluster, conn_id) as runner:
        job = runner.checksum(question(conn_id))
        job.result(timeout=EXECUTOR_SECONDS)
        yield "The executors reach it."


@contextmanager
def _runner(conn_id: str, *databases: str) -> Iterator[Runner]:
    opened = open_runner(conn_id, endpoints={name: endpoint(name, *CHECKS) for name in databases})
    with closing(opened):
        yield opened
