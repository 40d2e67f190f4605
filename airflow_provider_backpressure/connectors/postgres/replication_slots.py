"""Our replication slots, as the server has them: one for each hydration that replays a log."""

from dataclasses import dataclass
from typing import Any

from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.connect import Connection, Session
from airflow_provider_backpressure.core.snapshot.bounds import LogPosition

PREFIX = "backpressure_"
PLUGIN = "pgoutput"
LEVELS = (0.5, 0.8)
"""Shares of what may be kept at which a warning is due."""
MARGIN = 0.1
"""Share of what the server keeps for a slot that is left when it is in danger."""
MARK, SIGNED = "@", "/"
"""Before what marks the publication by which a position of the log is read, and before the position's token."""

_LIMITS = {"": "max_slot_wal_keep_size", "wal_removed": "max_slot_wal_keep_size"} | {
    "idle_timeout": "idle_replication_slot_timeout",
    "wal_level_insufficient": "wal_level",
}
"""The settings by which a server invalidates a slot, by its reason; servers before version 17 give none."""

RESTORED = "the server was restored to an earlier time, or the comment was changed"


def slot_name(hydration_id: str) -> str:
    """Return the name of a hydration's slot, and of its publication."""
    return PREFIX + hydration_id


def position(text: str) -> LogPosition:
    """Return the position of an LSN."""
    high, _, low = text.partition("/")
    return LogPosition(at=(int(high, 16) << 32) + int(low, 16), text=text)


def lsn(at: int) -> LogPosition:
    """Return the position of an LSN that is known as a number."""
    return LogPosition(at=at, text=f"{at >> 32:X}/{at & 0xFFFFFFFF:X}")


def mark_of(place: LogPosition) -> tuple[str, str]:
    """Return what marks the publication, and the token, as a position of the log has them; empty where it has not.

    The token is in the publication's comment, too, of which a server that was restored since has an older one.
    """
    publication, _, token = place.text.partition(MARK)[2].partition(SIGNED)
    return publication, token


@dataclass(frozen=True, kw_only=True)
class Slot:
    """One slot, and the position of the server's log."""

    name: str
    database: str
    plugin: str | None
    active_pid: int | None
    confirmed: LogPosition | None
    """What was committed before it is not asked for any more."""
    lost: bool
    """The server has removed log that the slot needed."""
    reason: str = ""
    """Why the server has invalidated it, in the server's words; servers before version 17 give none."""
    status: str | None
    """``reserved``, ``extended``, ``unreserved`` or ``lost``."""
    safe_bytes: int | None
    """What may be written until the server gives the slot up; ``None`` where it never does."""
    held_bytes: int
    """Log that the server keeps for the slot."""
    flushed: LogPosition
    """The position up to which the log is safe on the server's disk."""

    def limit(self, most: int | None) -> int | None:
        """Return what may be kept for it: ``most``, or what the server allows itself; ``None`` where nothing bounds it.

        The tighter one of both.
        """
        own = None if self.safe_bytes is None else self.held_bytes + max(0, self.safe_bytes)
        return min((each for each in (most, own) if each is not None), default=None)

    def reach_level(self, most: int | None) -> float:
        """Return the highest of :data:`LEVELS` that it has reached; 0 for none."""
        limit = self.limit(most)
        return max((each for each in LEVELS if limit and self.held_bytes >= each * limit), default=0.0)

    @property
    def unreplayed_bytes(self) -> int:
        """Log that was not confirmed yet. The server may keep more: others' open transactions hold it too."""
        return self.held_bytes if self.confirmed is None else max(0, self.flushed.at - self.confirmed.at)

    @property
    def is_kept(self) -> bool:
        """Whether the server still keeps the log for it, so that it can be replayed."""
        return not self.lost and self.confirmed is not None and self.plugin == PLUGIN

    def endangers(self, most: int | None) -> bool:
        """Whether as much as ``most`` was not replayed, or the server is about to give it up, or has done so."""
        if self.lost or self.status in ("unreserved", "lost") or (most is not None and self.unreplayed_bytes >= most):
            return True
        return self.safe_bytes is not None and self.safe_bytes < MARGIN * (self.safe_bytes + self.held_bytes)


