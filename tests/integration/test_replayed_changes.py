"""Changes of a real log, folded by key into a real target: values that the log leaves out, moved keys, truncates."""

import random
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace

import psycopg
import pytest
from psycopg import sql

from airflow_provider_backpressure.cli.doctor import postgres_slots
from airflow_provider_backpressure.connectors.postgres.health import PostgresHealth
from airflow_provider_backpressure.connectors.postgres.replication_slots import lsn
from airflow_provider_backpressure.connectors.postgres.source.change_log import ERRORS, PostgresLog
from airflow_provider_backpressure.connectors.postgres.tasks import changes as postgres_log
from airflow_provider_backpressure.core.config import SlotLag, WalHeadroom
from airflow_provider_backpressure.core.health_signal_declarations import Figure
from airflow_provider_backpressure.core.snapshot.bounds import LogPosition
from airflow_provider_backpressure.core.snapshot.spark_messages import Column
from airflow_provider_backpressure.exceptions import (
    BackpressureError,
    LogLost,
    RangeFailed,
    SourceRefused,
    SourceUnavailable,
)
from dev.services import Services
from tests.conftest import fresh_database
from tests.support.postgres import connected, run
from tests.support.replaying import Replayed
from tests.support.standby import Standby
from tests.support.streaming import Stream

pytestmark = pytest.mark.integration

COLUMNS = tuple(
    Column(name=name, type=type_)
    for name, type_ in {"id": "integer", "v": "integer", "doc": "text", "d2": "text"}.items()
)
# Stored outside of the row, uncompressed, so that the log leaves it out when it does not change.
TABLE = (
    "CREATE TABLE t (id int PRIMARY KEY, v int, doc text, d2 text)",
    "ALTER TABLE t ALTER doc SET STORAGE EXTERNAL, ALTER d2 SET STORAGE EXTERNAL",
)
LONG = "repeat('{}', 3000)"
CHANGED = {
    "INSERT": ("UPDATE raw.t SET doc = upper(doc) WHERE id = NEW.id", "INSERT INTO t VALUES (10, 1, 'n')"),
    "UPDATE": ("DELETE FROM raw.t WHERE id = NEW.id", "UPDATE t SET v = v + 1 WHERE id = 3"),
    "DELETE": ("INSERT INTO raw.t VALUES (OLD.id + 1000)", "DELETE FROM t WHERE id = 3"),
}
"""What a trigger does to rows of its own table behind an event, and what brings that about."""
Make = Callable[..., Replayed]


