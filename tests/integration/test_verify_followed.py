"""W8: a table that is followed is compared with its source by value, while it changes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_backpressure.connectors.postgres.sink.comparison_snapshot import PostgresTargetMoment
from airflow_provider_backpressure.connectors.postgres.source.comparison_snapshot import PostgresMoment
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.ports import Runner
from airflow_provider_backpressure.core.verification import followed_table_comparison as followed_module
from airflow_provider_backpressure.core.verification.mismatch_report import Report
from airflow_provider_backpressure.core.verification.verifier import Verify
from airflow_provider_backpressure.exceptions import LedgerRefused, LogLost
from dev.services import Services
from tests.conftest import fresh_database
from tests.support.catching_up import FILL, TABLE, Followed, Watch, Writer, follow
from tests.support.composed import Composed
from tests.support.ledgers import new_ledger
from tests.support.local_runner import LocalRunner
from tests.support.standby import Standby

pytestmark = [pytest.mark.integration, pytest.mark.in_process, pytest.mark.statement("W8")]
ROWS = 6000


@pytest.fixture
def followed(
    hydration: Composed, runner: Runner, logins: dict[str, Endpoint], monkeypatch: pytest.MonkeyPatch
) -> Followed:
    """``public.t`` into ``raw.t``, copied and caught up; it is compared in ranges of 1,000 rows."""
    monkeypatch.setattr(followed_module, "ROWS", 1000)
    made = follow(hydration, runner, logins)
    made.source(TABLE, "ALTER TABLE t ALTER doc SET STORAGE EXTERNAL", FILL.format(ROWS), "ANALYZE t")
    # The log leaves this value out where it does not change.
    made.source("UPDATE t SET doc = repeat('x', 9000) WHERE id = 2500")
    made.go()
    return made


def verify(followed: Followed) -> Report:
    """Compare by value."""
    with followed.ports() as ports:
        return ports.verifier().verify(ports.ledger.ranges(ports.plan.plan_id), Verify.FULL)


def test_equal_tables_are_found_equal_whatever_comes_behind_the_frontier(followed: Followed) -> None:
    """W8: rows that are changed, moved between ranges, deleted and new, by transactions that the target lacks."""
    report = verify(followed)
    assert report.equal
    assert (report.ranges >= 5, report.rows) == (True, ROWS)
    followed.source(
        "UPDATE t SET v = v + 1 WHERE id % 3 = 0",
        "UPDATE t SET doc = repeat('x', 9000) WHERE id IN (5, 2005)",
        "UPDATE t SET id = id + 3000 WHERE id < 100 AND id NOT IN (SELECT id - 3000 FROM t)",
        "UPDATE t SET id = -id WHERE id BETWEEN 4000 AND 4100",
        "DELETE FROM t WHERE id BETWEEN 5000 AND 5100",
        "INSERT INTO t SELECT g, 7, 'd', 'n' FROM generate_series(50000, 50300) g",
    )
    # Values that are not in the log are those of the target.
    followed.source("UPDATE t SET v = 9, id = id + 70000 WHERE id IN (5, 2005)")
    report = verify(followed)
    assert report.mismatches == ()
    assert report.rows == followed.source("SELECT count(*) FROM t")[0][0]
    followed.source("TRUNCATE t", FILL.format(300))
    assert verify(followed).equal
    followed.go()
    assert followed.differs() == (0, 0)
    assert verify(followed).equal


@pytest.mark.parametrize(
    "falsify",
    [
        "UPDATE raw.t SET v = -1 WHERE id = 2500",
        "DELETE FROM raw.t WHERE id = 2500",
        "INSERT INTO raw.t VALUES (-5, 0, 'd', 'n')",
        "UPDATE raw.t SET id = 99000 WHERE id = 2500",
        "UPDATE raw.t SET doc = NULL WHERE id = 2500",
    ],
)
def test_a_row_that_is_wrong_in_the_target_is_found_and_its_range_named(followed: Followed, falsify: str) -> None:
    """W8: also where other rows of the range, or other columns of the row, change meanwhile."""
    followed.source("UPDATE t SET v = v + 1 WHERE id < 3000 AND id <> 2500")
    followed.sink(falsify)
    report = verify(followed)
    named = [mismatch.sentence for mismatch in report.mismatches]
    assert len(named) == (2 if "99000" in falsify else 1)
    assert all(sentence.startswith("range ") and "(id [" in sentence for sentence in named)
    # A value that the log leaves out is the target's, and so is its fault.
    followed.source("UPDATE t SET v = v + 1 WHERE id = 2500")
    assert bool(verify(followed).mismatches) == ("v = -1" not in falsify)


def test_rows_that_lack_a_part_of_their_key_in_the_target_are_found(
    hydration: Composed, runner: Runner, logins: dict[str, Endpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    """W8: by a comparison of keys such a row is neither within a bound nor behind it."""
    monkeypatch.setattr(followed_module, "ROWS", 1000)
    made = follow(hydration, runner, logins)
    made.source(
        "CREATE TABLE t (a int, b int, v int, PRIMARY KEY (a, b))",
        "INSERT INTO t SELECT g / 4000, g % 4000, 0 FROM generate_series(0, 7999) g",
        "ANALYZE t",
    )
    made.sink("CREATE SCHEMA raw", "CREATE TABLE raw.t (a int, b int, v int, UNIQUE (a, b))")
    made.go()
    report = verify(made)
    assert (report.equal, report.rows) == (True, 8000)
    # Every bound begins with one of these.
    made.sink("INSERT INTO raw.t VALUES (1, NULL, 5)")
    (mismatch,) = verify(made).mismatches
    assert mismatch.sentence == "b is NULL: the target holds 1 rows, and the source 0"
    made.sink("UPDATE raw.t SET a = NULL, b = 3 WHERE b IS NULL")
    (mismatch,) = verify(made).mismatches
    assert mismatch.sentence.startswith("a is NULL: ")
    made.sink("DELETE FROM raw.t WHERE a IS NULL")
    assert verify(made).equal


def test_a_table_under_a_writer_is_equal_and_a_fault_in_it_is_found(followed: Followed) -> None:
    """W8: 500 changes a second; neither a lock nor a long transaction in the source."""
    writer, seen = Writer(endpoint=followed.composed.source, seed=7, keys=ROWS), Watch(followed.composed.source)
    with writer.writing(), seen.watching():
        for _ in range(4):
            assert verify(followed).mismatches == ()
        followed.sink("INSERT INTO raw.t VALUES (-17, 0, 'd', 'n')")
        for _ in range(2):
            (mismatch,) = verify(followed).mismatches
            assert "id [, " in mismatch.sentence
        followed.sink("DELETE FROM raw.t WHERE id = -17")
        assert verify(followed).equal
    assert writer.changes > 200
    seen.check(seconds=30.0)


def test_windows_go_in_while_ranges_are_compared(followed: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    """W8: the target's snapshot keeps its frontier; the log that goes with it is found missing, and asked for again."""
    monkeypatch.setattr(followed_module, "TURN_SECONDS", 0.0)
    monkeypatch.setattr(followed_module, "LOG_SHARE", 0)
    real, lost = PostgresMoment.changes, []

    def changes(self: PostgresMoment, start: Any, key: Any) -> Iterator[list[bytes]]:
        if len(lost) < 3:
            followed.source(f"UPDATE t SET v = v + {len(lost)} WHERE id < 50")
            # The second run lets the server forget the log of the first.
            followed.go()
            followed.source("UPDATE t SET v = 4 WHERE id = 7")
            followed.go()
        try:
            yield from real(self, start, key)
        except LogLost as error:
            lost.append(error)
            raise

    monkeypatch.setattr(PostgresMoment, "changes", changes)
    assert verify(followed).equal
    assert len(lost) == 3


