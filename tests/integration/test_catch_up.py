"""``catch_up`` on real parts: ranges read each at its own time, then the log replayed until all agree."""

import os
import random
import uuid
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from airflow_provider_backpressure.cli.doctor import find_followers, postgres_slots
from airflow_provider_backpressure.connectors.postgres.source import change_log as postgres_log
from airflow_provider_backpressure.connectors.postgres.source.table import PostgresTable
from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.execution.lane_submission import Outcome
from airflow_provider_backpressure.core.failpoints import VARIABLE, Step
from airflow_provider_backpressure.core.gate.hydration_record import Phase
from airflow_provider_backpressure.core.planning.plan_result import Verdict
from airflow_provider_backpressure.core.poll_policy import PollPolicy, SystemClock
from airflow_provider_backpressure.core.ports import Runner
from airflow_provider_backpressure.core.snapshot.replay_window import ReplayWindow
from airflow_provider_backpressure.exceptions import (
    InvalidDeclaration,
    LedgerRefused,
    LogLost,
    RangeFailed,
    SinkRefused,
    SnapshotLost,
    SourceRefused,
    SourceUnavailable,
)
from tests.support.catching_up import FILL, TABLE, Followed, Watch, Writer, check_added_column, follow
from tests.support.composed import Composed
from tests.support.marks import mark_long
from tests.support.postgres import connected, new_role

pytestmark = [pytest.mark.integration, pytest.mark.in_process]
ROWS = int(os.environ.get("BACKPRESSURE_FIRE_ROWS", "2000000"))
"""Of the large test under fire."""


@pytest.fixture
def followed(hydration: Composed, runner: Runner, logins: dict[str, Endpoint]) -> Followed:
    """``public.t`` into ``raw.t``."""
    return follow(hydration, runner, logins)


@pytest.mark.statement("T8")
def test_a_table_that_changes_while_it_is_read_has_caught_up_in_the_end(followed: Followed) -> None:
    """T8, D5: hydrated if and only if the frontier has reached what was read last."""
    followed.source(TABLE, FILL.format(10_000), "ANALYZE t")
    planned = followed.plan()
    assert planned.verdict is Verdict.PLANNED
    assert planned.ranges >= 5
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
        ports.hydrator().run()
        assert not ports.planner().follow()
    assert followed.finish().phase is Phase.STEADY_STATE
    assert followed.differs() == (0, 0)
    followed.source(
        "INSERT INTO t VALUES (20000, 7, NULL, '')", "DELETE FROM t WHERE id = 1", "UPDATE t SET v = 9 WHERE id = 2"
    )
    assert followed.go().verdict is Verdict.PLANNED
    assert followed.differs() == (0, 0)


SPELLED_OTHERWISE = {
    "array_nulls": "off",
    "backslash_quote": "on",
    "bytea_output": "escape",
    "datestyle": "German, DMY",
    "default_transaction_isolation": "serializable",
    "extra_float_digits": "-15",
    "intervalstyle": "sql_standard",
    "quote_all_identifiers": "on",
    "search_path": "nowhere",
    "standard_conforming_strings": "off",
    "timezone": "Asia/Kolkata",
    "transform_null_equals": "on",
    "xmloption": "document",
}
"""Settings of a database under which values are written or read as text in another way."""


