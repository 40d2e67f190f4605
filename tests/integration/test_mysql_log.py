"""MySQL's binlog as changes: windows that cover it, and values as a statement would give them."""

import random
import struct
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import pymysql
import pytest

from airflow_provider_backpressure.connectors.mysql.binlog.character_sets import CODECS, charsets
from airflow_provider_backpressure.connectors.mysql.binlog_position import Place
from airflow_provider_backpressure.connectors.mysql.connect import Session
from airflow_provider_backpressure.connectors.mysql.source import prepared_transactions
from airflow_provider_backpressure.connectors.mysql.tasks import changes as mysql_log
from airflow_provider_backpressure.connectors.mysql.tasks.read import read as read_rows
from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.bounds import KeyBounds, LogBounds, LogPosition
from airflow_provider_backpressure.exceptions import LogLost, SourceRefused, SourceUnavailable
from airflow_provider_backpressure.sources import MySQLSource
from airflow_provider_backpressure.spark.change_rows import DELETE, TRUNCATE, UPSERT
from tests.support.mysql import batches, new_role, run

pytestmark = pytest.mark.integration

Told = tuple[int, tuple[str | None, ...]]
"""What was done to a row, and its texts."""
ALL = 10**12


def told(row: bytes, key: int) -> Told:
    """Take a row of changes apart."""
    fields, _, _, _, op = struct.unpack_from(">hiqih", row)
    at, values = 20, []
    for _ in range(fields - 2):
        (length,) = struct.unpack_from(">i", row, at)
        values.append(None if length < 0 else row[at + 4 : at + 4 + length].decode())
        at += 4 + max(length, 0)
    return op, tuple(values[1 + key :])


class Followed:
    """One table's log from a moment on."""

    def __init__(self, endpoint: Endpoint, **declared: Any) -> None:
        self.endpoint = endpoint
        self.source = MySQLSource(**{"conn_id": "m", "table": "t", **declared}).open(endpoint)
        self.snapshot = self.source.snapshot(Consistency.CATCH_UP)
        self.log = self.source.log("h")
        self.start = self.log.begin()

    def windows(self, size: int = ALL) -> list[LogBounds]:
        return self.log.windows(self.start, bytes=size)

    def changes(self, *windows: LogBounds) -> list[Told]:
        """Return what changed, in all windows one after another."""
        read, key = replace(self.source.read_spec(self.snapshot), since=str(self.start)), self.snapshot.key
        found = []
        for window in windows or self.windows():
            piece = self.source.slice(read, window, "0.0")
            changes = mysql_log.changes(self.endpoint, read, piece, key, "bp:plan:0.0:1")
            found += [told(row, len(key)) for some in changes for row in some]
        return found


@contextmanager
def following(endpoint: Endpoint, **declared: Any) -> Iterator[Followed]:
    followed = Followed(endpoint, **declared)
    with closing(followed.source):
        yield followed


def test_changes_come_in_order_and_only_those_of_the_table(mysql_database: Endpoint) -> None:
    """Committed ones only; a row whose key changes is deleted under the old one."""
    run(mysql_database, "CREATE TABLE t (id int PRIMARY KEY, a text)", "CREATE TABLE other (id int PRIMARY KEY)")
    run(mysql_database, "INSERT INTO t VALUES (1, 'before')")
    with following(mysql_database) as followed:
        assert followed.windows() == []
        run(
            mysql_database,
            "INSERT INTO other VALUES (7)",
            "INSERT INTO t VALUES (2, NULL), (3, 'x')",
            "START TRANSACTION",
            "UPDATE t SET a = 'rolled back'",
            "ROLLBACK",
            "UPDATE t SET id = 4 WHERE id = 3",
            "UPDATE t SET a = 'y' WHERE id = 4",
            "DELETE FROM t WHERE id = 1",
        )
        assert followed.changes() == [
            (UPSERT, ("2", None)),
            (UPSERT, ("3", "x")),
            (DELETE, ("3", None)),
            (UPSERT, ("4", "x")),
            (UPSERT, ("4", "y")),
            (DELETE, ("1", "before")),
        ]


