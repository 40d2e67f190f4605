"""What befalls a followed table between and within its runs, kept as lists of statements, and who plays them.

A history is a title and lines. A line is a statement of the source, or begins with ``@``: ``@run`` from beginning to
end, ``@plan``, ``@drain``, ``@stopped N`` (so many ranges) and ``@finish``; ``@restart`` and ``@kill`` of the source's
server; ``@session`` up to ``@end`` by one connection; ``@both`` a statement of source and target. In statements
``{db}`` is the source's database, ``{publication}`` the product's publication. ``@columns`` says what is compared,
``@folded`` names the table on a server that ignores case in names, and under ``@refused`` a restart is refused too.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.support import mysql
from tests.support.catching_up import Followed
from tests.support.composed import difference
from tests.support.postgres import connected, run

FOLDER = Path(__file__).parents[1] / "integration" / "log_histories"
COLUMNS = "id, v, doc, note"
_SAID = ("@columns", "@folded", "@refused")
_COLUMNS = """
    SELECT quote_ident(attname) FROM pg_attribute
    WHERE attrelid = 'public.t'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attname
"""


@dataclass(frozen=True, kw_only=True)
class History:
    """One of them."""

    title: str
    lines: tuple[str, ...]
    columns: str = COLUMNS
    table: str = "t"
    folded: bool = False
    stays_refused: bool = False
    """Whether a restart is refused too, since what was done has to be undone first."""

    def __str__(self) -> str:
        """Return the title."""
        return self.title


def read_histories(kind: str) -> list[History]:
    """Return the histories of a kind of source."""
    found = []
    for block in (FOLDER / f"{kind}.txt").read_text().strip().split("\n\n"):
        title, *lines = block.splitlines()
        said = dict(f"{line} ".split(" ", 1) for line in lines if line.startswith(_SAID))
        history = History(
            title=title.removeprefix("# "),
            lines=tuple(line for line in lines if not line.startswith(_SAID)),
            columns=said.get("@columns", COLUMNS).strip(),
            table=said.get("@folded", "t").strip(),
            folded="@folded" in said,
            stays_refused="@refused" in said,
        )
        found.append(history)
    return found


@dataclass(kw_only=True)
class Player(ABC):
    """Plays one history, and compares source and target after each run that nobody has disturbed."""

    history: History
    followed: Followed
    restart: Callable[[], None]
    kill: Callable[[], None]
    _session: list[str] | None = field(default=None)

    def play(self) -> None:
        """Play it; whatever the product refuses is raised."""
        for line in self.history.lines:
            if self._session is not None and line != "@end":
                self._session.append(line)
            elif line.startswith("@"):
                self._direct(*line.removeprefix("@").split(" ", 1))
            else:
                self.execute(line)

    def restart_hydration(self) -> None:
        """Read the table again, as a refusal advises."""
        self.followed.plan(restart=True)
        self.followed.drain()
        self.followed.finish()
        self.compare()

    def _direct(self, word: str, rest: str = "") -> None:
        match word:
            case "run":
                self.followed.go()
                self.compare()
            case "plan":
                self.followed.plan()
            case "drain":
                self.followed.drain()
            case "stopped":
                self.followed.stopped(int(rest))
            case "finish":
                self.followed.finish()
            case "restart":
                self.restart()
            case "kill":
                self.kill()
            case "session":
                self._session = []
            case "end":
                statements, self._session = self._session or [], None
                self.execute(*statements)
            case "both":
                self.execute(rest)
                run(self.followed.composed.sink, rest)
            case _:
                raise AssertionError(f"no such word: @{word}")

    @abstractmethod
    def execute(self, *statements: str) -> None:
        """Let one connection execute statements in the source."""

    @abstractmethod
    def compare(self) -> None:
        """Fail where source and target differ."""


class PostgresPlayer(Player):
    """In a source that is PostgreSQL."""

    def execute(self, *statements: str) -> None:
        source = self.followed.composed.source
        with connected(source) as connection:
            for statement in statements:
                if "{publication}" in statement:
                    statement = statement.replace("{publication}", self._publication)
                connection.execute(statement.replace("{db}", source.database).encode())

    def compare(self) -> None:
        # By name: the target keeps its order of columns when the source gets another one.
        names = self.followed.source(_COLUMNS)
        columns, composed = ", ".join(str(name) for (name,) in names), self.followed.composed
        ours, theirs = (f"(SELECT {columns} FROM {table})" for table in ("public.t", "raw.t"))
        assert difference(composed.source, ours, composed.sink, theirs) == (0, 0)

    @cached_property
    def _publication(self) -> str:
        """As it was called when it was needed first: a history may rename it."""
        query = "SELECT quote_ident(pubname) FROM pg_publication WHERE starts_with(pubname, 'backpressure')"
        ((name,),) = self.followed.source(query)
        return str(name)


class MySQLPlayer(Player):
    """In a source that is MySQL."""

    def execute(self, *statements: str) -> None:
        self._ask(*statements)

    def compare(self) -> None:
        table, columns = self.history.table, self.history.columns
        ours = self._ask(f"SELECT {columns} FROM `{table}`")
        theirs = run(self.followed.composed.sink, f'SELECT {columns} FROM raw."{table}"')
        there, here = (Counter(tuple(_to_text(value) for value in row) for row in rows) for rows in (theirs, ours))
        assert there == here

    def _ask(self, *statements: str) -> list[tuple[Any, ...]]:
        source = self.followed.composed.source
        return mysql.run(source, *(statement.replace("{db}", source.database) for statement in statements))


def _to_text(value: Any) -> str | None:
    return None if value is None else str(value)