@pytest.mark.statement("X4")
def test_no_setting_of_a_database_changes_a_value(followed: Followed) -> None:
    """X4: neither as ranges are copied nor as the log is replayed, whatever sessions of the database begin with."""
    types = {"ta": "text[]", "ia": "int[]", "f": "float8", "b": "bytea", "d": "date", "tz": "timestamptz"}
    types |= {"iv": "interval", "x": "xml", "tza": "timestamptz[]", "ba": "bytea[]", "s": "text", "m": "mood"}
    followed.source(
        "CREATE TYPE mood AS ENUM ('ok')",
        f"CREATE TABLE t (id int PRIMARY KEY, v int, {', '.join(map(' '.join, types.items()))})",
        "INSERT INTO t SELECT g, 0, ARRAY['NULL', NULL, '', 'a\\b'], ARRAY[1, NULL], 0.1::float8 + 0.2, '\\x00ff5c27',"
        " '2024-02-01', '2024-03-31 01:30:00.123456+00', '-1 year +2 mons -3 days 04:05:06.7', 'no document',"
        " ARRAY['2024-03-31 01:30:00+00'::timestamptz, NULL], ARRAY['\\x00ff'::bytea, NULL], 'it''s \\n', 'ok'"
        " FROM generate_series(1, 3000) g",
    )
    for name, value in SPELLED_OTHERWISE.items():
        followed.source(f"ALTER DATABASE \"{followed.composed.source.database}\" SET {name} = '{value}'")
    other = "SELECT count(*), sum(v) FROM public.t JOIN raw.t r USING (id, v) WHERE NOT t *<> r"
    followed.go()
    assert followed.source(other) == [(3000, 0)]
    followed.source("UPDATE public.t SET v = 1")
    followed.go()
    assert followed.source(other) == [(3000, 3000)]


@pytest.mark.statement("X2", "X6", "T10")
@pytest.mark.fault(3, 19)
@pytest.mark.long
def test_a_writer_at_random_a_killed_lane_and_the_target_is_the_source_when_it_pauses(
    followed: Followed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """X2, X6, T10: the lane is killed in mid-commit of a range and of a window; keys are updated meanwhile."""
    followed.source(TABLE, FILL.format(12_000), "ANALYZE t")
    database = followed.composed.source
    with Writer(database, seed=7, keys=12_000).writing() as writer, Watch(database).watching() as watch:
        followed.plan()
        killed_at(followed, tmp_path, Step.BEFORE_LEDGER_COMMIT)
        followed.plan()
        followed.drain()
        assert followed.finish().phase is Phase.STEADY_STATE
        followed.plan()
        killed_at(followed, tmp_path, Step.BEFORE_LEDGER_COMMIT)
        followed.go()
    followed.go()
    assert writer.changes > 50
    assert followed.differs() == (0, 0)
    with capsys.disabled():
        print(f"\n{writer.changes} changes; {watch}")
    watch.check(seconds=60)


def killed_at(followed: Followed, folder: Path, step: Step, number: int = 1) -> None:
    """Let a lane of its own process die at a pass of a step, by a signal that nothing can catch."""
    points = folder / f"points-{uuid.uuid4().hex}"
    points.mkdir()
    (points / "points").write_text(f"{step.value}=kill@{number}")
    assert followed.composed.process(folder, **{VARIABLE: str(points)}).wait(timeout=300) == -9


@pytest.mark.statement("T9", "X2")
@pytest.mark.parametrize("phase", mark_long(Phase, quick=[Phase.STEADY_STATE]))
def test_a_killed_lane_goes_on_in_its_phase(followed: Followed, tmp_path: Path, phase: Phase) -> None:
    """T9, X2: in the middle of any of the three, what is committed stays and no other phase begins."""
    followed.source(TABLE, FILL.format(10_000), "ANALYZE t")
    if phase is Phase.STEADY_STATE:
        followed.go()
        followed.source("UPDATE t SET v = 1 WHERE id < 3000")
    followed.plan()
    if phase is Phase.REHYDRATION:
        followed.stopped(1)
        followed = followed.without_ledger(tmp_path)
        followed.plan()
    with followed.ports() as ports:
        assert ports.hydration.phase is phase
        spans = ports.ledger.spans(ports.hydration.id)
    killed_at(followed, tmp_path, Step.BEFORE_LEDGER_COMMIT)
    resumed = followed.plan()
    assert (resumed.verdict, resumed.hydration.phase) == (Verdict.RESUMED, phase)
    with followed.ports() as ports:
        assert ports.ledger.spans(ports.hydration.id) == spans
    followed.drain()
    assert followed.finish().phase is Phase.STEADY_STATE
    assert followed.differs() == (0, 0)


def test_a_later_run_does_not_look_through_the_table(followed: Followed) -> None:
    """What has changed stands in the log, and how much there is in all was counted once."""
    followed.source(TABLE, FILL.format(5_000), "ANALYZE t")
    followed.go()
    before = scans(followed)
    assert before
    followed.source("INSERT INTO t VALUES (9000, 1, NULL, 'new')")
    assert followed.go().verdict is Verdict.PLANNED
    assert scans(followed) == before


def scans(followed: Followed) -> int:
    """Return how often the source's table was looked through, once all sessions have told so by their end."""
    others = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'"
        " AND pid <> pg_backend_pid()"
    )
    assert PollPolicy(maximum=0.1).until(
        lambda: followed.source(others)[0][0] == 0 or None, timeout=30, clock=SystemClock()
    )
    ((found,),) = followed.source(
        "SELECT seq_scan + idx_scan FROM pg_stat_user_tables WHERE relid = 'public.t'::regclass"
    )
    return found