def test_windows_cover_the_log_without_gap_or_overlap(mysql_database: Endpoint) -> None:
    """Across files and within them, whatever their size; a start that names no file finds its own."""
    run(mysql_database, "CREATE TABLE t (id int PRIMARY KEY, a text)")
    with following(mysql_database) as followed:
        for number in range(30):
            run(mysql_database, f"INSERT INTO t VALUES ({number}, REPEAT('a', 1000))")
            if number in (10, 11, 20):
                run(mysql_database, "FLUSH BINARY LOGS")
        whole = followed.changes()
        assert [values[0] for _, values in whole] == [str(number) for number in range(30)]
        bare = LogPosition(at=followed.start.at, text=followed.start.text.partition("@")[0])
        for start, size in ((followed.start, 5_000), (bare, 5_000), (followed.start, 20_000), (bare, ALL)):
            windows = followed.log.windows(start, bytes=size)
            assert windows[0].start == start
            assert all(one.end == other.start for one, other in pairwise(windows))
            assert windows[-1].end.at - start.at == 30
            assert followed.changes(*windows) == whole
        assert len(followed.windows(5_000)) > 5
        assert len(followed.windows(1)) == 30
        assert followed.log.windows(followed.windows()[-1].end, bytes=ALL) == []


def test_a_transaction_larger_than_memory_need_not_be_held(mysql_database: Endpoint) -> None:
    """It comes some rows at a time, also where the server has compressed it."""
    run(mysql_database, "CREATE TABLE t (id int PRIMARY KEY, a varchar(100))")
    fill = (
        "INSERT INTO t WITH RECURSIVE n AS (SELECT {0} i UNION ALL SELECT i + 1 FROM n WHERE i < {1})"
        " SELECT i, CONCAT('row ', i) FROM n"
    )
    with following(mysql_database) as followed:
        deep = "SET SESSION cte_max_recursion_depth = 1000000"
        run(mysql_database, deep, fill.format(1, 20000))
        run(mysql_database, deep, "SET SESSION binlog_transaction_compression = ON", fill.format(20001, 40000))
        found = followed.changes()
    assert found == [(UPSERT, (str(number), f"row {number}")) for number in range(1, 40001)]


def test_texts_of_every_character_set_are_those_of_a_statement(mysql_database: Endpoint) -> None:
    """Each character that a set has, by the server's own conversion."""
    known = {
        each.name
        for each in charsets(lambda query: run(mysql_database, query)).values()
        if each.known and each.name != "binary"
    }
    assert {*CODECS, "latin1", "cp1251", "utf8mb4"} <= known
    columns = ", ".join(f"c_{name} varchar(20) CHARACTER SET {name}" for name in sorted(known))
    run(mysql_database, f"CREATE TABLE t (id int AUTO_INCREMENT PRIMARY KEY, {columns})")
    chance = random.Random(11)
    letters = [chr(code) for code in [*range(32, 0x500), *chance.sample(range(0x3041, 0xD7A3), 3000)]]
    with following(mysql_database) as followed:
        link = pymysql.connect(
            host=mysql_database.host,
            port=mysql_database.port,
            user=mysql_database.user,
            password=mysql_database.password,
            database=mysql_database.database,
            autocommit=True,
        )
        with closing(link), link.cursor() as cursor:
            places, names = ", ".join(["%s"] * len(known)), ", ".join(f"c_{name}" for name in sorted(known))
            for at in range(0, len(letters), 20):
                text = "".join(letters[at : at + 20])
                cursor.execute(f"INSERT IGNORE INTO t ({names}) VALUES ({places})", [text] * len(known))
            shown = ", ".join(f"CONVERT({name} USING utf8mb4)" for name in names.split(", "))
            cursor.execute(f"SELECT id, {shown} FROM t ORDER BY id")
            expected = cursor.fetchall()
        found = [values for _, values in followed.changes()]
    order = [column.name for column in followed.snapshot.columns]
    for number, name in enumerate(("id", *names.split(", "))):
        there = [values[order.index(name)] for values in found]
        assert there == [str(row[number]) for row in expected], name


@pytest.mark.parametrize(
    ("type_", "raw"),
    [
        ("varchar(9) CHARACTER SET greek", "613FD2"),
        ("varchar(9) CHARACTER SET hebrew", "D9"),
        ("text CHARACTER SET tis620", "3FFC"),
        ("char(9) CHARACTER SET ucs2", "D800"),
        ("varchar(9) CHARACTER SET gbk", "3FFEFE"),
        ("text CHARACTER SET sjis", "8540"),
    ],
)
def test_text_without_a_counterpart_is_refused_by_column_on_both_ways(
    mysql_database: Endpoint, type_: str, raw: str
) -> None:
    """The server's conversion makes a question mark of it, which others are, too."""
    charset = type_.split()[-1]
    run(mysql_database, f"CREATE TABLE t (id int PRIMARY KEY, odd {type_})", "INSERT INTO t VALUES (1, 'a? ?b')")
    with following(mysql_database) as followed:
        assert [row["odd"] for each in batches(followed.source, mysql_database) for row in each.to_pylist()] == [
            "a? ?b"
        ]
        run(mysql_database, "UPDATE t SET odd = '?'")
        assert followed.changes() == [(UPSERT, ("1", "?"))]
        run(mysql_database, f"UPDATE t SET odd = _{charset} X'{raw}'")
        words = "Column odd [^\\n]* no counterpart in Unicode: leave the column out, or let it be one of utf8mb4"
        with pytest.raises(SourceRefused, match=words):
            batches(followed.source, mysql_database)
        with pytest.raises(SourceRefused, match=words):
            followed.changes()


