"""The position of a server's binlog: the transactions that it holds, and the place in its files after them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_backpressure.core.poll_policy import Clock, PollPolicy, SystemClock
from airflow_provider_backpressure.core.snapshot.bounds import LogPosition
from airflow_provider_backpressure.core.snapshot.gtid_set import GtidSet
from airflow_provider_backpressure.exceptions import RESTART, SourceUnavailable

SETTLED_SECONDS = 5.0
"""Longest wait for transactions that are in the files, and not yet known as committed."""
NOWHERE = ""
UNKNOWN = 0
"""Stands for a place in a file from which nothing can be read; the file still shows whose log it was."""
Ask = Callable[[str], list[tuple[Any, ...]]]
"""Runs a statement and returns its rows."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Transactions, and where in the files to begin to look for what follows them."""

    gtids: GtidSet
    file: str = NOWHERE
    at: int = 4
    made: str = ""
    """Which server began the file, and when: ``<server_uuid>/<seconds>``. Positions of older versions lack it."""
    settled: GtidSet | None = None
    """Of a log's start where XA transactions were waited for: the transactions by the end of the wait."""

    @property
    def is_readable(self) -> bool:
        """Whether what follows the transactions lies behind this place of the file."""
        return self.file != NOWHERE and self.at != UNKNOWN

    def seen_by(self, server: str) -> "Place":
        """Return it without its file where that is another server's: a file of that name has other things there."""
        maker = self.made.partition("/")[0]
        return replace(self, file=NOWHERE, made="") if maker and maker != server else self

    @property
    def required(self) -> GtidSet:
        """The transactions that every range has to see, since no window need bring them."""
        return self.settled or self.gtids

    @property
    def position(self) -> LogPosition:
        """Return it as a position: the number of the transactions, and what its reader needs."""
        made = f"{self.made}/" if self.made else ""
        place = f"@{made}{self.file}:{self.at}" if self.file else ""
        settled = f"{'' if place else '@'}@{self.settled}" if self.settled is not None else ""
        return LogPosition(at=self.gtids.count, text=f"{self.gtids}{place}{settled}")

    @classmethod
    def from_position(cls, position: LogPosition) -> "Place":
        """Read what :attr:`position` gave."""
        gtids, _, rest = position.text.partition("@")
        place, waited, settled = rest.partition("@")
        made, _, place = place.rpartition("/")
        file, _, at = place.rpartition(":")
        seen_by_all = GtidSet.parse(settled) if waited else None
        return cls(gtids=GtidSet.parse(gtids), file=file, at=int(at or 4), made=made, settled=seen_by_all)


def read_executed_gtids(ask: Ask) -> GtidSet:
    """Return the transactions whose changes every query from now on sees."""
    return GtidSet.parse(_value(ask, "SELECT @@GLOBAL.gtid_executed"))


def check_applied(ask: Ask, gtids: GtidSet, address: str) -> None:
    """Raise ``SourceUnavailable`` where the server that is asked has not committed all of these transactions.

    Rows that it shows would lack changes, and no window brings those of before the log's start.
    """
    missing = gtids.minus(read_executed_gtids(ask))
    if missing.sources:
        raise SourceUnavailable(
            f"MySQL at {address} has not applied {shorten(missing)}, which the plan has seen there: it lags behind "
            "another server of the same address. Let the address lead to one server. If that server lost transactions, "
            f"{RESTART}."
        )


def shorten(gtids: GtidSet, width: int = 200) -> str:
    """Return a set for a message."""
    text = str(gtids)
    return text if len(text) <= width else f"{text[:width]}…"


def seen(ask: Ask) -> GtidSet:
    """Return transactions among which are all whose changes a query before may have seen.

    A transaction is seen a moment before it counts as executed; until then the server knows it as owned.
    """
    owned = _read_owned_gtids(ask)
    return read_executed_gtids(ask).union(owned)


def read_current_place(ask: Ask, *, clock: Clock | None = None) -> Place:
    """Return the executed transactions, and a place in the files that has only these before it.

    ``UNKNOWN`` where others are in the files for long, as one that waits for a replica: the file is still that of now.
    """
    file, at = status(ask)[:2]
    owned = _read_owned_gtids(ask)

    def are_owned_visible() -> bool | None:
        return True if not owned.minus(owned.minus(_read_owned_gtids(ask))).sources else None

    known = PollPolicy().until(are_owned_visible, timeout=SETTLED_SECONDS, clock=clock or SystemClock())
    gtids = read_executed_gtids(ask)
    return Place(gtids=gtids, file=str(file), at=int(at) if known else UNKNOWN)


def status(ask: Ask) -> tuple[Any, ...]:
    """Return file, place, and the databases that are logged and that are not. Takes REPLICATION CLIENT."""
    new = _version(ask) >= (8, 2)
    return ask("SHOW BINARY LOG STATUS" if new else "SHOW MASTER STATUS")[0]


def _version(ask: Ask) -> tuple[int, ...]:
    return tuple(int(part) for part in _value(ask, "SELECT SUBSTRING_INDEX(VERSION(), '-', 1)").split("."))


def _read_owned_gtids(ask: Ask) -> GtidSet:
    """Return the transactions that sessions have open; of each the server also names the session, after a ``#``."""
    text = _value(ask, "SELECT @@GLOBAL.gtid_owned")
    return GtidSet.parse(",".join(_without_owner(part) for part in text.split(",")))


def _without_owner(part: str) -> str:
    return ":".join(interval.partition("#")[0] for interval in part.split(":"))


def _value(ask: Ask, query: str) -> str:
    return str(ask(query)[0][0] or "")