@pytest.mark.statement("T10")
def test_windows_of_the_log_wait_at_the_gate(followed: Followed) -> None:
    """T10: in the steady state nothing is brought past a person's pause, nor more than one window at a time."""
    followed.source(TABLE, FILL.format(3_000), "ANALYZE t")
    followed.go()
    followed.source("ALTER TABLE t ALTER doc SET STORAGE EXTERNAL")
    followed.source("UPDATE t SET doc = repeat(md5(random()::text), 150) WHERE id <= 700")
    followed = replace(followed, composed=replace(followed.composed, budget=Budget(credits=2, range_bytes=2**20)))
    assert followed.plan().ranges > 2
    before = followed.sums()[1]
    with followed.ports() as ports:
        ports.ledger.pause(ports.hydration.id, who="ada")
        paused = replace(ports.hydrator(), inline_wait=0.3)
        assert paused.run().outcome is Outcome.CLOSED
        assert followed.sums()[1] == before
        assert {each.attempt for each in ports.ledger.ranges(ports.plan.plan_id)} == {0}
        ports.ledger.resume(ports.hydration.id, who="ada")
        hydrator, most = ports.hydrator(), []
        hydrator.on_commit = lambda: most.append(ports.ledger.gate(ports.hydration.id).in_flight)
        assert hydrator.run().outcome is Outcome.DONE
    assert set(most) <= {0, 1}
    followed.finish()
    assert followed.differs() == (0, 0)


@pytest.mark.statement("X5")
@pytest.mark.parametrize(
    ("statements", "words"),
    [
        (["CREATE TABLE t (id int, v int)"], "cannot be cut into ranges of a key"),
        (["CREATE UNLOGGED TABLE t (id int PRIMARY KEY)"], "unlogged"),
        (["CREATE TABLE t (id int NOT NULL UNIQUE, v int)"], "lacks a primary key"),
        (["CREATE TABLE t (id int PRIMARY KEY)", "ALTER TABLE t REPLICA IDENTITY NOTHING"], "usable replica identity"),
        (["CREATE TABLE t (id int PRIMARY KEY DEFERRABLE)"], "lacks a primary key that is not deferrable"),
        (
            ["CREATE TABLE t (id int PRIMARY KEY DEFERRABLE)", "ALTER TABLE t REPLICA IDENTITY FULL"],
            "lacks a key of its rows that is not deferrable",
        ),
        (["CREATE TABLE t (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id + 1) VIRTUAL)"], "generated g is not in"),
        (["CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id)"], "partitioned table"),
    ],
)
def test_what_cannot_be_replayed_is_refused_before_anything_is_made(
    followed: Followed, statements: list[str], words: str
) -> None:
    """X5, FINEPRINT 15: our publication could break the user's application, so it is never made for such a table."""
    followed.source(*statements)
    with pytest.raises(SourceRefused, match=words):
        followed.plan()
    assert followed.slots() == []
    assert followed.source("SELECT FROM pg_publication") == []


