"""What a comparison may ask of the source's log, and who goes first."""

from collections.abc import Iterator
from threading import Lock
from typing import Any

import psycopg
import pytest

from airflow_provider_backpressure.connectors.postgres.source import change_log
from airflow_provider_backpressure.connectors.postgres.source import comparison_snapshot as moments
from airflow_provider_backpressure.connectors.postgres.source.change_log import PostgresLog
from airflow_provider_backpressure.connectors.postgres.source.comparison_snapshot import PostgresMoment
from airflow_provider_backpressure.connectors.postgres.source.snapshot_keeper import SnapshotKeeper
from airflow_provider_backpressure.connectors.postgres.tasks import changes
from airflow_provider_backpressure.connectors.postgres.tasks.changes import LogChanges
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.bounds import LogBounds
from airflow_provider_backpressure.core.snapshot.spark_messages import ReadSpec
from airflow_provider_backpressure.exceptions import SnapshotLost, SourceRefused, SourceUnavailable
from tests.unit.connectors.postgres.test_slot_limits import SLOT
from tests.unit.core.planning.test_catch_up_windows import at

pytestmark = pytest.mark.statement("W8")
ENDPOINT = Endpoint(conn_id="p", host="db", port=5432, database="d", user="u", password="")
READ = ReadSpec(kind="postgres", conn_id="p", columns=())


def moment(*, upto: int) -> Any:
    """Return a moment whose snapshot was taken already."""
    made: Any = object.__new__(PostgresMoment)
    made._endpoint, made._read, made._name = ENDPOINT, READ, "bp:verify-1:0.0:1"
    made._said = {"slot": "s", "schema": "public", "table": "t"}
    made._upto, made._seen = at(upto), None
    return made


def test_more_log_than_the_servers_disk_may_take_at_once_is_not_read() -> None:
    """W8: a target whose DAG was paused for weeks; the source is worth more than a comparison."""
    with pytest.raises(SourceRefused, match="are not read to compare"):
        list(moment(upto=moments.MOST_BYTES + 2).changes(at(1), ("id",)))


def test_a_log_that_is_not_read_to_its_end_is_read_again_in_another_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """W8: as where a window took the slot."""

    def ended(self: LogChanges) -> Iterator[list[bytes]]:
        yield [b"some"]
        raise SourceUnavailable("The connection was lost.")

    monkeypatch.setattr(LogChanges, "__iter__", ended)
    with pytest.raises(SnapshotLost, match="not read to its end: The connection was lost"):
        list(moment(upto=9).changes(at(1), ("id",)))


class Server:
    """A connection to a server whose slot is read until its reader is ended."""

    def __init__(self) -> None:
        self.ended: list[Any] = []

    def execute(self, query: str, values: Any) -> "Server":
        if "pg_terminate_backend" in str(query):
            self.ended.append(values)
        return self

    def fetchone(self) -> tuple[str, int | None]:
        return "0/1", None if self.ended else 4711


@pytest.mark.parametrize(("plan", "ends"), [("1f", True), ("verify-2", False)])
def test_a_window_does_not_wait_for_a_comparison_for_long(
    monkeypatch: pytest.MonkeyPatch, plan: str, *, ends: bool
) -> None:
    """W8: which may be that of a frozen process; comparisons wait for each other."""
    monkeypatch.setattr(changes, "YIELD_SECONDS", 0.0)
    monkeypatch.setattr(changes, "FREE_SECONDS", 0.1)
    said, server = {"slot": "s", "schema": "public", "table": "t"}, Server()
    bounds = LogBounds(stream="s", start=at(1), end=at(9))
    read: Any = LogChanges(ENDPOINT, READ, bounds, said, ("id",), f"bp:{plan}:0.0:1")
    if ends:
        read._check(server, f"bp-read:{plan}:0.0:1")
        assert server.ended == [("s", "bp-read:verify-")]
        return
    with pytest.raises(SourceUnavailable, match="one reader"):
        read._check(server, f"bp-read:{plan}:0.0:1")
    assert not server.ended


@pytest.mark.parametrize("cause", [psycopg.errors.ObjectInUse, psycopg.errors.AdminShutdown])
def test_a_slot_that_is_read_is_moved_on_later(monkeypatch: pytest.MonkeyPatch, cause: type[psycopg.Error]) -> None:
    """W8: planning the next windows does not fail while a table is compared."""

    class Away:
        def rows(self, *_: Any) -> list[Any]:
            raise SourceUnavailable("The slot is active.") from cause()

    made: Any = object.__new__(PostgresLog)
    made._session, made.stream = Away(), "s"
    monkeypatch.setattr(change_log, "find_slot", lambda *_: SLOT)
    if cause is psycopg.errors.ObjectInUse:
        made.release(at(5))
        return
    with pytest.raises(SourceUnavailable):
        made.release(at(5))


class Keeping:
    """The connection that keeps a snapshot."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def execute(self, query: bytes | str) -> "Keeping":
        self.said.append(query.decode() if isinstance(query, bytes) else query)
        return self

    def fetchone(self) -> tuple[str]:
        return ("3:9:4",)


def test_a_snapshot_of_a_process_that_is_frozen_does_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """W8: neither killed nor alive, it would keep the source from removing what is deleted, for ever."""
    keeping = Keeping()

    def begin(self: Any, endpoint: Endpoint, *, errors: Any, **_: Any) -> None:
        self._connection, self._lock, self._endpoint, self._errors = keeping, Lock(), endpoint, errors
        self.snapshot = "1"

    monkeypatch.setattr(SnapshotKeeper, "__init__", begin)
    monkeypatch.setattr(moments, "position", lambda *_: str(at(9)))
    made = PostgresMoment(ENDPOINT, READ, '{"slot": "s", "schema": "public", "table": "t"}', None)
    assert keeping.said == [
        "SET LOCAL idle_in_transaction_session_timeout = '4h'",
        "SELECT pg_current_snapshot()::text",
    ]
    assert made.snapshot == "1"