@pytest.fixture
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Make source and target."""
    own = "standby" in request.fixturenames
    database = request.getfixturevalue("standby").database if own else request.getfixturevalue("database")
    made: list[Replayed] = []

    def make(*statements: str, columns: tuple[Column, ...] = COLUMNS, key: tuple[str, ...] = ("id",)) -> Replayed:
        with connected(database) as connection:
            for statement in statements or TABLE:
                connection.execute(statement)
        made.append(Replayed(database, columns, key))
        return made[0]

    yield make
    for each in made:
        each.close()


def long(letter: str) -> str:
    return LONG.format(letter)


def test_the_last_change_of_each_key_wins(make: Make) -> None:
    table = make()
    table.source(
        "INSERT INTO t VALUES (1, 0, 'a'), (2, 0, 'b'), (3, 0, 'c'), (4, 0, NULL)",
        "UPDATE t SET v = v + 1",
        "DELETE FROM t WHERE id = 2",
        "INSERT INTO t VALUES (2, 9, 'again')",
        "DELETE FROM t WHERE id = 3",
        "UPDATE t SET id = 30 WHERE id = 4",
    )
    assert table.replay() == 4 + 4 + 1 + 1 + 1 + 2
    assert table.differs() == (0, 0)
    assert table.replay() == 0


def test_a_value_that_the_log_leaves_out_is_the_targets_or_an_earlier_ones(make: Make) -> None:
    """FINEPRINT 19: from an earlier change of the window where one tells it, else what the target has."""
    table = make()
    table.source(f"INSERT INTO t VALUES (1, 0, {long('a')}, {long('b')}), (2, 0, {long('c')}, {long('d')})")
    table.replay()
    table.source("UPDATE t SET v = 1", f"UPDATE t SET doc = {long('e')} WHERE id = 1", "UPDATE t SET v = 2")
    table.source("DELETE FROM t WHERE id = 2", f"INSERT INTO t VALUES (2, 5, {long('f')}, NULL)", "UPDATE t SET v = 6")
    table.replay()
    assert table.differs() == (0, 0)
    assert table.asked == 0


def test_a_row_takes_along_under_its_new_key_what_it_had_under_the_old_one(make: Make) -> None:
    table = make()
    table.source(f"INSERT INTO t VALUES (1, 0, {long('a')}, {long('b')}), (9, 0, {long('x')}, {long('y')})")
    table.replay()
    table.source("UPDATE t SET id = 2 WHERE id = 1", f"UPDATE t SET id = 3, d2 = {long('n')} WHERE id = 2")
    table.source("UPDATE t SET v = 4 WHERE id = 3", "DELETE FROM t WHERE id = 9", "UPDATE t SET id = 9 WHERE id = 3")
    table.replay()
    assert table.differs() == (0, 0)
    assert table.asked == 0


def test_what_nobody_here_knows_is_read_again(make: Make) -> None:
    """FINEPRINT 19, seen: a row moves from where no range has looked yet to where one has looked already."""
    table = make()
    table.source(f"INSERT INTO t VALUES (100, 0, {long('a')}, {long('b')}), (200, 0, {long('c')}, NULL)")
    table.at = table.goal = table.window()[-1].end
    table.copy("id < 50")
    table.source("UPDATE t SET id = 1 WHERE id = 100", "UPDATE t SET id = 2 WHERE id = 200")
    table.copy("id >= 50")
    table.replay()
    assert table.asked == 1
    assert table.differs() == (0, 0)


def test_blanks_at_the_end_come_along_with_a_value_that_the_log_leaves_out(make: Make) -> None:
    """From the target, and read again: a cast to text would cut them off."""
    columns = (Column(name="id", type="integer", nullable=False), Column(name="doc", type="bpchar"))
    table = make(
        "CREATE TABLE t (id int PRIMARY KEY, doc bpchar)",
        "ALTER TABLE t ALTER doc SET STORAGE EXTERNAL",
        columns=columns,
    )
    table.source(f"INSERT INTO t SELECT g, {long('a')} || '  ' FROM generate_series(1, 2) g")
    table.replay()
    table.source("UPDATE t SET id = id + 10", "DELETE FROM raw.t WHERE id = 2")
    table.replay()
    assert table.asked == 1
    assert run(table.database, "SELECT id, octet_length(doc) FROM raw.t ORDER BY 1") == [(11, 3002), (12, 3002)]


def test_a_key_may_be_as_long_as_its_own_index_allows(make: Make) -> None:
    """As text it is twice as long, and would exceed an entry of an index; a moved row takes along what it had."""
    columns = tuple(
        Column(name=name, type=type_) for name, type_ in {"k": "bytea", "v": "integer", "doc": "text"}.items()
    )
    table = make(
        "CREATE TABLE t (k bytea PRIMARY KEY, v int, doc text)",
        "ALTER TABLE t ALTER doc SET STORAGE EXTERNAL",
        columns=columns,
        key=("k",),
    )
    many = "(SELECT string_agg(sha512((g * 1000 + i)::text::bytea), ''::bytea) FROM generate_series(1, 40) i)"
    table.source(f"INSERT INTO t SELECT {many}, 0, {long('a')} FROM generate_series(1, 3) g")
    table.replay()
    table.source("UPDATE t SET v = 1", "UPDATE t SET k = k || 'moved'::bytea WHERE v = 1", "UPDATE t SET v = 2")
    table.replay()
    assert table.asked == 0
    assert table.differs() == (0, 0)


@pytest.mark.parametrize("type_", ["ltree", "citext"])
def test_a_key_may_be_of_an_extension_that_is_not_searched(type_: str, make: Make) -> None:
    """In the target, and where rows are read again: without its own operators a key of ``citext`` is one of text."""
    types = {"a": "smallint", "k": f"other.{type_}", "doc": "text"}
    table = make(
        "CREATE SCHEMA other",
        f"CREATE EXTENSION {type_} SCHEMA other",
        f"CREATE TABLE t (a smallint, k other.{type_}, doc text, PRIMARY KEY (a, k))",
        "ALTER TABLE t ALTER doc SET STORAGE EXTERNAL",
        columns=tuple(Column(name=name, type=type_) for name, type_ in types.items()),
        key=("a", "k"),
    )
    table.source(f"INSERT INTO t SELECT 1, ('k' || g)::other.{type_}, {long('a')} FROM generate_series(1, 4) g")
    table.replay()
    table.source("UPDATE t SET k = upper(k::text)::other." + type_, "DELETE FROM t WHERE k::text = 'K3'")
    table.replay()
    table.source("UPDATE t SET a = 2 WHERE k::text = 'K1'", "DELETE FROM raw.t WHERE k::text = 'K1'")
    table.replay()
    assert table.asked == 1
    assert table.differs() == (0, 0)


def test_a_row_is_read_again_by_a_key_with_an_array(make: Make) -> None:
    """Arrays of arrays are taken apart to their elements, so keys are passed one by one."""
    types = {"a": "smallint", "k": "numeric[]", "doc": "text"}
    columns = tuple(Column(name=name, type=type_) for name, type_ in types.items())
    table = make(
        "CREATE TABLE t (a smallint, k numeric[], doc text, PRIMARY KEY (a, k))",
        "ALTER TABLE t ALTER doc SET STORAGE EXTERNAL",
        columns=columns,
        key=("a", "k"),
    )
    table.source(f"INSERT INTO t SELECT 1, ARRAY[g, 1.0], {long('a')} FROM generate_series(1, 3) g")
    table.replay()
    table.source("UPDATE t SET a = 2 WHERE k[1] < 3", "DELETE FROM raw.t WHERE k[1] = 1")
    table.replay()
    assert table.asked == 1
    assert table.differs() == (0, 0)


@pytest.fixture
def standby(services: Services) -> Iterator[Standby]:
    """A server of its own, whose commits can be made to wait."""
    server = services.up("postgres:sync")["postgres:sync"]
    with fresh_database(server) as database, Standby(database=database).held():
        yield Standby(database=database)


@pytest.mark.statement("X6", "T8")
def test_a_row_is_read_again_when_readers_see_the_window(
    standby: Standby, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FINEPRINT 19: a commit stands in the log before readers see it, while it waits for a standby."""
    table = make()
    table.source(f"INSERT INTO t VALUES (100, 0, {long('a')}, {long('b')})")
    table.at = table.goal = table.window()[-1].end
    table.copy("id < 50")
    with standby.committing("UPDATE t SET id = 1 WHERE id = 100"):
        table.copy("id >= 50")
        before = table.source("SELECT id FROM raw.t")
        monkeypatch.setattr(postgres_log, "VISIBLE_SECONDS", 0.5)
        with pytest.raises(SourceUnavailable, match=r"1 transactions .* not seen by its readers"):
            table.replay()
        assert table.source("SELECT id FROM raw.t") == before == [(100,)]
    table.replay()
    assert table.asked == 1
    assert table.differs() == (0, 0)