EXCHANGE = [f"ALTER TABLE t RENAME {old} TO {new}" for old, new in (("v", "x"), ("w", "v"), ("x", "w"))]
"""Two columns of one type get each other's name: done twice, nothing is left of it but in the log."""


@pytest.mark.statement("X5")
@pytest.mark.statement("X6")
@pytest.mark.parametrize(
    ("there", "back", "words"),
    [
        (
            ["CREATE UNIQUE INDEX by_v ON t (v)", "ALTER TABLE t REPLICA IDENTITY USING INDEX by_v"],
            ["ALTER TABLE t REPLICA IDENTITY DEFAULT"],
            "did not have id in its replica identity",
        ),
        (["ALTER TABLE t ALTER v TYPE oid"], ["ALTER TABLE t ALTER v TYPE int"], "had v of another type"),
        (
            ["ALTER TABLE t ALTER n TYPE numeric(12,4)"],
            ["ALTER TABLE t ALTER n TYPE numeric(10,2)"],
            "column n was altered and the table was rewritten",
        ),
        (["ALTER TABLE t ALTER n TYPE numeric(12,4)"], [], "n was numeric.10,2. and is numeric.12,4."),
        (EXCHANGE, EXCHANGE, "had v as the name of another column, and had w as the name of another column"),
    ],
)
def test_a_table_that_was_another_for_a_while_is_not_replayed(
    followed: Followed, there: list[str], back: list[str], words: str
) -> None:
    """X6: what was logged meanwhile would lack a deleted row's key, or hold values that the target cannot."""
    followed.source("CREATE TABLE t (id int PRIMARY KEY, v int NOT NULL, n numeric(10,2), w int)")
    followed.source("INSERT INTO t SELECT i, i, i FROM generate_series(1, 100) i", "ANALYZE t")
    followed.go()
    followed.source(*there, "DELETE FROM t WHERE id = 7", "UPDATE t SET n = n + 0.0049 WHERE id = 8", *back)
    with pytest.raises((SourceRefused, RangeFailed), match=words):
        followed.go()
    assert followed.sink("SELECT count(*) FROM raw.t") == [(100,)]


@pytest.mark.statement("X6")
def test_a_column_that_is_added_is_followed(followed: Followed) -> None:
    """X6: by policy, behind changes of before it came; one that gave rows a value the log does not tell of is not."""
    check_added_column(followed, TABLE, FILL.format(300), "ANALYZE t")


def test_a_target_that_cannot_follow_is_refused(followed: Followed, caplog: pytest.LogCaptureFixture) -> None:
    """X5: another mode, other unique keys, rows that are there already. A trigger behind the rows is named."""
    followed.source("CREATE TABLE t (id int PRIMARY KEY, v int)")
    with pytest.raises(InvalidDeclaration, match="mode='upsert'"):
        replace(followed, composed=replace(followed.composed, mode="append")).plan()
    followed.sink("CREATE SCHEMA raw", "CREATE TABLE raw.t (id int PRIMARY KEY, v int UNIQUE)")
    with pytest.raises(SinkRefused, match="t_v_key may be broken"):
        followed.plan()
    followed.sink(
        "ALTER TABLE raw.t DROP CONSTRAINT t_v_key",
        "CREATE FUNCTION raw.skip() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
        "CREATE TRIGGER skips BEFORE DELETE ON raw.t FOR EACH ROW EXECUTE FUNCTION raw.skip()",
        "CREATE RULE keeps AS ON DELETE TO raw.t DO INSTEAD NOTHING",
    )
    with pytest.raises(SinkRefused, match=r"trigger skips may change or drop rows .* rule keeps replaces"):
        followed.plan()
    followed.sink(
        "DROP TRIGGER skips ON raw.t",
        "DROP RULE keeps ON raw.t",
        "INSERT INTO raw.t VALUES (1, 1)",
        "CREATE TRIGGER audits AFTER INSERT ON raw.t FOR EACH ROW EXECUTE FUNCTION raw.skip()",
    )
    caplog.clear()
    with pytest.raises(SinkRefused, match="empty it first"):
        followed.plan()
    assert "a range fails where one of them changes rows of the table itself" in caplog.text
    assert followed.slots() == []