def describe_loss(slot: Slot | None, name: str, *, gone: str, removed: str) -> str:
    """Return the first part of an error: the server no longer keeps the log.

    It names ``gone`` where the slot is missing, and the log that was ``removed`` and the setting or the server's reason
    where the server has invalidated it.
    """
    if slot is None:
        return f"The replication slot {name} is gone, and with it {gone}"
    cause = _LIMITS.get(slot.reason, slot.reason)
    return f"The replication slot {name} was invalidated: the server no longer keeps log {removed} ({cause})"


def find_slot(session: Session, name: str) -> Slot | None:
    """Return the database's slot of this name, or ``None``."""
    own = sql.SQL("{} WHERE s.slot_name = %s AND s.database = current_database()")
    rows = session.rows(own.format(_SLOTS), (name,))
    return _slot(rows[0]) if rows else None


def slots_of_ours(session: Session) -> list[Slot]:
    """Return every slot of the database whose name says that it is of this product."""
    query = sql.SQL("{} WHERE starts_with(s.slot_name, %s) AND s.database = current_database() ORDER BY 1")
    return [_slot(row) for row in session.rows(query.format(_SLOTS), (PREFIX,))]


def publications_of_ours(session: Session) -> list[str]:
    """Return every publication of the database whose name says that it is of this product."""
    return [row[0] for row in session.rows(_PUBLICATIONS, (PREFIX,))]


def find_pinning(session: Session, slot: Slot) -> int | None:
    """Return the pid of the oldest open transaction, if that holds most of the slot's log, otherwise ``None``.

    What was confirmed is not needed any more, but the server keeps the log from the oldest transaction on.
    """
    if slot.confirmed is None or slot.flushed.at - slot.confirmed.at > slot.held_bytes / 2:
        return None
    rows = session.rows(OLDEST)
    return int(rows[0][0]) if rows else None


def drop_slot(connection: Connection, name: str) -> None:
    """Remove a slot, also from under its reader; do nothing where there is none."""
    connection.execute(_END_READER, (name,))
    connection.execute(_DROP, (name,))


def drop_publication(connection: Connection, name: str) -> None:
    """Remove a publication; nothing where there is none."""
    connection.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(name)))


def _slot(row: tuple[Any, ...]) -> Slot:
    name, database, plugin, pid, confirmed, lost, reason, status, safe, held, flushed = row
    return Slot(
        name=name,
        database=database,
        plugin=plugin,
        active_pid=pid,
        confirmed=None if confirmed is None else position(confirmed),
        lost=lost,
        reason=reason,
        status=status,
        safe_bytes=None if safe is None else int(safe),
        held_bytes=int(held or 0),
        flushed=position(flushed),
    )


_SLOTS = sql.SQL(
    """
    SELECT s.slot_name::text, s.database::text, s.plugin::text, s.active_pid, s.confirmed_flush_lsn::text,
           s.restart_lsn IS NULL OR coalesce(s.wal_status = 'lost', false),
           coalesce(to_jsonb(s) ->> 'invalidation_reason', ''), s.wal_status, s.safe_wal_size,
           pg_wal_lsn_diff(pg_current_wal_flush_lsn(), s.restart_lsn), pg_current_wal_flush_lsn()::text
    FROM pg_replication_slots s
    """
)
OLDEST = sql.SQL(
    "SELECT pid FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid() ORDER BY xact_start"
    " LIMIT 1"
)
"""The session with the oldest transaction that writes; another role's is seen with the right to all statistics."""
_PUBLICATIONS = sql.SQL("SELECT pubname::text FROM pg_publication WHERE starts_with(pubname, %s) ORDER BY 1")
_END_READER = sql.SQL(
    "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots"
    " WHERE slot_name = %s AND active_pid IS NOT NULL"
)
_DROP = sql.SQL("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s")
