"""Histories of followed tables: each run ends equal, or is refused and mended by a restart. Nothing differs unseen."""

from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.exceptions import BackpressureError
from dev.services import Server, Services
from tests.conftest import endpoint_of, fresh_database
from tests.support import mysql as on_mysql
from tests.support.catching_up import follow
from tests.support.composed import IN_PROCESS, Composed
from tests.support.histories import History, MySQLPlayer, Player, PostgresPlayer, read_histories
from tests.support.ledgers import new_ledger
from tests.support.local_runner import LocalRunner
from tests.support.marks import mark_long
from tests.support.postgres import run

pytestmark = [pytest.mark.integration, pytest.mark.in_process, pytest.mark.statement("W1", "W7")]

BUDGET = Budget(credits=2, range_rows=17)
PREPARING = {"max_prepared_transactions": "20", "wal_writer_delay": "10s"}
CREATING = {"log_bin_trust_function_creators": "1"}


@pytest.fixture
def sink(postgres: Server) -> Iterator[Endpoint]:
    """An empty target."""
    with fresh_database(postgres) as endpoint:
        run(endpoint, "CREATE SCHEMA raw")
        yield endpoint


def play(player: Player) -> None:
    """Play a history to its end, or up to a refusal, which a restart has to mend."""
    try:
        player.play()
    except BackpressureError:
        clean(player)
        with pytest.raises(BackpressureError) if player.history.stays_refused else nullcontext():
            player.restart_hydration()


def clean(player: Player) -> None:
    """End what a history that was broken off has left open."""
    source = player.followed.composed.source
    if isinstance(player, MySQLPlayer):
        for row in on_mysql.run(source, "XA RECOVER"):
            with suppress(pymysql.Error):
                on_mysql.run(source, f"XA ROLLBACK '{row[3]}'")
        return
    for (name,) in run(source, "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"):
        with suppress(psycopg.Error):
            run(source, f"ROLLBACK PREPARED '{name}'")


@pytest.mark.parametrize(
    "history", mark_long(read_histories("postgres"), quick=["key chain", "rename swap columns"]), ids=str
)
def test_a_history_of_postgres(
    services: Services, sink: Endpoint, tmp_path: Path, history: History, request: pytest.FixtureRequest
) -> None:
    """W1, W7: prepared transactions, identities, types, partitions, publications, keys and values left out."""
    name = "postgres:histories"
    server = services.up(name, settings={"postgres": PREPARING})[name]
    with fresh_database(server) as source:
        logins: dict[str, Endpoint] = {}
        composed = Composed(source=source, sink=sink, ledger_url=new_ledger(tmp_path / "l.db"), remote=IN_PROCESS)
        runner = LocalRunner(logins=logins)
        request.addfinalizer(runner.close)

        def kill() -> None:
            services.kill(name)
            services.restart(name)

        player = PostgresPlayer(
            history=history,
            followed=follow(composed, runner, logins, BUDGET),
            restart=lambda: services.restart(name),
            kill=kill,
        )
        try:
            play(player)
        finally:
            clean(player)
            run(
                source,
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
                " WHERE database = current_database()",
            )


@pytest.mark.parametrize(
    "history", mark_long(read_histories("mysql"), quick=["truncate other with dots", "exchange with t"]), ids=str
)
def test_a_history_of_mysql(
    services: Services, sink: Endpoint, tmp_path: Path, history: History, request: pytest.FixtureRequest
) -> None:
    """W1, W7: images of sessions, statements, DDL of every spelling, XA, GTIDs, names, foreign keys, keys alike."""
    name = "mysql:folding" if history.folded else "mysql:histories"
    settings: dict[str, Any] = {"lower_case_table_names": "1"} if history.folded else CREATING
    admin = endpoint_of(services.up(name, settings={"mysql": settings})[name], "mysql")
    with on_mysql.fresh_database(admin) as source:
        logins: dict[str, Endpoint] = {}
        composed = Composed(
            source=source,
            sink=sink,
            ledger_url=new_ledger(tmp_path / "l.db"),
            remote=IN_PROCESS,
            kind="mysql",
            table=f"{source.database}.`{history.table}`",
            target=f'raw."{history.table}"',
        )
        runner = LocalRunner(logins=logins)
        request.addfinalizer(runner.close)
        player = MySQLPlayer(
            history=history,
            followed=follow(composed, runner, logins, BUDGET),
            restart=lambda: services.restart(name),
            kill=lambda: services.restart(name),
        )
        try:
            play(player)
        finally:
            clean(player)