def test_numbers_and_documents_are_printed_as_the_server_prints_them(mysql_database: Endpoint) -> None:
    """Numbers of every size as text, and JSON with whatever SQL puts into it."""
    run(mysql_database, "CREATE TABLE t (id int AUTO_INCREMENT PRIMARY KEY, x double, j json)")
    chance = random.Random(7)
    numbers = [chance.random() * 10 ** chance.randint(-25, 25) * chance.choice((1, -1)) for _ in range(2000)]
    numbers += [each for each in struct.unpack("<2000d", chance.randbytes(16000)) if abs(each) < 1e308]
    with following(mysql_database, as_text=("x",)) as followed:
        for at in range(0, len(numbers), 500):
            rows = ", ".join(f"({number!r} * 1e0, JSON_ARRAY({number!r} * 1e0))" for number in numbers[at : at + 500])
            run(mysql_database, f"INSERT INTO t (x, j) VALUES {rows}")
        run(mysql_database, *(f"INSERT INTO t (j) VALUES ({each})" for each in DOCUMENTS))
        expected = run(
            mysql_database, "SELECT CAST(id AS CHAR), CAST(x * 1e0 AS CHAR), CAST(j AS CHAR) FROM t ORDER BY id"
        )
        assert [values for _, values in followed.changes()] == expected


DOCUMENTS = (
    "JSON_OBJECT('d', CAST('2024-01-02' AS DATE), 't', CAST('-01:02:03.5' AS TIME(6)), 'none', NULL)",
    "JSON_OBJECT('dt', CAST('2024-01-02 03:04:05.123456' AS DATETIME(6)), 'dec', CAST(-1.50 AS DECIMAL(10,3)))",
    "JSON_ARRAY(1, -1, 40000, -40000, 3000000000, -3000000000, 18446744073709551615, true, false, NULL)",
    "JSON_ARRAY(CAST('abc' AS BINARY), CAST(REPEAT('é', 100) AS BINARY), b'101')",
    "JSON_QUOTE('tab \\t quote \" back \\\\ bell \\b null \\0 😀')",
    "JSON_OBJECT('', '', 'é', 'ü', 'long', REPEAT('x', 70000))",
    "(SELECT JSON_ARRAYAGG(JSON_OBJECT('number', n, 'text', REPEAT('y', 20))) FROM (WITH RECURSIVE s AS (SELECT 1 n"
    " UNION ALL SELECT n + 1 FROM s WHERE n < 900) SELECT n FROM s) AS many)",
    "'[]'",
    "'{}'",
    "'\"\"'",
    "'null'",
)


@contextmanager
def session(endpoint: Endpoint, charset: str = "utf8mb4") -> Iterator[Any]:
    """Give the cursor of a session of its own, which may load a file."""
    login = {"user": endpoint.user, "password": endpoint.password, "database": endpoint.database, "charset": charset}
    link = pymysql.connect(host=endpoint.host, port=endpoint.port, autocommit=True, local_infile=True, **login)
    with closing(link), link.cursor() as cursor:
        yield cursor


@pytest.mark.statement("X6")
@pytest.mark.parametrize(
    ("logged_as", "table"), [("STATEMENT", "t"), ("MIXED", "t"), ("STATEMENT", "upward"), ("ROW", "t")]
)
def test_a_file_that_is_loaded_is_replayed_by_its_rows_or_refused(
    mysql_database: Endpoint, tmp_path: Path, logged_as: str, table: str
) -> None:
    """X6: as a statement it stands in the log without its rows; a trigger of another table may change ours."""
    (tmp_path / "rows").write_text("1\n2\n3\n")
    made = "CREATE TRIGGER up AFTER INSERT ON upward FOR EACH ROW INSERT INTO t VALUES (NEW.id)"
    run(mysql_database, "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE upward (id int PRIMARY KEY)", made)
    before = run(mysql_database, "SELECT @@GLOBAL.local_infile")[0][0]
    with following(mysql_database) as followed, session(mysql_database) as cursor:
        try:
            cursor.execute("SET GLOBAL local_infile = 1")
            cursor.execute(f"SET SESSION binlog_format = {logged_as}")
            cursor.execute(f"LOAD DATA LOCAL INFILE '{tmp_path / 'rows'}' INTO TABLE {table}")
        finally:
            cursor.execute(f"SET GLOBAL local_infile = {before}")
        if logged_as != "STATEMENT":
            assert followed.changes() == [(UPSERT, (number,)) for number in "123"]
        else:
            told = rf"{mysql_database.database}\.t by a statement [^\n]*LOAD DATA[^\n]*binlog_format[^\n]*restart"
            with pytest.raises(SourceRefused, match=told):
                followed.changes()


