"""``catch_up`` from MySQL on real parts: ranges read each at its own time, then the binlog replayed until all agree."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_backpressure.core.config import Budget, NewColumn
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.gate.hydration_record import Phase
from airflow_provider_backpressure.core.planning.plan_result import Verdict
from airflow_provider_backpressure.core.ports import Runner
from airflow_provider_backpressure.core.snapshot.replay_window import ReplayWindow
from airflow_provider_backpressure.exceptions import LedgerRefused, LogLost, SourceRefused
from dev.services import Services
from tests import types_mysql as typed
from tests.conftest import endpoint_of
from tests.support.catching_up import check_added_column
from tests.support.composed import Composed
from tests.support.mysql import fresh_database
from tests.support.mysql_catching_up import FILL, TABLE, FollowedMySQL, MySQLWriter
from tests.support.postgres import run
from tests.support.server_images import Image

pytestmark = [pytest.mark.integration, pytest.mark.in_process]
RESTORED = "mysql:restored"


@pytest.fixture
def followed(
    mysql_database: Endpoint,
    database: Endpoint,
    runner: Runner,
    logins: dict[str, Endpoint],
    hydration: Composed,
) -> FollowedMySQL:
    """``t`` into ``raw.t``."""
    logins.update({"source": replace(mysql_database, conn_id="source"), "sink": replace(database, conn_id="sink")})
    composed = replace(
        hydration,
        source=mysql_database,
        kind="mysql",
        table="t",
        mode="upsert",
        consistency="catch_up",
        budget=Budget(credits=2, range_rows=2000),
    )
    return FollowedMySQL(composed=composed, runner=runner)


@pytest.mark.statement("T8")
def test_a_table_that_changes_while_it_is_read_has_caught_up_in_the_end(followed: FollowedMySQL) -> None:
    """T8, D5: hydrated if and only if the frontier has reached what was read last."""
    followed.source(TABLE, FILL.format(10_000), "ANALYZE TABLE t")
    planned = followed.plan()
    assert planned.verdict is Verdict.PLANNED
    assert planned.ranges >= 4
    assert planned.plan.read.since == planned.plan.position
    followed.source("UPDATE t SET v = 2 WHERE id <= 10")
    with followed.ports() as ports:
        ports.hydrator().run()
        followed.source("UPDATE t SET v = 1 WHERE id <= 3000", "DELETE FROM t WHERE id > 9000")
        followed.source("UPDATE t SET id = id + 100000 WHERE id BETWEEN 4000 AND 4100")
        with pytest.raises(LedgerRefused, match="consistent from"):
            followed.finish()
        assert ports.planner().follow()
        window = ReplayWindow.from_window(ports.plan.read.window)
        assert window is not None
        assert window.first
        assert window.hydrating
        assert ports.plan.unit == "transactions"
        ports.hydrator().run()
        assert not ports.planner().follow()
    assert followed.finish().phase is Phase.STEADY_STATE
    assert followed.differs() == (0, 0)
    followed.source(
        "INSERT INTO t VALUES (20000, 7, NULL, '')", "DELETE FROM t WHERE id = 1", "UPDATE t SET v = 9 WHERE id = 2"
    )
    assert followed.go().verdict is Verdict.PLANNED
    assert followed.differs() == (0, 0)
    assert followed.plan().verdict is Verdict.UNCHANGED


@pytest.mark.long
def test_a_writer_at_random_and_the_target_is_the_source_when_it_pauses(followed: FollowedMySQL) -> None:
    """Inserts, updates, deletes, other keys, long transactions and rollbacks, all the time."""
    followed.source(TABLE, FILL.format(20_000), "ANALYZE TABLE t")
    with MySQLWriter(followed.composed.source, seed=7, keys=20_000).writing() as writer:
        followed.go()
        for _ in range(3):
            followed.go()
    followed.go()
    assert writer.changes > 100
    assert followed.differs() == (0, 0)


@pytest.mark.statement("T9")
def test_a_lost_ledger_finds_its_place_in_the_binlog(followed: FollowedMySQL, tmp_path: Path) -> None:
    """T9: from the GTIDs of the target's frontier on, under the id that the hydration had, one window in of several."""
    small = replace(followed.composed, budget=Budget(credits=2, range_rows=1000, range_bytes=2**16))
    followed = replace(followed, composed=small)
    followed.source(TABLE, FILL.format(3000), "ANALYZE TABLE t")
    followed.go()
    followed.source("UPDATE t SET v = 1", "DELETE FROM t WHERE id > 2900", "FLUSH BINARY LOGS")
    followed.source("UPDATE t SET v = 2 WHERE id < 2000", "FLUSH BINARY LOGS", "UPDATE t SET id = -id WHERE id < 1000")
    assert followed.plan().ranges > 2
    followed.stopped(1)
    with followed.ports() as ports:
        known, plan = ports.hydration, ports.plan
        there = ports.sink.markers(plan.plan_id)
    followed = followed.without_ledger(tmp_path)
    followed.source("UPDATE t SET v = 3 WHERE id = 1500")
    planned = followed.plan()
    assert planned.verdict is Verdict.RESUMED
    assert (planned.hydration.id, planned.hydration.phase) == (known.id, Phase.REHYDRATION)
    assert planned.plan.plan_id == plan.plan_id
    assert len(there) == 1
    assert "1 of 2 ranges are committed" in planned.note, "what is left is one window again, small as it is"
    followed.drain()
    with followed.ports() as ports:
        now = ports.sink.markers(plan.plan_id)
        assert {name: now[name] for name in there} == there, "what was in is not brought again"
    assert followed.finish().phase is Phase.STEADY_STATE
    followed.go()
    assert followed.differs() == (0, 0)


