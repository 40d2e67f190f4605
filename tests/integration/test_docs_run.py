"""What the documentation shows is run: its commands against a real hydration, its SQL on real servers.

DAGs are loaded by ``tests/unit/test_docs.py``; the quickstart is followed by ``tests/system/test_quickstart.py``.
"""

import ast
import json
import os
import re
import shlex
import subprocess
import sys
import uuid
from argparse import Namespace
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa
from airflow.cli.cli_parser import get_parser
from airflow.dag_processing.dagbag import DagBag

from airflow_provider_backpressure.cli import command as dags
from airflow_provider_backpressure.core.capacity.saturation_curve import Curve, Step
from airflow_provider_backpressure.core.config import Budget, Consistency
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.hooks.hydration_session import Declaration
from airflow_provider_backpressure.ledger.migration import migrate
from dev.services import Server
from tests.conftest import fresh_database
from tests.support import mysql as on_mysql
from tests.support.docs import DOCS, PAGES, ROOT, blocks, inline, named, typed
from tests.support.postgres import run

pytestmark = pytest.mark.integration

QUICKSTART = DOCS / "quickstart.md"
ROWS, RANGE_ROWS = 400, 10
ELSEWHERE = {
    r"airflow (db|dags|connections) ": "Airflow's own, on its metadata database: the quickstart's test runs them",
    r"airflow backpressure setup": "makes a connection in the metadata database: the quickstart's test runs it",
    r"airflow backpressure probe raw\.orders( --most 16 --seconds 30)?$": "takes minutes: test_probe.py probes",
    r"airflow backpressure retry-range .*edited manually": "is of a followed table: test_verify_followed_tables.py",
    r"airflow backpressure doctor .*spark_standalone": "asks a standalone cluster, that test_submit_runner.py has",
    r"([A-Z_]+=\S+ )+docker compose ": "needs Docker: test_compose.py holds its file against the demo",
    r"(helm|kubectl|gcloud) ": "need a cluster or an account, which no test has",
    r"curl ": "asks a live API server, whose routes tests/system/test_page.py asks",
    r"(pip|make) ": "installs packages, builds, tests",
    r"(read|eval) ": "the shell's own",
    r"python -m benchmarks\.": "takes minutes to hours: the tests of benchmarks run them small",
    r"python -m tests\.soak ": "takes half an hour",
}
"""Lines that are not run here, and why."""
SQL = re.compile(r"(SELECT|GRANT|ALTER|CREATE|DROP|SET|INSERT|DELETE|UPDATE|REVOKE) \S+ .*", re.DOTALL)
OF_MYSQL = re.compile(r"\bREPLICATION (SLAVE|CLIENT)\b|\bON \*\.\*|\berp\.")
OF_SPARK = re.compile(r"\bFROM source$")
PEOPLE = re.compile(r"\b(reader|backpressure)\b")
"""Roles that pages speak of."""


def commands() -> Iterator[tuple[Path, str]]:
    """Yield each line that is to be typed, with its page; the page that takes everything away comes last."""
    for page in sorted(PAGES, key=lambda page: page.stem == "uninstall"):
        if page != QUICKSTART:
            yield from ((page, line) for line in typed(page))


def elsewhere(line: str) -> bool:
    return any(re.match(pattern, line) for pattern in ELSEWHERE)


def test_what_is_not_run_here_is_few_and_shown() -> None:
    """No line is left out by a reason that has become empty."""
    every = [line for _, line in commands()]
    assert [pattern for pattern in ELSEWHERE if not any(re.match(pattern, line) for line in every)] == []