@pytest.mark.statement("X6")
@pytest.mark.parametrize("end", ["", "XA COMMIT 'x'", "XA ROLLBACK 'x'"])
def test_an_xa_transaction_is_refused_whatever_becomes_of_it(mysql_database: Endpoint, end: str) -> None:
    """X6: its rows stand in the log where it is prepared; that of another table is passed over."""
    run(mysql_database, "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE other (id int PRIMARY KEY)")
    with following(mysql_database) as followed:
        for table in ("other", "t"):
            with session(mysql_database) as cursor:
                for each in ("XA START 'x'", f"INSERT INTO {table} VALUES (1)", "XA END 'x'", "XA PREPARE 'x'"):
                    cursor.execute(each)
                try:
                    if table == "other":
                        assert followed.changes() == []
                        cursor.execute(end or "XA COMMIT 'x'")
                        assert followed.changes() == []
                        continue
                    if end:
                        cursor.execute(end)
                    with pytest.raises(SourceRefused, match="XA transaction"):
                        followed.changes()
                finally:
                    if table == "t" and not end:
                        cursor.execute("XA ROLLBACK 'x'")


@pytest.mark.statement("X6")
def test_the_log_begins_behind_prepared_xa_transactions(
    mysql_database: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X6: what one of them changes stands in no window and is seen by no range before it is committed."""
    run(mysql_database, "CREATE TABLE t (id int PRIMARY KEY)")
    with session(mysql_database) as cursor:
        for each in ("XA START 'y'", "INSERT INTO t VALUES (1)", "XA END 'y'", "XA PREPARE 'y'"):
            cursor.execute(each)
        try:
            monkeypatch.setattr(
                "airflow_provider_backpressure.connectors.mysql.source.prepared_transactions.XA_SECONDS", 0.2
            )
            with pytest.raises(SourceUnavailable, match=r"XA transactions .*XA RECOVER"):
                Followed(mysql_database)
        finally:
            cursor.execute("XA COMMIT 'y'")
        with following(mysql_database) as followed:
            assert followed.windows() == []


@pytest.mark.statement("X6")
def test_without_the_right_to_see_xa_transactions_no_log_begins(mysql_database: Endpoint) -> None:
    """X6: one that was prepared before the server's restart is in no counter."""
    run(mysql_database, "CREATE TABLE t (id int PRIMARY KEY)")
    with new_role(mysql_database) as role:
        rights = "REPLICATION SLAVE, REPLICATION CLIENT, SELECT"
        run(mysql_database, f"GRANT {rights} ON *.* TO '{role.user}'@'%'")
        with pytest.raises(SourceRefused, match="GRANT XA_RECOVER_ADMIN"):
            Followed(role)


@pytest.mark.statement("X6")
def test_a_statement_is_read_in_its_clients_character_set(mysql_database: Endpoint) -> None:
    """X6: these bytes of gbk are UTF-8 too, of another name."""
    run(mysql_database, "CREATE TABLE `一丌` (id int PRIMARY KEY)")
    with following(mysql_database, table="一丌") as followed, session(mysql_database, "gbk") as cursor:
        cursor.execute("TRUNCATE TABLE `一丌`")
        assert followed.changes() == [(TRUNCATE, (None,))]
        cursor.execute("RENAME TABLE `一丌` TO other")
        with pytest.raises(SourceRefused, match="another table"):
            followed.changes()


@pytest.mark.statement("X6")
def test_a_temporary_table_of_the_same_name_stops_it(mysql_database: Endpoint) -> None:
    """X6: a session that logs statements may empty it, and the log names only the table."""
    run(mysql_database, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    with following(mysql_database) as followed:
        hide = ("SET SESSION binlog_format = STATEMENT", "CREATE TEMPORARY TABLE t (id int)", "TRUNCATE TABLE t")
        run(mysql_database, *hide)
        with pytest.raises(SourceRefused, match="another table"):
            followed.changes()


@pytest.mark.statement("X6")
def test_a_temporary_table_that_was_there_before_the_log_is_not_taken_for_the_table(mysql_database: Endpoint) -> None:
    """X6: no window shows that it was made, so its TRUNCATE reads as the table's own."""
    run(mysql_database, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    with session(mysql_database) as cursor:
        cursor.execute("SET SESSION binlog_format = STATEMENT")
        cursor.execute("CREATE TEMPORARY TABLE t (id int)")
        with following(mysql_database) as followed:
            cursor.execute("TRUNCATE TABLE t")
            with pytest.raises(SourceRefused, match=r"empties a temporary table that is called [^ ]+\.t too"):
                followed.changes()
        assert run(mysql_database, "SELECT * FROM t") == [(1,)]


@contextmanager
def prepared(endpoint: Endpoint, table: str) -> Iterator[Any]:
    """Give the cursor of a session with a prepared XA transaction that inserts into a table; it ends at last."""
    with session(endpoint) as cursor:
        for each in ("XA START 'z'", f"INSERT INTO {table} VALUES (1)", "XA END 'z'", "XA PREPARE 'z'"):
            cursor.execute(each)
        try:
            yield cursor
        finally:
            with suppress(pymysql.Error):
                cursor.execute("XA ROLLBACK 'z'")


@pytest.mark.statement("X6")
def test_the_commit_of_an_xa_transaction_that_was_waited_for_is_seen_by_every_range(
    mysql_database: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X6: it stands in the first window without its rows, and a server that does not have it yet is not read."""
    run(mysql_database, "CREATE TABLE t (id int PRIMARY KEY)")
    with prepared(mysql_database, "t") as cursor:
        list_prepared = prepared_transactions.list_prepared

        def commit_once_listed(opened: Session) -> set[tuple[str, ...]]:
            found = list_prepared(opened)
            if found:
                cursor.execute("XA COMMIT 'z'")
            return found

        monkeypatch.setattr(prepared_transactions, "list_prepared", commit_once_listed)
        with following(mysql_database) as followed:
            start = Place.from_position(followed.start)
            assert start.required.count == start.gtids.count + 1
            assert Place.from_position(start.position) == start
            assert followed.changes() == []


@pytest.mark.statement("X6")
def test_an_xa_transaction_that_was_prepared_unseen_before_the_log_began_stops_at_its_commit(
    mysql_database: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X6: the server may list it a moment after its transaction number is known."""
    run(mysql_database, "CREATE TABLE t (id int PRIMARY KEY)")
    monkeypatch.setattr(prepared_transactions, "list_prepared", lambda opened: set())
    with prepared(mysql_database, "t") as cursor, following(mysql_database) as followed:
        cursor.execute("XA COMMIT 'z'")
        with pytest.raises(SourceRefused, match=r"commits the XA transaction X'7a',X'',1, which was prepared before"):
            followed.changes()


@pytest.mark.statement("X6")
@pytest.mark.parametrize("files", [0, 1, 6])
def test_an_xa_transaction_of_another_table_may_commit_in_a_later_window(mysql_database: Endpoint, files: int) -> None:
    """X6: its PREPARE is found in the log, some files before the window that has its commit."""
    run(mysql_database, "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE other (id int PRIMARY KEY)")
    with following(mysql_database) as followed, prepared(mysql_database, "other") as cursor:
        run(mysql_database, *["FLUSH BINARY LOGS"] * files, "INSERT INTO t VALUES (2)")
        first = followed.windows()
        assert followed.changes(*first) == [(UPSERT, ("2",))]
        cursor.execute("XA COMMIT 'z'")
        (second,) = followed.log.windows(first[-1].end, bytes=ALL)
        assert followed.changes(second) == []


def test_a_log_that_the_server_removed_is_lost(mysql_database: Endpoint) -> None:
    """It is said when windows are planned, and by a task that comes too late; nothing is skipped."""
    run(mysql_database, "CREATE TABLE t (id int PRIMARY KEY)")
    with following(mysql_database) as followed:
        run(mysql_database, "INSERT INTO t VALUES (1)")
        (window,) = followed.windows()
        run(mysql_database, "FLUSH BINARY LOGS", "INSERT INTO t VALUES (2)")
        file = run(mysql_database, "SHOW MASTER STATUS")[0][0]
        run(mysql_database, f"PURGE BINARY LOGS TO '{file}'")
        with pytest.raises(LogLost, match=r"removed [^\n]*binlog_expire_logs_seconds"):
            followed.windows()
        with pytest.raises(LogLost, match=r'no longer has the binlog[^\n]*"backpressure": "restart"'):
            followed.changes(window)


def test_a_file_that_is_gone_and_was_replayed_is_not_missed(mysql_database: Endpoint) -> None:
    """Removed between two runs, or between plan and task: the server finds the next one by its transactions."""
    run(mysql_database, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    with following(mysql_database) as followed:
        assert "@" in followed.start.text
        run(mysql_database, "FLUSH BINARY LOGS", "INSERT INTO t VALUES (2)")
        windows = followed.windows()
        file = run(mysql_database, "SHOW MASTER STATUS")[0][0]
        run(mysql_database, f"PURGE BINARY LOGS TO '{file}'")
        assert followed.changes(*windows) == [(UPSERT, ("2",))]
        assert followed.changes() == [(UPSERT, ("2",))]


@pytest.mark.statement("T8", "W2")
def test_after_a_fail_over_the_log_is_not_read_from_the_place_in_the_other_servers_file(
    mysql_database: Endpoint,
) -> None:
    """T8, W2: a file of that name may have an event there, within a transaction that was replayed long ago."""
    run(mysql_database, "CREATE TABLE t (id int PRIMARY KEY)")
    with following(mysql_database) as followed:
        run(mysql_database, "INSERT INTO t VALUES (1)")
        place = Place.from_position(followed.log.begin())
        run(mysql_database, "INSERT INTO t VALUES (2)")
        events = run(mysql_database, f"SHOW BINLOG EVENTS IN '{place.file}'")
        inside = max(int(row[1]) for row in events if row[2] == "Table_map" and int(row[1]) < place.at)
        followed.start = replace(place, at=inside, made=f"{uuid4()}/1").position
        assert followed.changes() == [(UPSERT, ("2",))]
        (window,) = followed.windows()
        own = replace(window, start=replace(place, at=inside).position)
        with pytest.raises(LogLost, match="is within a transaction"):
            followed.changes(own)


@pytest.mark.statement("W2")
@pytest.mark.parametrize("gone", [False, True], ids=["kept", "removed"])
@pytest.mark.parametrize("another", [False, True], ids=["alone", "followed"])
def test_transactions_without_a_gtid_are_refused_also_where_gtids_are_on_again(
    mysql_database: Endpoint, gone: bool, another: bool
) -> None:
    """W2: the mode was taken down and up again between two runs. Each change of it begins a file.

    Without a file to begin at, the server passes over those in which there is no GTID.
    """
    run(mysql_database, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    with following(mysql_database) as followed:
        file = run(mysql_database, "SHOW MASTER STATUS")[0][0]
        for mode in ("ON_PERMISSIVE", "OFF_PERMISSIVE"):
            run(mysql_database, f"SET GLOBAL gtid_mode = {mode}")
        try:
            run(mysql_database, "INSERT INTO t VALUES (2)")
        finally:
            for mode in ("ON_PERMISSIVE", "ON"):
                run(mysql_database, f"SET GLOBAL gtid_mode = {mode}")
        if another:
            run(mysql_database, "INSERT INTO t VALUES (3)")
        if gone:
            files = [row[0] for row in run(mysql_database, "SHOW BINARY LOGS")]
            run(mysql_database, f"PURGE BINARY LOGS TO '{files[files.index(file) + 1]}'")
        with pytest.raises(SourceRefused, match="has transactions without a GTID"):
            followed.changes()


def test_a_second_attempt_ends_the_first(mysql_database: Endpoint) -> None:
    """The server knows both as one replica; what is ended says that it may be tried again."""
    run(mysql_database, "CREATE TABLE t (id int AUTO_INCREMENT PRIMARY KEY, a longtext)")
    with following(mysql_database) as followed:
        rows = ", ".join(["(REPEAT('x', 20000))"] * 500)
        run(mysql_database, *[f"INSERT INTO t (a) VALUES {rows}"] * 4)
        read, (window,) = followed.source.read_spec(followed.snapshot), followed.windows()
        piece = followed.source.slice(read, window, "0.0")
        old, new = (
            iter(mysql_log.changes(mysql_database, read, piece, ("id",), f"bp:plan:0.0:{attempt}"))
            for attempt in (1, 2)
        )
        assert 20 < len(next(old)) < mysql_log.SOME
        assert sum(map(len, new)) == 2000
        with pytest.raises(SourceUnavailable):
            list(old)


def test_a_server_that_does_not_have_what_was_replayed_is_refused(mysql_database: Endpoint) -> None:
    """It was restored, or is another one."""
    run(mysql_database, "CREATE TABLE t (id int PRIMARY KEY)")
    with following(mysql_database) as followed:
        there = Place.from_position(followed.start).gtids
        ahead = Place(gtids=there.union(there.parse("aaaaaaaa-0000-0000-0000-000000000001:1-5"))).position
        with pytest.raises(LogLost, match="aaaaaaaa-0000-0000-0000-000000000001:1-5, which were replayed"):
            followed.log.windows(ahead, bytes=ALL)


@pytest.mark.statement("T8")
def test_nothing_is_read_from_a_server_that_has_not_applied_the_plans_start(mysql_database: Endpoint) -> None:
    """T8: another server of the same address, which lags behind, neither shows rows nor sends its log."""
    run(mysql_database, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    with following(mysql_database) as followed:
        source, there = followed.source, Place.from_position(followed.start).gtids
        ahead = Place(gtids=there.union(there.parse("aaaaaaaa-0000-0000-0000-000000000001:1-5"))).position
        plain, words = source.read_spec(followed.snapshot), r"has not applied aaaaaaaa-[^\n]*lead to one server"
        piece = source.slice(plain, KeyBounds.of_column(column="id", start=None, end=None), "0.0")
        for read in (plain, replace(plain, since=str(followed.start))):
            assert sum(batch.num_rows for batch in read_rows(mysql_database, read, piece, "bp:plan:0.0:1")) == 1
        with pytest.raises(SourceUnavailable, match=words):
            list(read_rows(mysql_database, replace(plain, since=str(ahead)), piece, "bp:plan:0.0:1"))
        with pytest.raises(SourceUnavailable, match=words):
            followed.changes(LogBounds(stream="s", start=followed.start, end=ahead))


@pytest.mark.statement("T8")
def test_a_server_that_does_not_have_what_ranges_have_seen_is_refused(
    mysql_database: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T8: a replica without the last transactions took its place; it has the start, and others of its own."""
    run(mysql_database, "CREATE TABLE t (id int PRIMARY KEY)")
    change_log = "airflow_provider_backpressure.connectors.mysql.source.change_log"
    monkeypatch.setattr(f"{change_log}.SETTLED_SECONDS", 0.2)
    with following(mysql_database) as followed:
        run(mysql_database, *[f"INSERT INTO t VALUES ({number})" for number in range(20)])
        there = Place.from_position(followed.start).gtids
        lost = there.union(there.parse("aaaaaaaa-0000-0000-0000-000000000001:1-5"))
        with pytest.raises(LogLost, match=r"aaaaaaaa-0000-0000-0000-000000000001:1-5, which ranges have read"):
            followed.log.windows(followed.start, bytes=ALL, goal=Place(gtids=lost).position)
        # What is being committed counts as seen, and is there a moment later.
        soon = Place(gtids=lost).position
        monkeypatch.setattr(f"{change_log}.seen", lambda ask: lost)
        assert followed.log.windows(followed.start, bytes=ALL, goal=soon)


def test_a_log_that_was_reset_and_written_past_its_old_number_is_lost(mysql_database: Endpoint) -> None:
    """Its transactions have the numbers of those that were replayed; its file was begun at another time."""
    run(mysql_database, "RESET MASTER", "CREATE TABLE t (id int PRIMARY KEY)", "FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
    with following(mysql_database) as followed:
        time.sleep(1.1)  # The server knows seconds.
        old = replace(Place.from_position(followed.start), made="")
        run(mysql_database, "RESET MASTER", *[f"INSERT INTO t VALUES ({number})" for number in range(20)])
        assert followed.log.windows(old.position, bytes=ALL), "positions of older versions do not know it"
        with pytest.raises(LogLost, match=r"another binlog [^\n]*was reset or restored"):
            followed.windows()
        run(mysql_database, "FLUSH BINARY LOGS", "FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
        with pytest.raises(LogLost, match="another binlog"):
            followed.windows()


def test_a_log_that_was_reset_is_noticed_also_after_a_run_that_could_not_place_its_end(
    mysql_database: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction that is open for long hides the place in the file; the file's age is known all the same."""
    monkeypatch.setattr("airflow_provider_backpressure.connectors.mysql.binlog_position.SETTLED_SECONDS", 0.2)
    run(mysql_database, "RESET MASTER", "CREATE TABLE t (id int PRIMARY KEY)")
    with session(mysql_database) as cursor:
        cursor.execute("SET GTID_NEXT = 'aaaaaaaa-0000-0000-0000-000000000001:1'")
        followed = Followed(mysql_database)
        cursor.execute("ROLLBACK")
    with closing(followed.source):
        place = Place.from_position(followed.start)
        assert (bool(place.file), bool(place.made), place.is_readable) == (True, True, False)
        run(mysql_database, "INSERT INTO t VALUES (1)", "FLUSH BINARY LOGS", "INSERT INTO t VALUES (2)")
        assert followed.changes(*followed.windows(1)) == [(UPSERT, ("1",)), (UPSERT, ("2",))]
        time.sleep(1.1)  # The server knows seconds.
        run(mysql_database, "RESET MASTER", *[f"INSERT INTO t VALUES ({number})" for number in range(10, 30)])
        with pytest.raises(LogLost, match="another binlog"):
            followed.windows()


def test_a_log_that_goes_on_otherwise_from_where_it_was_replayed_to_is_lost(mysql_database: Endpoint) -> None:
    """As that of a restored disk: the file is shorter, or no event begins there. Another server's files may differ."""
    run(mysql_database, "CREATE TABLE t (id int PRIMARY KEY)")
    with following(mysql_database) as followed:
        run(mysql_database, "INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)")
        start = Place.from_position(followed.start)
        (_, begin, *_), (_, second, *_) = run(
            mysql_database, f"SHOW BINLOG EVENTS IN '{start.file}' FROM {start.at} LIMIT 2"
        )
        assert followed.windows()
        for at in (start.at + 7, second, begin + 10**6):
            with pytest.raises(LogLost, match="another binlog"):
                followed.log.windows(replace(start, at=at).position, bytes=ALL)
        elsewhere = replace(start, made=f"{uuid4()}/1", at=10**6)
        assert followed.log.windows(elsewhere.position, bytes=ALL)


@pytest.mark.parametrize(
    ("declared", "made", "words"),
    [
        ({}, "CREATE TABLE t (a int)", r"a key by which|cannot be cut"),
        ({}, "CREATE TABLE t (id int PRIMARY KEY) ENGINE MyISAM", "its engine is MyISAM"),
        (
            {},
            "CREATE TABLE t (id int PRIMARY KEY, p int, CONSTRAINT upward FOREIGN KEY (p) REFERENCES t (id)"
            " ON DELETE CASCADE)",
            "foreign key upward, and MySQL does not log",
        ),
        (
            {},
            "CREATE TABLE t (id int PRIMARY KEY, a varchar(9) CHARACTER SET big5)",
            "column a is in the character set big5",
        ),
        ({"as_text": ("a",)}, "CREATE TABLE t (id int PRIMARY KEY, a int(9) zerofill)", "as_text cannot name it"),
        ({"where": "id > 1"}, "CREATE TABLE t (id int PRIMARY KEY)", "catch_up goes without where"),
        ({"increment_column": "id"}, "CREATE TABLE t (id int PRIMARY KEY)", "catch_up goes without increment_column"),
    ],
)
def test_a_table_that_cannot_be_replayed_is_refused_by_name(
    mysql_database: Endpoint, declared: dict[str, Any], made: str, words: str
) -> None:
    """What stands against it is said before anything is read."""
    run(mysql_database, made)
    with pytest.raises(SourceRefused, match=words):
        Followed(mysql_database, **declared)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("binlog_row_image", "MINIMAL"),
        ("binlog_row_metadata", "MINIMAL"),
        ("binlog_format", "MIXED"),
        ("binlog_row_value_options", "PARTIAL_JSON"),
        ("binlog_order_commits", "OFF"),
    ],
)
def test_a_server_whose_log_says_too_little_is_refused_by_name(mysql_database: Endpoint, name: str, value: str) -> None:
    """The setting, its value, and what to do."""
    run(mysql_database, "CREATE TABLE t (id int PRIMARY KEY)")
    before = run(mysql_database, f"SELECT @@GLOBAL.{name}")[0][0]
    run(mysql_database, f"SET GLOBAL {name} = {value}")
    try:
        with pytest.raises(SourceRefused, match=rf"{name} is {value} and has to be [^\n]*SET PERSIST {name}"):
            Followed(mysql_database)
    finally:
        run(mysql_database, f"SET GLOBAL {name} = {before!r}")


def test_rights_that_are_lacking_are_named(mysql_database: Endpoint) -> None:
    """Both at once, with the statement that gives them."""
    run(mysql_database, "CREATE TABLE t (id int PRIMARY KEY)")
    with new_role(mysql_database) as role:
        run(mysql_database, f"GRANT SELECT ON t TO '{role.user}'@'%'")
        with pytest.raises(SourceRefused, match=r"GRANT REPLICATION SLAVE, REPLICATION CLIENT ON \*\.\*"):
            Followed(role)
        rights = "REPLICATION SLAVE, REPLICATION CLIENT, XA_RECOVER_ADMIN"
        run(mysql_database, f"GRANT {rights} ON *.* TO '{role.user}'@'%'")
        with closing(Followed(replace(role)).source):
            pass


def test_a_range_tells_a_position_behind_whatever_it_may_have_seen(mysql_database: Endpoint) -> None:
    """Transactions of the moment are counted as well."""
    run(mysql_database, "CREATE TABLE t (id int PRIMARY KEY)")
    before = LogPosition.parse(mysql_log.position(mysql_database, "bp:plan:0.0:1"))
    run(mysql_database, "INSERT INTO t VALUES (1)")
    after = LogPosition.parse(mysql_log.position(mysql_database, "bp:plan:0.0:1"))
    assert after.at == before.at + 1
    assert Place.from_position(before).gtids.within(Place.from_position(after).gtids)