@pytest.mark.statement("X4")
def test_every_type_is_replayed_as_it_is_read(followed: FollowedMySQL) -> None:
    """X4: the same rows by ranges and by the log: each value is the one written down."""
    made, *filled = typed.statements("t")
    followed.source(made, *filled[: len(filled) // 2])
    followed.go()
    followed.source(*filled[len(filled) // 2 :], "UPDATE t SET id = id")
    followed.source("UPDATE t SET id = id + 1000", "UPDATE t SET id = id - 1000")
    followed.go()
    for name, (_, shown) in typed.expected().items():
        there = [value for (value,) in run(followed.composed.sink, f'SELECT "{name}"::text FROM raw.t ORDER BY id')]
        assert there == shown, name


@pytest.mark.statement("X6")
def test_a_column_that_is_added_is_followed(followed: FollowedMySQL) -> None:
    """X6: by policy, behind changes of before it came; one that gave rows a value the log does not tell of is not."""
    check_added_column(followed, TABLE, FILL.format(300))


@pytest.mark.statement("X6")
def test_a_column_that_windows_have_passed_over_is_not_added(followed: FollowedMySQL) -> None:
    """X6: its values are in a part of the log that is not replayed again, so they would stay NULL."""
    followed.source(TABLE, FILL.format(300))
    followed.plan()
    followed.source("ALTER TABLE t ADD c varchar(9)", "INSERT INTO t VALUES (9000, 1, NULL, 'n', 'x')")
    followed.drain()
    followed.finish()
    followed.source("UPDATE t SET v = 1 WHERE id = 1")
    words = r'column c was there already, and changes of it were left out[^\n]*"backpressure": "restart"'
    with followed.ports() as ports, pytest.raises(SourceRefused, match=words):
        replace(ports.planner(), on_new_column=NewColumn.ADD).plan()


def test_a_truncated_table_is_emptied_and_another_table_stops_it(followed: FollowedMySQL) -> None:
    """What the log says of the table as a whole is answered, or named."""
    followed.source(TABLE, FILL.format(100))
    followed.go()
    followed.source("TRUNCATE TABLE t", "INSERT INTO t VALUES (5, 5, NULL, NULL)", "ALTER TABLE t ADD INDEX (v)")
    followed.source("CREATE TABLE IF NOT EXISTS t (id bigint)")
    followed.go()
    assert followed.sink("SELECT id FROM raw.t") == [(5,)]
    followed.source("ALTER TABLE t MODIFY note varchar(30)", "ALTER TABLE t MODIFY note varchar(20)")
    followed.plan()
    with pytest.raises(SourceRefused, match=r'another table \(.ALTER TABLE t MODIFY[^\n]*"backpressure": "restart"'):
        followed.drain()
    followed.source("DELETE FROM t")
    assert followed.plan(restart=True).verdict is Verdict.PLANNED
    followed.drain()
    followed.finish()
    assert followed.differs() == (0, 0)


@pytest.mark.statement("W7")
def test_another_table_and_an_index_of_the_key_are_told_apart_from_what_is_harmless(followed: FollowedMySQL) -> None:
    """W7: a name that differs in case is another table; while the key's index is away, two rows may have one key."""
    unique = TABLE.replace("PRIMARY KEY", "NOT NULL UNIQUE")
    followed.source(
        unique, FILL.format(100), "CREATE TABLE T (id int PRIMARY KEY)", "ALTER TABLE t ADD INDEX other (v)"
    )
    followed.go()
    followed.source("TRUNCATE TABLE T", "DROP TABLE T")
    followed.plan()
    with pytest.raises(SourceRefused, match="another table"):
        followed.drain()
    followed.plan(restart=True)
    followed.drain()
    followed.finish()
    assert followed.differs() == (0, 0)


def test_a_log_that_was_removed_stops_it_and_says_what_to_do(followed: FollowedMySQL) -> None:
    followed.source(TABLE, FILL.format(100))
    followed.go()
    followed.source("DELETE FROM t WHERE id = 7", "FLUSH BINARY LOGS", "DELETE FROM t WHERE id = 8")
    file = followed.source("SHOW MASTER STATUS")[0][0]
    followed.source(f"PURGE BINARY LOGS TO '{file}'")
    with pytest.raises(LogLost, match=r'binlog_expire_logs_seconds[^\n]*"backpressure": "restart"'):
        followed.plan()
    followed.plan(restart=True)
    followed.drain()
    followed.finish()
    assert followed.differs() == (0, 0)


@pytest.fixture
def restorable(followed: FollowedMySQL, services: Services, logins: dict[str, Endpoint]) -> Iterator[FollowedMySQL]:
    """``t`` in a server of its own, in ranges of 20 rows."""
    server = endpoint_of(services.up(RESTORED)[RESTORED], "mysql")
    with fresh_database(server) as source:
        logins["source"] = replace(source, conn_id="source")
        budget = Budget(credits=1, range_rows=20)
        yield replace(followed, composed=replace(followed.composed, source=source, budget=budget))
    services.down(RESTORED, remove=True)


@pytest.mark.statement("X3")
@pytest.mark.parametrize("ranges", [2, 5], ids=["some ranges", "all ranges"])
def test_a_source_that_was_restored_while_its_ranges_were_read_is_noticed(
    restorable: FollowedMySQL, services: Services, tmp_path: Path, ranges: int
) -> None:
    """An image of the disk has the server's own number, and it gives the numbers of lost transactions to others."""
    followed = restorable
    followed.source(TABLE, FILL.format(100))
    assert followed.plan().ranges == 5
    ((folder,),) = followed.source("SELECT @@datadir")
    image = Image.take(services, RESTORED, folder.rstrip("/"), tmp_path / "image")
    followed.source(*[f"UPDATE t SET v = {value}" for value in range(1, 6)])
    followed.stopped(ranges)
    image.restore()
    followed.source(*[f"UPDATE t SET note = 'n{value}' WHERE id > 90" for value in range(1, 20)])
    for _ in range(2):
        with pytest.raises(LogLost, match="another binlog than the one that was read up to"):
            followed.go()
    followed.plan(restart=True)
    followed.drain()
    followed.finish()
    assert followed.differs() == (0, 0)