@pytest.fixture(scope="module")
def hydrated(postgres: Server, connect: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """The quickstart's hydration in forty ranges, complete, in a database with its source and its ledger."""
    with fresh_database(postgres) as place, pytest.MonkeyPatch.context() as patch:
        url = sa.URL.create("postgresql", place.user, place.password, place.host, place.port, place.database)
        migrate(url)
        patch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")
        patch.setenv("LEDGER_URL", url.render_as_string(hide_password=False))
        run(
            place,
            "CREATE TABLE orders (id bigint PRIMARY KEY, state text, created_at timestamptz)",
            f"INSERT INTO orders SELECT n, 'open', now() FROM generate_series(1, {ROWS}) n",
            "ANALYZE orders",
        )
        login = {"host": place.host, "port": place.port, "login": place.user, "password": place.password}
        for conn_id, kind in {
            "SHOP_DB": "postgres",
            "WAREHOUSE": "postgres",
            "BACKPRESSURE_DEFAULT": "backpressure",
        }.items():
            fields = {"conn_type": kind, **login, "schema": place.database}
            patch.setenv(f"AIRFLOW_CONN_{conn_id}", json.dumps(fields))
        spark = {"conn_type": "spark_connect", "host": connect.host, "port": connect.port}
        patch.setenv("AIRFLOW_CONN_SPARK_CONNECT_DEFAULT", json.dumps({**spark, "extra": {"ui_url": connect.ui_url}}))
        folder = tmp_path_factory.mktemp("dags")
        (folder / "orders.py").write_text(next(blocks(QUICKSTART, "python")))
        # Airflow's own search wants a metadata database, as the quickstart's test has one.
        bag = DagBag(folder, safe_mode=False, known_pools={"default_pool"})
        patch.setattr(dags, "get_bagged_dag", lambda bundles, dag_id: bag.dags[dag_id])
        (declared,) = dags.declarations(Namespace(dag_id="orders", task_group=None))
        # A single range is read again only where the table stands still.
        budget = Budget(credits=4, range_rows=RANGE_ROWS)
        _hydrate(replace(declared, budget=budget, consistency=Consistency.STATIC))
        yield place


def _hydrate(declared: Declaration) -> None:
    with declared.open() as opened:
        opened.planner().plan()
        assert opened.hydrator(lane="lane", share=4, inline_wait=60).run().committed == ROWS // RANGE_ROWS
        hydration, plan = opened.hydration()
        opened.sink.complete(plan)
        opened.sink.publish(plan)
        opened.ledger.finish(hydration.id)
        step = Step(credits=1, range_rows=RANGE_ROWS, rows=100, seconds=1.0, in_flight=1.0)
        curve = Curve(at=datetime.now(UTC).isoformat(), configured=4, steps=(step,))
        opened.ledger.keep_probe(hydration.id, curve.to_json())


@pytest.mark.parametrize(
    ("page", "line"),
    [pytest.param(page, line, id=f"{named(page)}: {line}") for page, line in commands() if not elsewhere(line)],
)
def test_every_command_that_is_shown_does_its_work(
    page: Path, line: str, hydrated: Endpoint, postgres: Server, capfd: pytest.CaptureFixture[str]
) -> None:
    """In the page's order, on one hydration: each ends with 0, without a word of trouble."""
    match shlex.split(line, comments=True):
        case ["airflow", *words]:
            assert _ended(words) == 0, capfd.readouterr().err
            assert capfd.readouterr().out
        case ["python", "-c", code]:
            # On a ledger of its own: one of them takes it back to an earlier release.
            with fresh_database(postgres) as other:
                url = sa.make_url(os.environ["LEDGER_URL"]).set(database=other.database)
                if "downgrade" in code:
                    migrate(url)
                environment = {**os.environ, "LEDGER_URL": url.render_as_string(hide_password=False)}
                subprocess.run([sys.executable, "-c", code], check=True, env=environment, cwd=ROOT, timeout=120)
                assert run(other, "SELECT count(*) FROM alembic_version_backpressure") == [(1,)]
        case _:
            pytest.fail(f"{named(page)} shows a line that is neither run nor left out: {line}")


def _ended(words: list[str]) -> int:
    args = get_parser().parse_args(words)
    try:
        args.func(args)
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def statements() -> Iterator[tuple[str, str]]:
    """Yield every statement of SQL that a page shows, with the page's name."""
    for page in PAGES:
        if "adr" in page.parts or page.name == "CHANGELOG.md":
            continue
        shown = [*blocks(page, "sql"), *(code for code in inline(page) if SQL.fullmatch(code) and "…" not in code)]
        shown += _declared(page, "sql")
        shown = [text for text in shown if not OF_SPARK.search(text)]
        for text in shown:
            yield from ((named(page), one.strip()) for one in text.split(";") if one.strip())


def _declared(page: Path, argument: str) -> Iterator[str]:
    """Yield the texts that a page's snippets give as an argument of this name."""
    for code in blocks(page, "python"):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.keyword) and node.arg == argument and isinstance(node.value, ast.Constant):
                yield str(node.value.value)


