"""The position of a source itself: its frontier, with the unit in which it is counted."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from airflow_provider_backpressure.core.connector_kinds import LOG_UNITS
from airflow_provider_backpressure.core.snapshot.topic_offsets import Frontier, Key
from airflow_provider_backpressure.exceptions import InvalidDeclaration

WAL = "wal"
"""The only key of a frontier in PostgreSQL's log."""

_LSN = re.compile(r"([0-9A-F]{1,8})/([0-9A-F]{1,8})", re.IGNORECASE)


class Unit(StrEnum):
    """What the positions of a frontier count."""

    OFFSETS = "offsets"
    """By partition of a topic."""
    BYTES = "bytes"
    """Of PostgreSQL's write-ahead log."""
    TRANSACTIONS = "transactions"
    """By GTID source: the server, or MariaDB's domain, where they were first committed."""
    ROWS = "rows"
    """By table; only what is held in memory counts so."""

    @property
    def is_log_of_server(self) -> bool:
        """Whether it is the one log of a server, which never goes back unless the server was restored."""
        return self in (Unit.BYTES, Unit.TRANSACTIONS)


def whose(source_identity: str) -> str:
    """Return whose frontier a source's is: of tables that of their server's one log, of a topic its own."""
    scheme, _, rest = source_identity.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}" if scheme in LOG_UNITS else source_identity


@dataclass(frozen=True, kw_only=True)
class Upstream:
    """A source's frontier at one moment."""

    unit: Unit
    at: Frontier
    open: int = 0
    """Of these, what belongs to open transactions or follows such: it cannot be read yet."""

    def to_json(self) -> str:
        """Return it as JSON."""
        return json.dumps({"unit": self.unit.value, "at": to_json_keys(self.at), "open": self.open})

    @classmethod
    def from_json(cls, text: str) -> "Upstream":
        """Read what :meth:`to_json` wrote."""
        value = json.loads(text)
        return cls(unit=Unit(value["unit"]), at=value["at"], open=value["open"])


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A frontier as it was seen last, by the ledger's clock."""

    upstream: Upstream
    at: datetime


def to_json_keys(frontier: Frontier) -> dict[str, int]:
    """Return a frontier with texts for keys, as JSON has them."""
    return {str(key): position for key, position in frontier.items()}


def from_lsn(text: str) -> dict[Key, int]:
    """Return the frontier of a place in PostgreSQL's log, ``16/B374D848``, in bytes."""
    found = _LSN.fullmatch(text.strip())
    if found is None:
        raise InvalidDeclaration(f"{text!r} is no place in PostgreSQL's log, as 16/B374D848 is.")
    return {WAL: (int(found[1], 16) << 32) + int(found[2], 16)}


def from_gtids(text: str) -> dict[Key, int]:
    """Return the transactions of a GTID set, by GTID source.

    MySQL's ``uuid:1-5:7`` are six of ``uuid``, those of ``uuid:tag:1-5`` count by themselves; MariaDB's ``0-1-100`` are
    a hundred of domain 0.
    """
    counted: dict[Key, int] = {}
    for part in filter(None, (each.strip() for each in text.replace("\n", "").split(","))):
        for key, number in _parse_counts(part).items():
            counted[key] = counted.get(key, 0) + number
    return counted


def _parse_counts(part: str) -> Mapping[str, int]:
    source, *pieces = (piece.strip() for piece in part.split(":"))
    try:
        if not pieces:
            domain, _, sequence = source.split("-")
            return {domain: int(sequence)}
        key, counted = source, dict[str, int]()
        for piece in pieces:
            if not piece[:1].isdigit():
                key = f"{source}:{piece}"
                continue
            first, _, last = piece.partition("-")
            counted[key] = counted.get(key, 0) + int(last or first) - int(first) + 1
    except ValueError as error:
        raise InvalidDeclaration(f"{part!r} is no set of GTIDs.") from error
    return counted


PARSERS = {Unit.BYTES: from_lsn, Unit.TRANSACTIONS: from_gtids}
"""How a position in a server's log is read, by what it counts."""


def from_position(kind: str, position: str) -> dict[Key, int] | None:
    """Return the frontier that a plan's position names, by the kind of its source; ``None`` where it has no log."""
    unit = LOG_UNITS.get(kind)
    return None if unit is None else PARSERS[Unit(unit)](position)