@pytest.mark.parametrize("initially", ["DEFERRED", "IMMEDIATE"])
def test_a_target_whose_trigger_changes_its_rows_is_not_followed(followed: Followed, initially: str) -> None:
    """Already with the ranges before the log; one that waits for the commit, or can be made to, is refused before."""
    followed.source("CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1, 1), (2, 2)", "ANALYZE t")
    followed.sink(
        "CREATE SCHEMA raw",
        "CREATE TABLE raw.t (id int PRIMARY KEY, v int)",
        "CREATE FUNCTION raw.more() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN UPDATE raw.t SET v = v + 1 WHERE id = NEW.id; RETURN NULL; END'",
        f"CREATE CONSTRAINT TRIGGER more AFTER INSERT ON raw.t DEFERRABLE INITIALLY {initially}"
        " FOR EACH ROW EXECUTE FUNCTION raw.more()",
    )
    with pytest.raises(SinkRefused, match="trigger more may change or drop rows"):
        followed.plan()
    followed.sink(
        "DROP TRIGGER more ON raw.t",
        "CREATE TRIGGER more AFTER INSERT ON raw.t FOR EACH ROW EXECUTE FUNCTION raw.more()",
    )
    with pytest.raises(RangeFailed, match=r"changed 2 rows of raw\.t, and a trigger or rule changed 2 more there"):
        followed.go()
    assert followed.sink("SELECT count(*) FROM raw.t") == [(0,)]


TRIGGER = """
    CREATE TRIGGER late BEFORE INSERT OR UPDATE ON raw.t FOR EACH ROW EXECUTE FUNCTION raw.skip()
"""
RULE = "CREATE RULE late AS ON DELETE TO raw.t DO INSTEAD NOTHING"


@pytest.mark.statement("X5")
@pytest.mark.parametrize(
    ("come", "gone", "begun"),
    [
        (TRIGGER, "DROP TRIGGER late ON raw.t", True),
        (TRIGGER, "DROP TRIGGER late ON raw.t", False),
        (RULE, "DROP RULE late ON raw.t", True),
    ],
)
def test_what_comes_to_a_target_behind_the_plan_stops_the_range_and_the_window(
    come: str, gone: str, begun: bool, followed: Followed
) -> None:
    """X5: a trigger or rule that drops rows; nothing is lost once it is dropped."""
    followed.source(
        "CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t SELECT i, i FROM generate_series(1, 9) i"
    )
    followed.sink(
        "CREATE SCHEMA raw",
        "CREATE TABLE raw.t (id int PRIMARY KEY, v int)",
        "CREATE FUNCTION raw.skip() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
    )
    if begun:
        followed.go()
        followed.source("UPDATE t SET v = -1 WHERE id < 4", "DELETE FROM t WHERE id = 7")
    followed.plan()
    followed.sink(come)
    with pytest.raises(SinkRefused, match=r"late of raw\.t came since the plan was made"):
        followed.drain()
    followed.sink(gone)
    followed.drain()
    followed.finish()
    assert followed.differs() == (0, 0)


@pytest.mark.statement("X5")
def test_a_trigger_that_fires_for_replicas_only_is_seen_where_it_fires(followed: Followed) -> None:
    """X5: loaders often have ``session_replication_role = replica``, so that no other trigger fires."""
    followed.source("CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1, 1)")
    followed.sink(
        "CREATE SCHEMA raw",
        "CREATE TABLE raw.t (id int PRIMARY KEY, v int)",
        "CREATE FUNCTION raw.skip() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
        TRIGGER,
        "ALTER TABLE raw.t ENABLE REPLICA TRIGGER late",
    )
    followed.plan()
    name = followed.composed.sink.database
    followed.sink(f"ALTER DATABASE {name} SET session_replication_role = replica")
    with pytest.raises(SinkRefused, match="trigger late may change or drop rows"):
        followed.plan(restart=True)