@pytest.mark.parametrize(
    ("page", "text"),
    [pytest.param(page, text, id=f"{page}: {text}") for page, text in statements() if not OF_MYSQL.search(text)],
)
def test_sql_for_postgresql_runs(page: str, text: str, database: Endpoint) -> None:
    """In a database with the tables that the pages speak of, and with roles of these names but for an ending.

    It stands for Airflow's own too, where a page alters that.
    """
    own = uuid.uuid4().hex[:8]
    people = [f"{name}_{own}" for name in ("reader", "backpressure")]
    run(database, "CREATE TABLE orders (id bigint PRIMARY KEY, state text)")
    run(database, *(f"CREATE ROLE {name}" for name in people))
    try:
        meant = PEOPLE.sub(rf"\1_{own}", text).replace("DATABASE airflow ", f"DATABASE {database.database} ")
        run(database, meant)
    finally:
        run(database, *(f"DROP ROLE IF EXISTS {name}" for name in people))


@pytest.mark.parametrize(
    ("page", "text"),
    [pytest.param(page, text, id=f"{page}: {text}") for page, text in statements() if OF_MYSQL.search(text)],
)
def test_sql_for_mysql_runs(page: str, text: str, mysql_database: Endpoint) -> None:
    """The same with accounts, and the database of the test in the place of the page's."""
    own = uuid.uuid4().hex[:8]
    people = [f"{name}_{own}" for name in ("reader", "backpressure")]
    on_mysql.run(mysql_database, "CREATE TABLE orders (id bigint PRIMARY KEY, state text)")
    on_mysql.run(mysql_database, *(f"CREATE USER {name}" for name in people))
    try:
        meant = PEOPLE.sub(rf"\1_{own}", text).replace("erp.", f"{mysql_database.database}.")
        on_mysql.run(mysql_database, meant)
    finally:
        on_mysql.run(mysql_database, *(f"DROP USER {name}" for name in people))


def transforms() -> Iterator[tuple[str, str]]:
    """Yield every SELECT over the view that a transform reads."""
    for page in PAGES:
        shown = [*_declared(page, "transform"), *filter(OF_SPARK.search, inline(page))]
        yield from ((named(page), text) for text in shown)


def test_transforms_run(connect: Server) -> None:
    """In Spark, over a view with the columns that they name."""
    from pyspark.sql import SparkSession

    assert list(transforms())
    session = SparkSession.builder.remote(connect.url).create()
    with closing(_Stopped(session)):
        values = "1L, 2.5, timestamp'2026-01-01 10:00:00', 'open', binary('1'), 0, 7L, '{}', false"
        names = "id, amount, created_at, state, key, partition, offset, value, backpressure_tombstone"
        rows = f"VALUES ({values}) AS rows ({names})"
        session.sql(f"SELECT * FROM {rows}").createOrReplaceTempView("source")
        for page, text in transforms():
            assert len(session.sql(text).collect()) == 1, page


class _Stopped:
    """Ends a session where it is closed."""

    def __init__(self, session: object) -> None:
        self.session = session

    def close(self) -> None:
        """End it."""
        self.session.stop()  # type: ignore[attr-defined]