@pytest.mark.parametrize("statement", ["TRUNCATE t", "VACUUM FULL t"])
def test_a_table_that_is_rewritten_is_compared_in_a_later_snapshot(
    followed: Followed, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    """W8: in the snapshot of before a truncated table looks empty."""
    real, done = PostgresTargetMoment.bring, []

    def bring(self: PostgresTargetMoment, changes: Any) -> int:
        found = real(self, changes)
        if not done:
            done.append(statement)
            followed.source(statement)
        return found

    monkeypatch.setattr(PostgresTargetMoment, "bring", bring)
    monkeypatch.setattr(followed_module, "PAUSE_SECONDS", 0.0)
    assert verify(followed).equal


def test_a_table_that_has_not_caught_up_is_refused(followed: Followed) -> None:
    """W8: it would differ where it only is late."""
    followed.sink("UPDATE raw.backpressure_commit SET read_at = '9000000000000000 1FF973/CAFA8000'")
    with pytest.raises(LedgerRefused, match="consistent from"):
        verify(followed)


def test_a_commit_that_is_in_the_log_before_readers_see_it_is_no_difference(services: Services, tmp_path: Path) -> None:
    """W8: what the snapshot sees counts, not the position of the log."""
    server = services.up("postgres:sync")["postgres:sync"]
    with fresh_database(server) as database, Standby(database=database).held():
        composed = Composed(
            source=database,
            sink=database,
            ledger_url=new_ledger(tmp_path / "ledger.db"),
            remote="",
            table="public.t",
            target="raw.t",
        )
        logins: dict[str, Endpoint] = {}
        made = follow(composed, LocalRunner(logins=logins), logins)
        made.source(TABLE, FILL.format(300))
        made.go()
        with Standby(database=database).committing("UPDATE t SET v = 55 WHERE id = 8"):
            made.source("UPDATE t SET v = 66 WHERE id = 9")
            assert verify(made).mismatches == ()
        assert verify(made).mismatches == ()
