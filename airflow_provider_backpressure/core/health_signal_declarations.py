"""What a user lets the gate watch of source, sink and other databases: each kind of signal with its threshold.

Values without connections, fit for JSON by ``dataclasses.asdict``: a waiting trigger carries them.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from airflow_provider_backpressure.exceptions import InvalidDeclaration

SIDES = ("source", "sink")
MINUTE = 60.0
TAKEN = frozenset(
    {"hand", "queue", "sink commit", "credits", "connections", "predicted memory", "executor memory", "snapshot age"}
)
"""Names of the gate's own signals."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """What a look finds of one signal: its value, or the state of the counter that its value is made from."""

    value: float
    note: str = ""
    """What the figure means, for the sentence."""


@dataclass(frozen=True, kw_only=True)
class Watched(ABC):
    """Base of every kind. Raises :class:`InvalidDeclaration` where side or threshold cannot be meant."""

    kind: str = field(default="", init=False)
    """Which class it is, in JSON."""
    on: str = ""
    """``source`` or ``sink``."""

    thresholds: ClassVar[tuple[str, ...]] = ()
    """Fields that hold a threshold; exactly one of them is set."""
    window: ClassVar[float | None] = None
    """Seconds over which the growth of a counter is measured; ``None`` where the figure itself is the value."""
    least_interval: ClassVar[float] = 0.0
    """Least seconds between two looks, where a look costs more than others."""
    warns: ClassVar[bool] = False
    """It warns, and never closes the gate."""
    counts_down: ClassVar[bool] = False
    """Its value is what is left, so that less is worse."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        self._check_side()
        given = [name for name in self.thresholds if getattr(self, name) is not None]
        if len(given) != 1:
            raise InvalidDeclaration(f"{self._what} needs {' or '.join(self.thresholds)}, and one of them only.")
        if not _positive(self.threshold):
            raise InvalidDeclaration(f"{self._what}.{given[0]} must be a number above 0, not {self.threshold!r}.")

    @property
    def threshold(self) -> float:
        """The value at which the gate closes."""
        given = (getattr(self, name) for name in self.thresholds)
        found: float = next(value for value in given if value is not None)
        return found

    @property
    def place(self) -> str:
        """Whom it is asked of: a side, or ``connection …``."""
        return self.on

    @property
    def name(self) -> str:
        """The signal's name."""
        return f"{self.place} {self.kind}"

    @abstractmethod
    def tell(self, value: float, note: str) -> str:
        """Return the value in words, without the threshold. ``note`` is what the look adds to the figure."""

    def mark(self) -> str:
        """Return the threshold with its unit."""
        return f"{self.threshold:g}"

    def grown(self, increase: float, seconds: float) -> float:
        """Return the value of a counter that has grown so much in so many seconds."""
        return increase / seconds

    @property
    def _what(self) -> str:
        return type(self).__name__

    def _check_side(self) -> None:
        if self.on not in SIDES:
            raise InvalidDeclaration(f"{self._what}.on must be 'source' or 'sink', not {self.on!r}.")


@dataclass(frozen=True, kw_only=True)
class ActiveSessions(Watched):
    """Sessions of PostgreSQL that run a statement at the moment, those of the hydration among them."""

    kind: str = field(default="active sessions", init=False)
    most: int | None = None
    """How many of them close the gate."""
    share: float | None = None
    """What share of ``max_connections`` closes the gate."""

    thresholds: ClassVar[tuple[str, ...]] = ("most", "share")

    def tell(self, value: float, note: str) -> str:
        return f"{self.name} {value:g}" if self.share is None else f"{self.name} {value:.0%} ({note})"

    def mark(self) -> str:
        return f"{self.most:g}" if self.most is not None else f"{self.threshold:.0%} of max_connections"


@dataclass(frozen=True, kw_only=True)
class ReplicaLag(Watched):
    """How far a replica is behind: this server, where it is one, otherwise the worst of its own replicas."""

    kind: str = field(default="replica lag", init=False)
    seconds: float | None = None
    bytes: int | None = None
    """Bytes of WAL; PostgreSQL only."""

    thresholds: ClassVar[tuple[str, ...]] = ("seconds", "bytes")

    def tell(self, value: float, note: str) -> str:
        return f"{self.name} {self._figure(value)}"

    def mark(self) -> str:
        return self._figure(self.threshold)

    def _figure(self, value: float) -> str:
        return f"{value:.1f} s" if self.seconds is not None else size(value)


@dataclass(frozen=True, kw_only=True)
class WalRate(Watched):
    """Write-ahead log that PostgreSQL writes, in bytes per second: the mean of the last ten."""

    kind: str = field(default="WAL rate", init=False)
    bytes_per_second: float

    thresholds: ClassVar[tuple[str, ...]] = ("bytes_per_second",)
    window: ClassVar[float | None] = 10.0

    def tell(self, value: float, note: str) -> str:
        return f"{self.name} {size(value)}/s"

    def mark(self) -> str:
        return f"{size(self.threshold)}/s"


@dataclass(frozen=True, kw_only=True)
class Checkpoints(Watched):
    """Checkpoints that PostgreSQL makes before their time, since ``max_wal_size`` was written, in the last minute."""

    kind: str = field(default="requested checkpoints", init=False)
    per_minute: float

    thresholds: ClassVar[tuple[str, ...]] = ("per_minute",)
    window: ClassVar[float | None] = MINUTE

    def tell(self, value: float, note: str) -> str:
        return f"{self.name} {value:.0f} in the last minute"

    def grown(self, increase: float, seconds: float) -> float:
        """See :meth:`Watched.grown`. One in the first second of watching is one a minute, not sixty."""
        return increase / max(seconds, MINUTE) * MINUTE