@pytest.mark.parametrize(
    "drop",
    [["DROP TABLE raw.t"], ["ALTER TABLE raw.t RENAME TO old", "CREATE TABLE raw.t (LIKE raw.old INCLUDING ALL)"]],
)
def test_a_target_that_was_dropped_is_not_followed(followed: Followed, drop: list[str]) -> None:
    """A new one would hold nothing but what changes from then on."""
    followed.source("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 100)")
    followed.go()
    followed.sink(*drop)
    followed.source("INSERT INTO t VALUES (101)")
    with pytest.raises(SinkRefused, match="dropped or created again, and lacks their rows"):
        followed.go()
    followed.plan(restart=True)
    followed.drain()
    followed.finish()
    assert followed.differs() == (0, 0)


@pytest.mark.statement("X6")
def test_a_key_that_was_deferrable_for_a_while_is_noticed(followed: Followed) -> None:
    """X6: one statement may then give a row the key that another row still has, and the log shows no order of that."""
    followed.source(
        "CREATE TABLE t (id int NOT NULL, v int, CONSTRAINT k UNIQUE (id))",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "INSERT INTO t SELECT g, g FROM generate_series(1, 20) g",
    )
    followed.go()
    followed.source(
        "ALTER TABLE t DROP CONSTRAINT k, ADD CONSTRAINT k UNIQUE (id) DEFERRABLE",
        "UPDATE t SET id = id + 1",
        "ALTER TABLE t DROP CONSTRAINT k, ADD CONSTRAINT k UNIQUE (id)",
    )
    with pytest.raises(SourceRefused, match="a unique key was dropped or created again"):
        followed.plan()


@pytest.mark.statement("X5")
def test_a_key_that_the_target_compares_loosely_is_refused(followed: Followed) -> None:
    """X5: two rows of the source would be one there."""
    followed.source("CREATE TABLE t (id text PRIMARY KEY)")
    followed.sink(
        "CREATE SCHEMA raw",
        "CREATE COLLATION raw.loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
        "CREATE TABLE raw.t (id text COLLATE raw.loose PRIMARY KEY)",
    )
    with pytest.raises(SinkRefused, match="collation of key id takes different texts for equal"):
        followed.plan()
    # An index may have another collation than its column.
    followed.sink(
        "DROP TABLE raw.t",
        'CREATE TABLE raw.t (id text COLLATE "C" NOT NULL)',
        "CREATE UNIQUE INDEX ON raw.t (id COLLATE raw.loose)",
    )
    with pytest.raises(SinkRefused, match="collation of key id takes different texts for equal"):
        followed.plan()


@pytest.mark.statement("X5")
def test_a_target_that_others_inherit_from_is_not_followed(followed: Followed) -> None:
    """X5: their rows would be deleted as its own. Also where it gets its first child after the copy."""
    followed.source(TABLE, FILL.format(10))
    followed.go()
    followed.sink(
        "CREATE TABLE raw.child () INHERITS (raw.t)", "INSERT INTO raw.child SELECT * FROM raw.t WHERE id = 5"
    )
    followed.source("DELETE FROM t WHERE id = 5")
    with pytest.raises(SinkRefused, match="other tables inherit from it"):
        followed.plan()
    assert followed.sink("SELECT id FROM raw.child") == [(5,)]


@pytest.mark.statement("X5")
def test_a_type_that_a_function_makes_of_text_is_refused(followed: Followed) -> None:
    """X5: values of the log are text, of which the function would make others. Not where the server itself casts."""
    pair = "CREATE TYPE pair AS (a int, b int)"
    followed.source(pair, "CREATE TABLE t (id int PRIMARY KEY, p pair, x xml)")
    if followed.composed.source != followed.composed.sink:
        followed.sink(pair)
    followed.sink(
        "CREATE FUNCTION swap(text) RETURNS pair LANGUAGE sql IMMUTABLE AS 'SELECT ROW(2, 1)::pair'",
        "CREATE CAST (text AS pair) WITH FUNCTION swap(text)",
    )
    with pytest.raises(SinkRefused, match=r": a cast by swap\(text\) makes (public\.)?pair in p of text[^;]*$"):
        followed.plan()


