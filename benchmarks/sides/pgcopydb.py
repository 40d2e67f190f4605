"""pgcopydb, which copies tables between two servers of PostgreSQL: the one on the path, or Debian's own package.

Its ``clone`` needs a ``pg_dump`` that is no older than the server, so only data is copied, into tables that are there.
"""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from benchmarks.sides.peers import FOLDER, run
from benchmarks.sides.side import SCHEMA, Order

JOBS = 4
"""Connections that read at once, as Spark has cores."""
SPLIT = "64MB"
"""Tables above are read in parts."""


class Pgcopydb:
    """The data of one table, or of all. The target has the source's name: one is put in its place before and behind."""

    def __init__(self, order: Order) -> None:
        """Fetch it where it is not there yet; no figure counts this."""
        self._order = order
        self._program = shutil.which("pgcopydb") or str(_unpacked())

    def open(self) -> None:
        """Put an empty target where pgcopydb looks for it."""
        self._move(SCHEMA, "public")

    def run(self) -> dict[str, Any]:
        """Copy; a second time continue with what is left, as its manual says."""
        order, folder = self._order, Path(self._order.folder)
        again = ["--resume", "--not-consistent"] if (folder / "work").exists() else []
        folder.mkdir(parents=True, exist_ok=True)
        only: list[str] = []
        if order.table:
            filters = folder / "filters.ini"
            filters.write_text(f"[include-only-table]\npublic.{order.table}\n")
            only = ["--filters", str(filters)]
        command = [self._program, "copy", "table-data", "--dir", str(folder / "work"), *only, *again]
        run(
            [*command, "--table-jobs", str(JOBS)],
            folder=str(folder),
            environment={
                "PGCOPYDB_SOURCE_PGURI": f"{order.url(order.source)}?sslmode=disable",
                "PGCOPYDB_TARGET_PGURI": f"{order.url(order.sink)}?sslmode=disable",
                "PGCOPYDB_SPLIT_TABLES_LARGER_THAN": SPLIT,
                "XDG_RUNTIME_DIR": str(folder),
                "XDG_DATA_HOME": str(folder),
            },
        )
        return {}

    def close(self) -> None:
        """Put the target where it is looked at."""
        self._move("public", SCHEMA)

    def _move(self, start: str, end: str) -> None:
        with psycopg.connect(self._order.url(self._order.sink), autocommit=True) as connection:
            name, there = sql.Identifier(start, self._order.table), sql.Identifier(end)
            connection.execute(sql.SQL("ALTER TABLE IF EXISTS {} SET SCHEMA {}").format(name, there))


def _unpacked() -> Path:
    """Return the program of Debian's package, which nobody has to be root for."""
    home = FOLDER / "pgcopydb"
    program = home / "usr" / "bin" / "pgcopydb"
    if not program.exists():
        home.mkdir(parents=True, exist_ok=True)
        if not shutil.which("apt-get"):
            raise RuntimeError("pgcopydb is not installed, and there is no apt-get to fetch it with.")
        subprocess.run(["apt-get", "download", "--quiet", "pgcopydb"], cwd=home, check=True)
        (package,) = home.glob("pgcopydb_*.deb")
        subprocess.run(["dpkg-deb", "--extract", package, home], check=True)
    return program
