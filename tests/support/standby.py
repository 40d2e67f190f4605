"""A PostgreSQL with a standby behind it."""

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_backpressure.core.endpoints import Endpoint
from dev.servers import account
from dev.servers.postgres import data_folder
from dev.services import Server, Services
from tests.support.postgres import run
from tests.support.waiting import until

PRIMARY, STANDBY = "postgres:primary", "postgres:standby"


@contextmanager
def primary_and_standby(services: Services, **settings: str) -> Iterator[tuple[Server, Server]]:
    """Give both; the standby was made from the primary's folder while that did not run. ``settings``: the standby's."""
    services.up(PRIMARY)
    services.down(PRIMARY)
    folders = {name: services.home / name.replace(":", "-") for name in (PRIMARY, STANDBY)}
    at = {name: data_folder(services.home, folder) for name, folder in folders.items()}
    folders[STANDBY].mkdir()
    # The standby knows the primary's password only.
    shutil.copy(folders[PRIMARY] / "password", folders[STANDBY] / "password")
    account.make_way(at[STANDBY].parent, account.unprivileged())
    shutil.copytree(at[PRIMARY], at[STANDBY])
    (at[STANDBY] / "standby.signal").touch()
    _give(at[STANDBY], account.unprivileged())
    primary = services.restart(PRIMARY)
    conninfo = f"host={primary.host} port={primary.port} user={primary.user} password={primary.password}"
    services.up(STANDBY, settings={"postgres": {"primary_conninfo": conninfo, **settings}})
    yield primary, services.status()[STANDBY]
    services.down(STANDBY, PRIMARY)


def wait_for_replay(primary: Endpoint, standby: Endpoint) -> None:
    """Wait until the standby has all that is written on the primary now."""
    ((now,),) = run(primary, "SELECT pg_current_wal_flush_lsn()::text")
    until(lambda: run(standby, f"SELECT pg_last_wal_replay_lsn() >= '{now}'") == [(True,)], timeout=30)


def _give(folder: Path, user: str | None) -> None:
    for place, _, files in os.walk(folder):
        Path(place).chmod(0o700)
        for name in ("", *files):
            if user:
                shutil.chown(Path(place) / name, user)


_WAITS = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND datname = current_database()"


@dataclass(frozen=True, kw_only=True)
class Standby:
    """A server whose commits wait for a standby that is not there, where it is told so."""

    database: Endpoint

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let only those sessions wait that ask for it."""
        run(self.database, f"ALTER DATABASE {self.database.database} SET synchronous_commit = local")
        try:
            yield
        finally:
            self._name("")

    @contextmanager
    def committing(self, statement: str) -> Iterator[None]:
        """Run a statement whose commit stands in the log, and is seen by nobody until this is left."""
        self._name("nobody")
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(run, self.database, "SET synchronous_commit = on", statement)
            try:
                until(lambda: bool(run(self.database, _WAITS)))
                yield
            finally:
                self._name("")
            done.result(30)

    def _name(self, standby: str) -> None:
        run(self.database, f"ALTER SYSTEM SET synchronous_standby_names = '{standby}'", "SELECT pg_reload_conf()")
        until(lambda: run(self.database, "SHOW synchronous_standby_names") == [(standby,)])
        # The checkpointer decides whether commits wait, and heeds the setting before it begins a checkpoint.
        run(self.database, "CHECKPOINT", "CHECKPOINT")