@pytest.mark.statement("X5")
def test_text_that_the_log_has_otherwise_is_refused(followed: Followed) -> None:
    """X5: a cast makes ``true`` of what the log has as ``t``, and XML is printed without its declaration."""
    followed.source("CREATE TABLE t (id int PRIMARY KEY, b bool, i inet, c char(5), u uuid, x xml, v varchar)")
    composed = replace(followed.composed, reading={"as_text": ("b", "i", "c", "u", "x", "v")})
    with pytest.raises(SourceRefused, match="b, i, c and x in as_text has another text in the log"):
        replace(followed, composed=composed).plan()


@pytest.mark.statement("X5")
def test_a_role_without_the_right_is_told_what_it_lacks(followed: Followed, logins: dict[str, Endpoint]) -> None:
    """X5: to replicate, and to publish; an administrator may make the publication."""
    followed.source("CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1, 1)")
    with new_role(followed.composed.source) as role:
        followed.source(f"GRANT SELECT ON t TO {role.user}")
        as_role = replace(followed, composed=replace(followed.composed, source=role))
        with pytest.raises(SourceRefused, match="no replication right"):
            as_role.plan()
        followed.source(f"ALTER ROLE {role.user} REPLICATION")
        with pytest.raises(SourceRefused, match="let such a role run CREATE PUBLICATION") as refused:
            as_role.plan()
        followed.source(str(refused.value).partition("let such a role run ")[2])
        logins["source"] = replace(role, conn_id="source")
        as_role.go()
        assert followed.differs() == (0, 0)


def test_an_idle_table_holds_no_log_back(followed: Followed) -> None:
    """FINEPRINT 21: others write, this table does not; its windows are empty and committed all the same."""
    followed.source(TABLE, "INSERT INTO t VALUES (1)", "CREATE TABLE busy (n int)")
    followed.go()
    ((_, before),) = followed.slots()
    followed.source("INSERT INTO busy SELECT generate_series(1, 20000)")
    assert followed.go().verdict is Verdict.PLANNED
    ((_, after),) = followed.slots()
    assert after - before > 1_000_000
    consistent = "SELECT consistent, slot FROM raw.backpressure_plan"
    assert followed.sink(consistent)[0][0]
    assert followed.sink("SELECT pos FROM raw.backpressure_frontier") == [(after,)]
    with followed.ports() as ports:
        log = ports.source.log(ports.hydration.id)
        for _ in range(2):
            log.drop()
            assert followed.slots() == []
    assert followed.source("SELECT FROM pg_publication") == []