@pytest.mark.statement("W4")
def test_a_window_between_ranges_goes_in_once_readers_see_it(standby: Standby, monkeypatch: pytest.MonkeyPatch) -> None:
    """W4: a range that is read behind it would bring the row of before."""
    monkeypatch.setattr(postgres_log, "VISIBLE_SECONDS", 0.5)
    with closing(Stream(standby.database)) as stream:
        stream.do("INSERT INTO a VALUES (1, 1, 'x')", "INSERT INTO b VALUES (1, 1, 'x')")
        (spec,) = stream.plan()
        with standby.committing("UPDATE a SET v = 2"):
            (bounds,) = stream.log.windows(stream.at, bytes=2**40)
            piece = replace(spec.slices[0], bounds=bounds.to_json())
            between = replace(spec, slices=(piece,), tables=tuple(replace(each, reading=True) for each in spec.tables))
            with pytest.raises(SourceUnavailable, match=r"1 transactions .* not seen by its readers"):
                stream.attempt(between)
            assert stream.do("SELECT count(*) FROM raw.a") == [(0,)]
        assert stream.attempt(between).rows == 3
        assert stream.do("SELECT v FROM raw.a") == [(2,)]
        assert stream.differs() == {}


@pytest.mark.statement("X6", "T8")
def test_the_log_begins_behind_commits_that_readers_do_not_see(
    standby: Standby, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit before the slot's start that waits for a standby is in no window, and no range sees it yet."""
    table = make()
    table.source("INSERT INTO t VALUES (100, 0)")
    made = PostgresLog._make_slot

    def late(log: PostgresLog) -> LogPosition:
        start = made(log)
        waiting.enter_context(standby.committing("UPDATE t SET id = 1 WHERE id = 100"))
        return start

    monkeypatch.setattr(PostgresLog, "_make_slot", late)
    monkeypatch.setattr("airflow_provider_backpressure.connectors.postgres.source.change_log.SLOT_SECONDS", 2)
    with ExitStack() as waiting, pytest.raises(SourceUnavailable, match="did not end within"):
        table.log.begin()


def test_what_is_gone_when_it_is_read_again_stays_gone(make: Make) -> None:
    table = make()
    table.source(f"INSERT INTO t VALUES (100, 0, {long('a')}, NULL), (1, 0, {long('o')}, NULL)")
    table.at = table.goal = table.window()[-1].end
    table.copy("id < 50")
    table.source("DELETE FROM t WHERE id = 1", "UPDATE t SET id = 1 WHERE id = 100")
    table.copy("id >= 50")
    (moved,) = table.window()
    table.source("DELETE FROM t WHERE id = 1")
    table.one(moved)
    assert table.source("SELECT id FROM raw.t") == []
    table.at = moved.end
    table.replay()
    assert table.differs() == (0, 0)


def test_a_full_replica_identity_tells_everything(make: Make) -> None:
    table = make(*TABLE, "ALTER TABLE t REPLICA IDENTITY FULL")
    table.source(f"INSERT INTO t VALUES (100, 0, {long('a')}, {long('b')})")
    table.at = table.window()[-1].end
    table.source("UPDATE t SET id = 1 WHERE id = 100", "UPDATE t SET v = 3")
    table.replay()
    assert table.asked == 0
    assert table.differs() == (0, 0)


def test_an_emptied_table_empties_the_target(make: Make) -> None:
    table = make()
    table.source("INSERT INTO t SELECT g, 0, 'x' FROM generate_series(1, 9) g")
    table.replay()
    table.source(
        "INSERT INTO t VALUES (10)", "TRUNCATE t", f"INSERT INTO t VALUES (3, 1, {long('z')})", "UPDATE t SET v = 2"
    )
    table.replay()
    assert table.differs() == (0, 0)
    assert table.source("SELECT id, v FROM raw.t") == [(3, 2)]


def test_what_is_rolled_back_never_comes_and_what_is_open_comes_when_it_is_committed(make: Make) -> None:
    table = make()
    with connected(table.database, autocommit=False) as first:
        first.execute("INSERT INTO t VALUES (1)")
        table.source("INSERT INTO t VALUES (2)")
        assert table.replay() == 1
        first.execute("SAVEPOINT s")
        first.execute("INSERT INTO t VALUES (3)")
        first.execute("ROLLBACK TO s")
        first.commit()
    with connected(table.database, autocommit=False) as second:
        second.execute("INSERT INTO t VALUES (4)")
        second.rollback()
    assert table.replay() == 1
    assert table.source("SELECT id FROM raw.t ORDER BY 1") == [(1,), (2,)]


def test_windows_may_end_anywhere_and_one_transaction_may_be_larger_than_many(make: Make) -> None:
    """Half-open by where a commit begins: whatever the bounds, each transaction is in exactly one window."""
    table = make()
    with connected(table.database) as connection:
        for number in range(60):
            connection.execute("INSERT INTO t VALUES (%s, 0, 'x')", (number,))
            if number == 30:
                connection.execute("INSERT INTO t SELECT g, 1, 'big' FROM generate_series(1000, 4000) g")
    sizes, release = [], random.Random(1)
    for bounds in table.window(bytes=33_333):
        sizes.append(table.one(bounds))
        if release.random() < 0.3:
            table.log.release(bounds.end)
    assert sum(sizes) == 60 + 3001
    assert max(sizes) >= 3001
    assert table.differs() == (0, 0)


def test_keys_of_several_columns_and_of_any_type(make: Make) -> None:
    names = {"n": "numeric", "w": "character varying(20)", "Odd name": "timestamp with time zone"}
    table = make(
        'CREATE TABLE t (n numeric, w varchar(20), "Odd name" timestamptz, PRIMARY KEY (n, w))',
        columns=tuple(Column(name=name, type=type_) for name, type_ in names.items()),
        key=("n", "w"),
    )
    table.source(
        "INSERT INTO t VALUES (1.0, 'a', 'infinity'), ('NaN', 'ä\t\\n', now()), (2, '', NULL)",
        "UPDATE t SET n = 1.00 WHERE n = 1",
        "UPDATE t SET w = 'b' WHERE w = ''",
        "DELETE FROM t WHERE n = 'NaN'",
        "INSERT INTO t VALUES ('NaN', 'ä\t\\n', '-infinity')",
    )
    table.replay()
    assert table.differs() == (0, 0)


def test_a_slot_that_is_gone_or_was_moved_is_a_loss_with_a_name(make: Make) -> None:
    table = make()
    table.source("INSERT INTO t VALUES (1)")
    (bounds,) = table.window()
    table.source(
        "INSERT INTO t VALUES (2)", f"SELECT pg_replication_slot_advance('{table.log.stream}', pg_current_wal_lsn())"
    )
    with pytest.raises(LogLost, match="moved on to"):
        table.one(bounds)
    with pytest.raises(LogLost, match=r"moved on to .* by somebody else"):
        table.window()
    table.log.drop()
    with pytest.raises(LogLost, match="is gone"):
        table.one(bounds)
    with pytest.raises(LogLost, match="is gone"):
        table.window()


def test_a_publication_made_after_the_slot_is_a_loss_and_no_remark(make: Make) -> None:
    """FINEPRINT 14, seen on 18: the server says so in a warning, and silently skips what was before."""
    table = make()
    table.source(f"DROP PUBLICATION {table.log.stream}", "INSERT INTO t VALUES (1)")
    with pytest.raises(LogLost, match="no longer holds"):
        table.window()
    table.source(f"CREATE PUBLICATION {table.log.stream} FOR TABLE t", "INSERT INTO t VALUES (2)")
    with pytest.raises(LogLost, match="was altered or created again"):
        table.window()
    table.at = lsn(table.at.at)
    with pytest.raises(BackpressureError, match=r"does not show every change|does not exist"):
        table.replay()


@pytest.mark.statement("X6")
@pytest.mark.parametrize("earlier", [False, True])
def test_a_publication_that_lacked_the_table_for_a_while_is_a_loss(make: Make, earlier: bool) -> None:
    """X6: nothing in the log says which changes it does not show. What an earlier release has begun goes on."""
    table, other = make(), "CREATE TABLE other (id int PRIMARY KEY)"
    table.source("INSERT INTO t VALUES (1)")
    table.replay()
    alter = f"ALTER PUBLICATION {table.log.stream} {{}} TABLE {{}}"
    table.source(other, alter.format("ADD", "other"), "INSERT INTO t VALUES (2)")
    table.replay()
    assert table.differs() == (0, 0), "another table in it changes nothing"
    table.source(alter.format("DROP", "t"), "INSERT INTO t VALUES (3)", alter.format("ADD", "t"))
    if earlier:
        table.at = lsn(table.at.at)
        table.replay()
        assert table.at.text.startswith(f"{lsn(table.at.at).text}@")
    else:
        with pytest.raises(LogLost, match=r"was altered or created again.*restart"):
            table.window()


@pytest.mark.parametrize("seed", range(8))
def test_ranges_of_any_time_and_windows_of_any_size_come_to_the_source_in_the_end(make: Make, seed: int) -> None:
    """A schedule drawn by its seed: changes, ranges read in between, windows cut anywhere, then equality."""
    draw, table = random.Random(seed), make()
    pieces = ["id < 7", "id >= 7 AND id < 14", "id >= 14"]
    with connected(table.database) as connection:
        for number in range(20):
            connection.execute(f"INSERT INTO t VALUES (%s, 0, {long('i')}, 'short')", (number,))
        table.at = table.goal = table.window()[-1].end
        draw.shuffle(pieces)
        for piece in pieces:
            _churn(draw, connection, changes=12)
            table.copy(piece)
        _churn(draw, connection, changes=12)
        while table.at < table.goal:
            table.replay(bytes=draw.randint(20_000, 200_000), release=draw.random() < 0.5)
        for _ in range(2):
            _churn(draw, connection, changes=12)
            table.replay(bytes=draw.randint(20_000, 200_000))
        assert table.differs() == (0, 0)


def _churn(draw: random.Random, connection: psycopg.Connection, *, changes: int) -> None:
    for _ in range(changes):
        key, other = draw.randint(0, 25), draw.randint(0, 25)
        long_one = long(draw.choice("abcdefgh"))
        statement = draw.choice(
            (
                f"INSERT INTO t VALUES ({key}, 0, {long_one}, {long_one}) ON CONFLICT DO NOTHING",
                f"DELETE FROM t WHERE id = {key}",
                f"UPDATE t SET v = v + 1 WHERE id = {key}",
                f"UPDATE t SET d2 = {long_one} WHERE id = {key}",
                f"UPDATE t SET id = {other} WHERE id = {key} AND NOT EXISTS (SELECT FROM t WHERE id = {other})",
                f"UPDATE t SET id = {other}, doc = {long_one} WHERE id = {key}"
                f" AND NOT EXISTS (SELECT FROM t WHERE id = {other})",
            )
        )
        if draw.random() < 0.02:
            statement = "TRUNCATE t"
        if draw.random() < 0.2:
            statement = f"BEGIN; {statement}; {draw.choice(('COMMIT', 'ROLLBACK'))}"
        connection.execute(statement)


def test_positions_are_those_of_the_server(make: Make) -> None:
    table = make()
    ((number,),) = table.source("SELECT pg_current_wal_insert_lsn() - '0/0'")
    assert table.copy("true").at >= number
    assert replace(table.at, text="") == LogPosition(at=table.at.at, text="anything")


@pytest.mark.statement("T7")
def test_kept_log_is_seen_by_its_signals_and_orphaned_slots_by_doctor(make: Make) -> None:
    """T7: a slot of ours without a hydration in the ledger is named with what removes it."""
    table, lag, headroom = make(), SlotLag(bytes=1000), WalHeadroom(hours=1, limit_bytes=1000)
    health = PostgresHealth(table.database, [lag, headroom], errors=ERRORS, seconds=5)
    with closing(health):
        table.source("INSERT INTO t SELECT g, 0, 'x' FROM generate_series(1, 9000) g")
        found = health.look()
    seen, left = found[lag], found[headroom]
    assert isinstance(seen, Figure)
    assert isinstance(left, Figure)
    assert seen.value > 500_000
    assert seen.note == table.log.stream
    assert left.value == 0
    (finding,) = postgres_slots(table.database, {table.log.stream.removeprefix("backpressure_")})
    assert "of log for its hydration" in finding
    with pytest.raises(SourceRefused, match=f"pg_drop_replication_slot\\('{table.log.stream}'\\)"):
        list(postgres_slots(table.database, set()))


def test_a_large_transaction_is_decoded_in_memory(make: Make) -> None:
    """Whatever the server gives its other readers: by its own limit it writes the transaction to its disk."""
    table = make()
    own = "SELECT spill_txns FROM pg_stat_get_replication_slot(%s)"
    with connected(table.database, autocommit=True) as connection:
        (user,) = connection.execute("SELECT current_user::text").fetchone() or ("",)
        connection.execute(sql.SQL("ALTER ROLE {} SET logical_decoding_work_mem = '64kB'").format(sql.Identifier(user)))
        try:
            table.source("INSERT INTO t SELECT g, g, 'x' FROM generate_series(1, 5000) g")
            assert table.replay() == 5000
            assert table.differs() == (0, 0)
            assert connection.execute(own, (table.log.stream,)).fetchone() == (0,)
        finally:
            connection.execute(sql.SQL("ALTER ROLE {} RESET logical_decoding_work_mem").format(sql.Identifier(user)))


@pytest.mark.long
def test_a_window_is_streamed_and_never_held(make: Make) -> None:
    """One transaction of 60 MB, whose rows differ, takes a few of this process's."""
    table = make()
    table.source("INSERT INTO t SELECT g, 0, repeat(md5(g::text), 30) FROM generate_series(1, 60000) g")
    tracemalloc.start()
    assert table.replay() == 60_000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8_000_000
    assert table.differs() == (0, 0)


@pytest.mark.parametrize("partitioned", [False, True])
def test_rows_that_a_trigger_of_the_target_changes_are_noticed(make: Make, partitioned: bool) -> None:
    """No verification would see them: rows took each other's place. What a trigger writes elsewhere is an audit."""
    table = make()
    if partitioned:
        table.source(
            "ALTER TABLE raw.t RENAME TO part",
            "CREATE TABLE raw.t (LIKE raw.part INCLUDING INDEXES) PARTITION BY RANGE (id)",
            "ALTER TABLE raw.t ATTACH PARTITION raw.part DEFAULT",
        )
    table.source(
        "CREATE TABLE raw.audit (id int)",
        "CREATE FUNCTION raw.audits() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN INSERT INTO raw.audit VALUES (coalesce(NEW.id, OLD.id)); RETURN NULL; END'",
        "CREATE TRIGGER audits AFTER INSERT OR UPDATE OR DELETE ON raw.t FOR EACH ROW EXECUTE FUNCTION raw.audits()",
        f"INSERT INTO t VALUES (1, 0, {long('a')}, 'x'), (2, 0, 'b', 'y')",
    )
    table.replay()
    table.source("UPDATE t SET v = 1", "DELETE FROM t WHERE id = 2", "UPDATE t SET id = 3 WHERE id = 1")
    table.replay()
    assert table.differs() == (0, 0)
    assert table.source("SELECT count(*) FROM raw.audit") == [(5,)]
    for event, (change, statement) in CHANGED.items():
        table.source(
            "CREATE OR REPLACE FUNCTION raw.changes() RETURNS trigger LANGUAGE plpgsql AS"
            f" 'BEGIN {change}; RETURN NULL; END'",
            f"CREATE TRIGGER changes AFTER {event} ON raw.t FOR EACH ROW EXECUTE FUNCTION raw.changes()",
            statement,
        )
        with pytest.raises(RangeFailed, match=r"changed 1 rows of raw\.t, and a trigger or rule changed 1 more there"):
            table.replay()
        table.source("DROP TRIGGER changes ON raw.t")
        table.replay()
        assert table.differs() == (0, 0)
