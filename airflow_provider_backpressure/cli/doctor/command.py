"""``doctor``: everything a hydration needs, one line each, with what to do where something is missing."""

from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial

from airflow_provider_backpressure.cli.command import FAILED, command, print_rows
from airflow_provider_backpressure.cli.doctor.checks import CHECKS, REACHES, SLOTS
from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.gate.hydration import Hydration
from airflow_provider_backpressure.core.planning.change_windows import SUFFIX
from airflow_provider_backpressure.core.planning.preconditions import NEEDED_MODULES, check_modules
from airflow_provider_backpressure.core.ports import Runner
from airflow_provider_backpressure.exceptions import (
    BackpressureError,
    LedgerRefused,
    RunnerRefused,
)
from airflow_provider_backpressure.hooks.backpressure import CONN_TYPE, BackpressureHook, url
from airflow_provider_backpressure.hooks.endpoints import endpoint
from airflow_provider_backpressure.hooks.endpoints.connection import connection
from airflow_provider_backpressure.hooks.spark import open_runner
from airflow_provider_backpressure.ledger.grants import find_missing_rights

EXECUTOR_SECONDS = 60.0
"""Longest wait for a task on the executors that asks a database for one row."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that was looked at."""

    what: str
    ok: bool
    finding: str


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
        yield from _run_checks(f"database {database}", partial(_database, database))
    for database in databases:
        yield from _run_checks(f"slots of {database}", partial(_slots, database, find_followers(known)))
    for cluster in args.spark_conn_id or sorted({one.cluster for one in known}):
        yield from _run_checks(f"spark {cluster}", partial(_spark, cluster))
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


def _type(conn_id: str) -> str:
    return str(connection(conn_id, *CHECKS).conn_type)


def _spark(conn_id: str) -> Iterator[str]:
    with _runner(conn_id) as runner:
        found = runner.probe(NEEDED_MODULES)
        yield f"The executors run Python {found.python}."
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