@pytest.mark.statement("T7")
def test_no_slot_is_left_where_planning_fails(followed: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    """T7: nobody would read it, and the source's disk would fill. What a kill leaves is named by ``doctor``."""
    followed.source(TABLE, FILL.format(100), "ANALYZE t")
    monkeypatch.setattr(postgres_log, "SLOT_SECONDS", 1)
    with closing(connected(followed.composed.source)) as other:
        other.autocommit = False
        other.execute("INSERT INTO t VALUES (9000, 1, NULL, 'new')")
        with pytest.raises(SourceUnavailable, match="did not end within 1 s"):
            followed.plan()
        assert followed.slots() == []
    monkeypatch.undo()
    with monkeypatch.context() as failing:
        failing.setattr(PostgresTable, "ranges", Mock(side_effect=SourceUnavailable("It is away.")))
        with pytest.raises(SourceUnavailable):
            followed.plan()
    assert followed.slots() == []
    with followed.ports() as ports:
        hydration = ports.planner().register()
        log = ports.source.log(hydration.id)
        log.begin()
        with pytest.raises(SourceRefused, match=f"no plan of this ledger follows: {log.stream}"):
            list(postgres_slots(followed.composed.source, find_followers(ports.ledger.hydrations())))
    followed.plan()
    with followed.ports() as ports:
        (finding,) = postgres_slots(followed.composed.source, find_followers(ports.ledger.hydrations()))
    assert "for its hydration" in finding


def test_a_slot_that_is_lost_is_named_and_nothing_is_skipped(followed: Followed) -> None:
    """A restart makes everything again, with an empty target, so that rows deleted since do not stay."""
    followed.source(TABLE, FILL.format(50))
    followed.go()
    followed.source("DELETE FROM t WHERE id = 7", "UPDATE t SET v = 3")
    followed.source(f"SELECT pg_drop_replication_slot('{followed.slots()[0][0]}')")
    with pytest.raises(LogLost, match=r"is gone, and with it what changed after .*restart"):
        followed.plan()
    followed.plan(restart=True)
    assert followed.sink("SELECT consistent FROM raw.backpressure_plan") == [(False,)]
    followed.drain()
    followed.finish()
    assert followed.differs() == (0, 0)


@pytest.mark.parametrize("policy", ["stop_and_keep", "drop_slot_and_restart"])
def test_at_the_limit_of_the_log_the_declared_policy_acts(followed: Followed, policy: str) -> None:
    """FINEPRINT 12: the source is worth more than the hydration."""
    reading = {"wal_limit": 3_000_000, "at_wal_limit": policy}
    limited = replace(followed, composed=replace(followed.composed, reading=reading))
    followed.source(TABLE, FILL.format(50), "CREATE TABLE busy (n int)")
    limited.plan()
    followed.source("INSERT INTO busy SELECT generate_series(1, 100000)")
    stops = policy == "stop_and_keep"
    with pytest.raises(SourceRefused if stops else SnapshotLost, match="more than it may"):
        limited.drain()
    assert len(followed.slots()) == (1 if stops else 0)
    if stops:
        # A person has made room: it goes on where it was.
        followed.go()
    else:
        with limited.ports() as ports:
            ports.close_plan()
        limited.drain()
        limited.finish()
    assert followed.differs() == (0, 0)


def test_a_frontier_that_went_back_is_not_gone_over(followed: Followed) -> None:
    """FINEPRINT 8: the sink was restored; the windows in between would be missing."""
    followed.source(TABLE, FILL.format(20))
    followed.go()
    followed.source("UPDATE t SET v = 1")
    followed.go()
    followed.source("UPDATE t SET v = 2")
    followed.sink("UPDATE raw.backpressure_frontier SET pos = pos - 1")
    with pytest.raises(SinkRefused, match="was restored"):
        followed.plan()


@pytest.mark.long
@pytest.mark.statement("X2", "X6", "T8", "T10")
@pytest.mark.parametrize("seed", range(20))
def test_consistency_under_fire(
    followed: Followed, tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    """X2, X6, T8, T10: 2,000,000 rows under 500 changes a second, kills, and ten points of the steady state."""
    followed = replace(followed, composed=replace(followed.composed, budget=Budget(credits=2, range_rows=250_000)))
    followed.source(TABLE, FILL.format(ROWS), "ANALYZE t")
    database, draw = followed.composed.source, random.Random(seed)
    steps = [Step.AFTER_SUBMIT, Step.BEFORE_LEDGER_COMMIT, Step.AFTER_LEDGER_COMMIT]
    writer = Writer(database, seed=seed, keys=ROWS)
    with writer.writing(), Watch(database).watching() as watch:
        followed.plan()
        killed_at(followed, tmp_path, draw.choice(steps))
        followed.go()
        for point in range(11):
            followed.plan()
            if point and draw.random() < 0.3:
                killed_at(followed, tmp_path, draw.choice(steps))
                followed.plan()
            with writer.paused():
                followed.drain()
                followed.finish()
                followed.go()
                ours, theirs = followed.sums()
            assert ours == theirs, f"seed {seed}, point {point}"
    with capsys.disabled():
        print(f"\nseed {seed}: {writer.changes} changes, {writer.changes / writer.seconds:.0f}/s; {watch}")
    watch.check(seconds=writer.seconds / 4)