@dataclass(frozen=True, kw_only=True)
class ThreadsRunning(Watched):
    """Threads of MySQL that run a statement at the moment, those of the hydration among them."""

    kind: str = field(default="threads running", init=False)
    most: int

    thresholds: ClassVar[tuple[str, ...]] = ("most",)

    def tell(self, value: float, note: str) -> str:
        return f"{self.name} {value:g}"


@dataclass(frozen=True, kw_only=True)
class Retention(Watched):
    """Time until a topic's retention deletes what has not been committed yet. Warns; closing the gate would lose it."""

    kind: str = field(default="retention", init=False)
    on: str = "source"
    hours: float | None = None
    """Warn from so many hours before it on; by age only (``retention.ms``)."""
    share: float | None = None
    """Warn where less than this share of what the topic keeps is left, by age or by size (``retention.bytes``)."""

    thresholds: ClassVar[tuple[str, ...]] = ("hours", "share")
    warns: ClassVar[bool] = True
    counts_down: ClassVar[bool] = True
    least_interval: ClassVar[float] = 10.0

    def tell(self, value: float, note: str) -> str:
        if value == math.inf:
            return note
        if self.share is not None:
            return f"{self.name} will delete what has not been read: {value:.0%} of what it keeps is left ({note})"
        return f"{self.name} deletes in {value:.1f} h what has not been read ({note})"

    def mark(self) -> str:
        return f"{self.share:.0%}" if self.share is not None else f"{self.hours:g} h"


@dataclass(frozen=True, kw_only=True)
class SlotLag(Watched):
    """Log that PostgreSQL keeps for the slot that is furthest behind, of those of hydrations. Warns.

    Closing the gate would only make it more: replaying is what frees the log.
    """

    kind: str = field(default="slot lag", init=False)
    on: str = "source"
    bytes: int

    thresholds: ClassVar[tuple[str, ...]] = ("bytes",)
    warns: ClassVar[bool] = True

    def tell(self, value: float, note: str) -> str:
        return f"{self.name} {size(value)}{f' ({note})' if note else ''}"

    def mark(self) -> str:
        return size(self.threshold)


@dataclass(frozen=True, kw_only=True)
class WalHeadroom(Watched):
    """Time until PostgreSQL keeps more log for hydrations than it may, as fast as the log grows now. Warns."""

    kind: str = field(default="WAL headroom", init=False)
    on: str = "source"
    hours: float
    """Warn from so many hours before it on."""
    limit_bytes: int | None = None
    """What may be kept; ``None``: what the server allows itself, ``max_slot_wal_keep_size``."""

    thresholds: ClassVar[tuple[str, ...]] = ("hours",)
    warns: ClassVar[bool] = True
    counts_down: ClassVar[bool] = True

    def tell(self, value: float, note: str) -> str:
        return f"{self.name} {value:.1f} h ({note})" if value < math.inf else f"{self.name} not in danger ({note})"

    def mark(self) -> str:
        return f"{self.hours:g} h"


@dataclass(frozen=True, kw_only=True)
class Query(Watched):
    """The number that a SELECT of the user's gives, on the source, the sink or any PostgreSQL or MySQL connection."""

    kind: str = field(default="query", init=False)
    conn_id: str | None = None
    """An Airflow connection, instead of ``on``."""
    sql: str
    """One statement that gives one number. It runs read-only, and has seconds to answer."""
    most: float
    name: str = "query"
    """What the signal is called."""

    thresholds: ClassVar[tuple[str, ...]] = ("most",)

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        super().__post_init__()
        for name in ("sql", "name"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                raise InvalidDeclaration(f"Query.{name} must be a text that is not empty.")
        if self.name in TAKEN:
            raise InvalidDeclaration(f"Query.name cannot be {self.name!r}: the gate has a signal of that name.")

    @property
    def place(self) -> str:
        """See :attr:`Watched.place`."""
        return self.on or f"connection {self.conn_id}"

    def tell(self, value: float, note: str) -> str:
        return f"{self.name} on {self.place} {value:g}"

    def _check_side(self) -> None:
        if bool(self.on) == bool(self.conn_id):
            raise InvalidDeclaration("Query needs on='source' or 'sink', or a conn_id, and one of them only.")
        if not self.conn_id:
            super()._check_side()


KINDS: Mapping[str, type[Watched]] = {
    str(each.__dataclass_fields__["kind"].default): each
    for each in (
        ActiveSessions,
        ReplicaLag,
        WalRate,
        Checkpoints,
        ThreadsRunning,
        Retention,
        SlotLag,
        WalHeadroom,
        Query,
    )
}
"""Every kind by what it is called in JSON."""


def parse_signal(value: Watched | Mapping[str, Any]) -> Watched:
    """Return what a user declared, also from its JSON; :class:`InvalidDeclaration` for anything else."""
    if isinstance(value, Watched):
        return value
    if isinstance(value, Mapping) and value.get("kind") in KINDS:
        return KINDS[value["kind"]](**{name: part for name, part in value.items() if name != "kind"})
    raise InvalidDeclaration(f"Budget.signals takes {', '.join(sorted(_names()))}, not {type(value).__name__}.")


def size(number: float) -> str:
    """Return a number of bytes for a sentence."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(number) >= factor:
            return f"{number / factor:.1f} {unit}"
    return f"{number:.0f} B"


def _names() -> list[str]:
    return [each.__name__ for each in KINDS.values()]


def _positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
