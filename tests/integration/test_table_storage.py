"""Tables that are rewritten, emptied or exchanged past a snapshot, and past the log."""

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace

import psycopg
import pytest

from airflow_provider_backpressure.connectors.postgres import table_storage as storage
from airflow_provider_backpressure.connectors.postgres.identifiers import QualifiedName
from airflow_provider_backpressure.connectors.postgres.source.table import PostgresTable
from airflow_provider_backpressure.connectors.postgres.tasks.copy_streams import Reading, open_copy_out
from airflow_provider_backpressure.connectors.postgres.tasks.exported_snapshot import export_snapshot
from airflow_provider_backpressure.core.config import Budget, Consistency, NewColumn
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.gate.hydration_record import Phase
from airflow_provider_backpressure.core.planning.plan_result import Verdict
from airflow_provider_backpressure.core.ports import Runner
from airflow_provider_backpressure.core.snapshot.spark_messages import ReadSpec, Slice
from airflow_provider_backpressure.core.snapshot.table_alterations import check_kept, find_exchanged
from airflow_provider_backpressure.core.verification.verifier import Verify
from airflow_provider_backpressure.exceptions import PlanOutdated, SnapshotLost, SourceRefused, SourceUnavailable
from airflow_provider_backpressure.sources import PostgresSource
from tests.support.catching_up import Followed, follow
from tests.support.composed import Composed, difference
from tests.support.marks import mark_long
from tests.support.postgres import connected, new_role, run

pytestmark = [pytest.mark.integration, pytest.mark.in_process, pytest.mark.statement("X6")]

PLAIN = ("CREATE TABLE t (id int PRIMARY KEY, v int, doc text)",)
KEYLESS = ("CREATE TABLE t (id int, v int, doc text)",)
PARTITIONED = (
    "CREATE TABLE t (id int PRIMARY KEY, v int, doc text) PARTITION BY RANGE (id)",
    "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (500)",
    "CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (500) TO (2000) PARTITION BY RANGE (id)",
    "CREATE TABLE t21 PARTITION OF t2 FOR VALUES FROM (500) TO (2000)",
    "CREATE TABLE more (id int PRIMARY KEY, v int, doc text)",
    "INSERT INTO more SELECT g, 0, '' FROM generate_series(3000, 3100) g",
)
INHERITED = (
    "CREATE TABLE t (id int PRIMARY KEY, v int, doc text)",
    "CREATE TABLE child (PRIMARY KEY (id)) INHERITS (t)",
    "INSERT INTO child SELECT g, 0, '' FROM generate_series(3000, 3100) g",
)
FILL = "INSERT INTO t SELECT g, g, md5(g::text) FROM generate_series(1, 1000) g"
SWAP = (
    "CREATE TABLE fresh (LIKE t INCLUDING ALL)",
    "INSERT INTO fresh SELECT id, -v, 'other' FROM t",
    "ALTER TABLE t RENAME TO old; ALTER TABLE fresh RENAME TO t",
)
REWRITES = {
    "truncate": (PLAIN, "TRUNCATE t"),
    "truncate-refill": (PLAIN, "TRUNCATE t", "INSERT INTO t SELECT g, -g, 'new' FROM generate_series(1, 1500) g"),
    "volatile-default": (PLAIN, "ALTER TABLE t ADD COLUMN token uuid DEFAULT gen_random_uuid()"),
    "serial": (PLAIN, "ALTER TABLE t ADD COLUMN n bigserial"),
    "same-type": (PLAIN, "ALTER TABLE t ALTER v TYPE int USING v + 1"),
    "unlogged": (PLAIN, "ALTER TABLE t SET UNLOGGED"),
    "vacuum-full": (PLAIN, "VACUUM FULL t"),
    "swap": (PLAIN, *SWAP),
    "partition-dropped": (PARTITIONED, "DROP TABLE t1"),
    "partition-detached": (PARTITIONED, "ALTER TABLE t DETACH PARTITION t2"),
    "partition-truncated": (PARTITIONED, "TRUNCATE t21"),
    "partition-attached": (PARTITIONED, "ALTER TABLE t ATTACH PARTITION more FOR VALUES FROM (3000) TO (4000)"),
    "partition-swapped": (
        PARTITIONED,
        "ALTER TABLE t DETACH PARTITION t1",
        "CREATE TABLE t3 (LIKE t INCLUDING ALL)",
        "ALTER TABLE t ATTACH PARTITION t3 FOR VALUES FROM (0) TO (500)",
    ),
    "child-truncated": (INHERITED, "TRUNCATE child"),
    "child-disinherited": (INHERITED, "ALTER TABLE child NO INHERIT t"),
}


def planned(source: PostgresTable, consistency: Consistency = Consistency.SNAPSHOT) -> tuple[ReadSpec, Slice]:
    """Return how a plan reads the table, and a slice that is all of it."""
    snapshot = source.snapshot(consistency)
    read = source.read_spec(snapshot)
    (whole,) = source.ranges(snapshot, rows=10**6, bytes=2**40)
    return read, source.slice(read, whole.bounds, "0.0")


def opened(endpoint: Endpoint, **declared: object) -> PostgresTable:
    return PostgresSource(**{"conn_id": "s", "table": "public.t", **declared}).open(endpoint)  # type: ignore[arg-type]


@contextmanager
def exported(endpoint: Endpoint) -> Iterator[str]:
    """Give a snapshot that stays."""
    with connected(endpoint, autocommit=False) as keeper:
        keeper.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        yield export_snapshot(keeper)


def count(endpoint: Endpoint, read: ReadSpec, piece: Slice) -> int:
    """Return how many rows a task reads."""
    with open_copy_out(endpoint, Reading.from_slice(read, piece, "bp-test"), options="FORMAT csv") as stream:
        return sum(len(block) for block in stream)


def test_a_snapshot_whose_name_is_that_of_another_one_by_now_is_lost(database: Endpoint) -> None:
    """L8: after a crash a server uses names of snapshots again, so a frozen task may import another one."""
    run(database, *PLAIN, FILL)
    with closing(opened(database)) as source, exported(database) as first:
        read, piece = planned(source)
        run(database, "DELETE FROM t")
        with exported(database) as second:
            assert count(database, replace(read, snapshot=second), piece) == 0
            taken = f"{second.partition('/')[0]}/{first.partition('/')[2]}"
            with pytest.raises(SnapshotLost, match="that of another one"):
                count(database, replace(read, snapshot=taken), piece)
        assert count(database, replace(read, snapshot=first), piece) > 0


@pytest.mark.parametrize("case", REWRITES)
def test_a_range_is_not_read_in_a_snapshot_that_no_longer_shows_the_table(database: Endpoint, case: str) -> None:
    """X6: the table is another one between two ranges, and PostgreSQL says nothing of it: rows are just missing."""
    made, *statements = REWRITES[case]
    run(database, *made, FILL)
    declared = {"split_column": "id"} if made is INHERITED else {}
    with closing(opened(database, **declared)) as source, exported(database) as snapshot:
        read, piece = planned(source)
        read = replace(read, snapshot=snapshot)
        rows = count(database, read, piece)
        assert rows >= 1000
        run(database, *statements)
        with pytest.raises(SnapshotLost, match=r"public\.t was rewritten or exchanged since its plan"):
            count(database, read, piece)


EXCHANGED = {
    "dropped-added": ("ALTER TABLE t DROP doc", "ALTER TABLE t ADD doc text"),
    "expand-contract": ("ALTER TABLE t ADD new text", "ALTER TABLE t DROP doc", "ALTER TABLE t RENAME new TO doc"),
    "names-swapped": (
        "ALTER TABLE t ADD other text",
        "ALTER TABLE t RENAME doc TO gone",
        "ALTER TABLE t RENAME other TO doc",
    ),
}


@pytest.mark.parametrize("consistency", [Consistency.SNAPSHOT, Consistency.STATIC])
@pytest.mark.parametrize("made", [PLAIN, KEYLESS, PARTITIONED], ids=["keyed", "blocks", "partitioned"])
@pytest.mark.parametrize("case", EXCHANGED)
def test_a_column_that_is_another_one_by_now_is_not_taken_for_the_planned(
    database: Endpoint, case: str, made: tuple[str, ...], consistency: Consistency
) -> None:
    """X6: no file changes and the types are the same; its rows would arrive as NULL."""
    run(database, *made, FILL)
    in_snapshot = consistency is Consistency.SNAPSHOT
    declared = {"split_column": "id"} if made is KEYLESS and not in_snapshot else {}
    with closing(opened(database, **declared)) as source, exported(database) as snapshot:
        read, piece = planned(source, consistency)
        read = replace(read, snapshot=snapshot if in_snapshot else None)
        assert count(database, read, piece) >= 1000
        run(database, *EXCHANGED[case])
        with pytest.raises(SnapshotLost if in_snapshot else SourceRefused, match="column doc is another one"):
            count(database, read, piece)


@pytest.mark.parametrize("made", [PLAIN, PARTITIONED], ids=["keyed", "partitioned"])
@pytest.mark.parametrize(
    "statements",
    [
        ("ALTER TABLE t RENAME TO old", "CREATE TABLE t (LIKE old INCLUDING ALL)", "INSERT INTO t TABLE old"),
        (
            "CREATE TABLE fresh AS TABLE t",
            "ALTER TABLE fresh ADD PRIMARY KEY (id)",
            "DROP TABLE t",
            "ALTER TABLE fresh RENAME TO t",
        ),
    ],
    ids=["renamed", "dropped"],
)
def test_another_table_under_the_name_is_not_read_for_the_planned(
    database: Endpoint, made: tuple[str, ...], statements: tuple[str, ...]
) -> None:
    """Neither by a range of a plan whose source stands still, nor by the run that would follow it."""
    run(database, *made, FILL)
    with closing(opened(database)) as source:
        read, piece = planned(source, Consistency.STATIC)
        assert count(database, read, piece) >= 1000
        run(database, *statements)
        with pytest.raises(SourceRefused, match="it is another table, dropped and made again or renamed; ranges"):
            count(database, read, piece)
        now = planned(source, Consistency.STATIC)[0]
    assert read.storage is not None
    assert now.storage is not None
    assert find_exchanged(read.storage, now.storage, ["id"]) == [
        "it is another table, dropped and made again or renamed"
    ]


def test_a_view_may_be_made_again(database: Endpoint) -> None:
    """It holds no rows of its own."""
    run(database, *PLAIN, FILL, "CREATE VIEW seen AS TABLE t")
    with closing(opened(database, table="public.seen", split_column="id")) as source:
        read, piece = planned(source, Consistency.STATIC)
        assert read.storage is not None
        assert read.storage.number is None
        run(database, "DROP VIEW seen", "CREATE VIEW seen AS SELECT * FROM t")
        assert count(database, read, piece) >= 1000


def test_a_column_of_the_condition_alone_matters_too(database: Endpoint) -> None:
    """X6: no row would fulfil the condition any more."""
    run(database, *PLAIN, FILL)
    with closing(opened(database, columns=["id"], where="v > 0")) as source:
        read, piece = planned(source, Consistency.STATIC)
        assert count(database, read, piece) >= 1000
        run(database, "ALTER TABLE t DROP v", "ALTER TABLE t ADD v int")
        with pytest.raises(SourceRefused, match="column v is another one"):
            count(database, read, piece)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE t SET v = 0",
        "DELETE FROM t WHERE id < 100",
        "ALTER TABLE t ADD COLUMN more int DEFAULT 7",
        "ALTER TABLE t ALTER v SET NOT NULL",
        "REINDEX TABLE t",
        "CREATE INDEX ON t (v)",
        "VACUUM t",
    ],
)
def test_what_leaves_a_snapshot_whole_costs_no_plan(database: Endpoint, statement: str) -> None:
    run(database, *PLAIN, FILL)
    with closing(opened(database, where="v >= 0")) as source, exported(database) as snapshot:
        read, piece = planned(source)
        read = replace(read, snapshot=snapshot)
        run(database, statement)
        assert count(database, read, piece) == 1000


def test_what_a_condition_asks_belongs_to_the_table(database: Endpoint) -> None:
    run(database, *PLAIN, FILL, "CREATE TABLE chosen AS SELECT id FROM t")
    with (
        closing(opened(database, where="id IN (SELECT id FROM chosen)")) as source,
        exported(database) as snapshot,
    ):
        read, piece = planned(source)
        read = replace(read, snapshot=snapshot)
        assert count(database, read, piece) == 1000
        run(database, "TRUNCATE chosen")
        with pytest.raises(SnapshotLost, match=r"public\.t was rewritten"):
            count(database, read, piece)


@pytest.mark.parametrize(
    ("made", "statement"),
    [
        ("CREATE VIEW t AS SELECT * FROM rows", "TRUNCATE rows"),
        ("CREATE MATERIALIZED VIEW t AS SELECT * FROM rows", "REFRESH MATERIALIZED VIEW t"),
    ],
)
def test_a_view_is_as_its_tables_are(database: Endpoint, made: str, statement: str) -> None:
    run(database, "CREATE TABLE rows AS SELECT g AS id FROM generate_series(1, 1000) g", made)
    with closing(opened(database, split_column="id")) as source, exported(database) as snapshot:
        read, piece = planned(source)
        read = replace(read, snapshot=snapshot)
        assert count(database, read, piece) == 1000
        run(database, statement)
        with pytest.raises(SnapshotLost, match=r"public\.t was rewritten"):
            count(database, read, piece)


def test_a_role_that_may_read_some_columns_needs_no_more(database: Endpoint) -> None:
    """LOCK TABLE takes the right to all of them, so the table is locked by a query."""
    run(database, *PARTITIONED, FILL)
    with new_role(database) as role:
        run(database, f"GRANT SELECT (id, v) ON t TO {role.user}")
        with closing(opened(role, columns=("id", "v"))) as source, exported(role) as snapshot:
            read, piece = planned(source)
            read = replace(read, snapshot=snapshot)
            assert count(role, read, piece) == 1000
            run(database, "TRUNCATE t1")
            with pytest.raises(SnapshotLost, match=r"public\.t was rewritten"):
                count(role, read, piece)


def test_the_files_of_a_table_that_is_declared_static_do_not_matter(database: Endpoint) -> None:
    run(database, *PLAIN, FILL)
    with closing(opened(database)) as source:
        storage = planned(source, Consistency.STATIC)[0].storage
        assert storage is not None
        assert storage.relations == ()


def test_a_plan_of_an_earlier_release_is_read_as_it_was(database: Endpoint) -> None:
    run(database, *PLAIN, FILL)
    with closing(opened(database)) as source, exported(database) as snapshot:
        read, piece = planned(source)
        run(database, "VACUUM FULL t")
        assert count(database, replace(read, snapshot=snapshot, storage=None), piece) == 1000


def test_a_table_that_stays_locked_is_tried_again(database: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for ever behind a statement that has locked the table."""
    monkeypatch.setattr(storage, "LOCK_SECONDS", 1)
    run(database, *PLAIN, FILL)
    with closing(opened(database)) as source, connected(database, autocommit=False) as other:
        snapshot = source.snapshot()
        other.execute("LOCK TABLE t")
        with pytest.raises(SourceUnavailable, match=r"public\.t is locked in the source by a statement such as ALTER"):
            source.read_spec(snapshot)


@pytest.mark.parametrize("mode", mark_long(["append", "replace"], quick=["replace"]))
def test_rows_that_a_rewrite_hid_are_read_again(hydration: Composed, mode: str) -> None:
    """X6: truncated and filled again between two ranges; what is published is the table at one moment."""
    run(hydration.source, *PLAIN, FILL)
    budget = Budget(credits=1, range_rows=250)
    composed = replace(hydration, consistency="snapshot", mode=mode, budget=budget)
    with composed.open() as ports:
        ports.planner().plan()
        lane = ports.hydrator()
        lane.on_commit = lambda: run(hydration.source, *REWRITES["truncate-refill"][1:])
        with pytest.raises(SnapshotLost, match=r"public\.t was rewritten"):
            lane.run()
        ports.close_plan()
        ports.hydrator().run()
    composed.finish()
    assert run(hydration.sink, "SELECT count(*) FROM raw.t") == [(1500,)]
    assert difference(hydration.source, "public.t", hydration.sink, "raw.t") == (0, 0)


def test_a_table_that_is_rewritten_before_the_first_range_is_planned_again(hydration: Composed) -> None:
    run(hydration.source, *PLAIN, FILL)
    with replace(hydration, consistency="snapshot").open() as ports:
        ports.planner().plan()
        run(hydration.source, "ALTER TABLE t ALTER v TYPE int USING v + 1")
        with pytest.raises(SnapshotLost, match=r"public\.t was rewritten"):
            ports.source.keep(ports.plan)
        ports.close_plan()
        ports.hydrator().run()
        report = ports.verifier().verify(ports.ledger.ranges(ports.plan.plan_id), Verify.TARGET)
    assert report.equal
    assert difference(hydration.source, "public.t", hydration.sink, "raw.t") == (0, 0)


@pytest.fixture
def followed(hydration: Composed, runner: Runner, logins: dict[str, Endpoint]) -> Followed:
    """``public.t`` of 1,000 rows, which ``raw.t`` follows."""
    run(hydration.source, *PLAIN, FILL)
    made = follow(hydration, runner, logins)
    made.go()
    return made


STATEMENTS = [
    ("TRUNCATE t", None),
    ("VACUUM FULL t", None),
    ("CLUSTER t USING t_pkey", None),
    ("ALTER TABLE t ALTER v SET NOT NULL, ALTER v SET DEFAULT 4, ALTER doc SET STORAGE EXTERNAL", None),
    ("ALTER TABLE t ALTER unread TYPE int USING 7", None),
    ("ALTER TABLE t ALTER v TYPE int USING v + 1", "column v was altered and the table was rewritten"),
    ("ALTER TABLE t ALTER twice SET EXPRESSION AS (id * 3)", "column twice was altered and the table was rewritten"),
    ("ALTER TABLE t DROP doc, ADD doc text", "column doc is another one"),
    ("ALTER TABLE t DROP doc", "column doc is gone"),
    ("CREATE TABLE child () INHERITS (t)", "others inherit from it now"),
    ("ALTER TABLE t RENAME TO old; CREATE TABLE t (LIKE old INCLUDING ALL)", "it is another table"),
]


@pytest.mark.parametrize(("statement", "said"), STATEMENTS)
def test_what_a_statement_leaves_behind_says_whether_rows_changed(
    database: Endpoint, statement: str, said: str | None
) -> None:
    run(database, *PLAIN, FILL, "ALTER TABLE t ADD unread int, ADD twice int GENERATED ALWAYS AS (id * 2) STORED")
    check_statement(database, statement, said)


@pytest.mark.parametrize("statement", ["VACUUM FULL t", "ALTER TABLE t ALTER v TYPE int USING 8"])
def test_a_default_that_is_written_out_looks_like_another_value(database: Endpoint, statement: str) -> None:
    """Both leave the same behind, so both are refused."""
    run(database, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    run(database, "ALTER TABLE t ADD v int DEFAULT 7, ADD doc text, ADD twice int")
    check_statement(database, statement, "column v was altered and the table was rewritten")


def check_statement(database: Endpoint, statement: str, said: str | None) -> None:
    """Fail unless what the statement leaves behind leads to this refusal, or to none."""
    names = ("id", "v", "doc", "twice")
    with closing(opened(database, columns=names)) as source:
        before = planned(source, Consistency.CATCH_UP)[0].storage
        run(database, statement)
        assert before is not None
        now = storage.read_storage(source._session, QualifiedName.parse("public.t"), before.lock)
    with pytest.raises(SourceRefused, match=said) if said else nullcontext():
        check_kept(before, now, names, plan_id="p")


def test_a_table_whose_log_is_kept_cannot_leave_the_log(followed: Followed) -> None:
    """Rows of an unlogged table are in no log, and its file and its columns would not show that it was one."""
    with pytest.raises(psycopg.Error, match="part of a publication"):
        followed.source("ALTER TABLE t SET UNLOGGED")


def test_changes_that_are_not_in_the_log_are_refused(followed: Followed) -> None:
    """X6: each in a table that is followed again after a restart; none of them leaves anything in the log."""
    for said, *statements in (
        ("column v was altered and the table was rewritten", "ALTER TABLE t ALTER v TYPE int USING v * 100"),
        (
            "column doc is another one",
            "ALTER TABLE t ADD doc2 text",
            "UPDATE t SET doc2 = 'n' || id",
            "ALTER TABLE t DROP doc",
            "ALTER TABLE t RENAME doc2 TO doc",
        ),
    ):
        followed.source(*statements)
        with pytest.raises(SourceRefused, match=said):
            followed.plan()
        with pytest.raises(SourceRefused, match=said):
            followed.plan()
        followed.plan(restart=True)
        followed.drain()
        followed.finish()
        assert followed.differs() == (0, 0)


def test_an_added_column_with_values_that_nobody_wrote_is_refused(followed: Followed) -> None:
    """The default is gone again, or never was: rows have a value all the same. The target is not widened."""
    for said, *statements in (
        (
            "column c was added with a default",
            "ALTER TABLE t ADD c int DEFAULT 7",
            "ALTER TABLE t ALTER c DROP DEFAULT",
        ),
        ("column c was added and the table was", "ALTER TABLE t ADD c int", "ALTER TABLE t ALTER c TYPE int USING 77"),
    ):
        followed.source(*statements)
        with followed.ports() as ports, pytest.raises(SourceRefused, match=said):
            replace(ports.planner(), on_new_column=NewColumn.ADD).plan()
        followed.source("ALTER TABLE t DROP c")
    columns = "SELECT attname::text FROM pg_attribute WHERE attrelid = 'raw.t'::regclass AND attnum > 0 ORDER BY attnum"
    assert followed.sink(columns) == [("id",), ("v",), ("doc",)]


ANOTHER = [
    ("ALTER TABLE t ADD c_new int", "UPDATE t SET c_new = v * 2", "ALTER TABLE t RENAME c_new TO c"),
    ("ALTER TABLE t ADD c int", "UPDATE t SET c = v", "ALTER TABLE t RENAME c TO d", "ALTER TABLE t ADD c int"),
    ("ALTER TABLE t ADD c int", "UPDATE t SET c = 5", "ALTER TABLE t DROP c", "ALTER TABLE t ADD c int"),
]


@pytest.mark.parametrize("statements", ANOTHER, ids=["renamed", "renamed and added", "dropped and added"])
def test_an_added_column_whose_values_have_another_name_in_the_log_is_refused(
    followed: Followed, statements: tuple[str, ...]
) -> None:
    """X6: it arrived as NULL, or with the values of the column that bore its name before."""

    def follow() -> None:
        with followed.ports() as ports:
            replace(ports.planner(), on_new_column=NewColumn.ADD).plan()
        followed.drain()

    followed.source(*statements)
    with pytest.raises(SourceRefused, match=r"another one was added|in another column's pl"):
        follow()


def test_changes_under_another_name_are_not_passed_over(followed: Followed) -> None:
    """X6: the table is itself again, in every respect, when the next windows are planned."""
    followed.source(
        "ALTER TABLE t RENAME TO u",
        "UPDATE u SET v = -1 WHERE id = 1",
        "DELETE FROM u WHERE id = 2",
        "ALTER TABLE u RENAME TO t",
    )
    followed.plan()
    with pytest.raises(SourceRefused, match=r"public\.t was named public\.u when changes were logged"):
        followed.drain()


def test_an_added_column_that_is_filled_by_a_later_rewrite_is_refused(followed: Followed) -> None:
    """What was compared for the plan that added it is compared from then on."""
    followed.source("ALTER TABLE t ADD c int", "UPDATE t SET c = 1 WHERE id = 5")
    with followed.ports() as ports:
        assert replace(ports.planner(), on_new_column=NewColumn.ADD).plan().verdict is Verdict.PLANNED
    followed.drain()
    followed.finish()
    assert followed.differs() == (0, 0)
    followed.source("ALTER TABLE t ALTER c TYPE int USING 77")
    with pytest.raises(SourceRefused, match="column c was altered and the table was rewritten"):
        followed.plan()


def test_what_the_log_shows_or_changes_no_value_is_followed(followed: Followed) -> None:
    for statement in (
        "VACUUM FULL t",
        "CLUSTER t USING t_pkey",
        "ALTER TABLE t ALTER v SET NOT NULL, ALTER v SET DEFAULT 4, ALTER doc SET STORAGE EXTERNAL",
        "TRUNCATE t",
    ):
        followed.source(
            statement, "INSERT INTO t SELECT max(id) + 1, 3, 'x' FROM (SELECT id FROM t UNION VALUES (0)) n"
        )
        assert followed.go().verdict is Verdict.PLANNED
        assert followed.differs() == (0, 0)


def test_a_rewrite_between_two_ranges_is_found_before_the_run_ends(followed: Followed) -> None:
    """The ranges are of before and of after, and the log that is replayed over them does not make them one."""
    composed = replace(followed.composed, budget=Budget(credits=1, range_rows=250))
    followed = replace(followed, composed=composed)
    followed.plan(restart=True)
    with followed.ports() as ports:
        lane, rewritten = ports.hydrator(), threading.Event()

        def rewrite() -> None:
            if not rewritten.is_set():
                followed.source("ALTER TABLE t ALTER v TYPE int USING v * 100")
            rewritten.set()

        lane.share, lane.on_commit = 1, rewrite
        lane.run()
        with pytest.raises(SourceRefused, match="column v was altered and the table was rewritten"):
            ports.planner().follow()
        assert ports.hydration.phase is not Phase.STEADY_STATE


@pytest.mark.parametrize(
    ("made", "said"), [(PARTITIONED, "a partitioned table, and only an ordinary"), (INHERITED, "other tables inherit")]
)
def test_tables_of_several_parts_are_not_followed(database: Endpoint, made: tuple[str, ...], said: str) -> None:
    """A partition that is truncated, attached or detached leaves nothing in the log."""
    run(database, *made)
    with closing(opened(database)) as source, pytest.raises(SourceRefused, match=said):
        source.snapshot(Consistency.CATCH_UP)


def test_a_child_that_comes_while_a_followed_table_is_planned_is_refused(database: Endpoint) -> None:
    """W7: the plan looks at children once, without a lock; the log of a table has none of its children's rows."""
    run(database, "CREATE TABLE t (id int PRIMARY KEY)")
    with closing(opened(database)) as source:
        snapshot = source.snapshot(Consistency.CATCH_UP)
        run(database, "CREATE TABLE c () INHERITS (t)")
        with pytest.raises(SourceRefused, match="other tables inherit"):
            source.read_spec(snapshot)


@pytest.mark.parametrize("consistency", [Consistency.STATIC, Consistency.SNAPSHOT])
@pytest.mark.parametrize("key", ["split", "key"])
def test_a_column_that_may_be_null_since_it_was_looked_at_stops_a_range(
    database: Endpoint, consistency: Consistency, key: str
) -> None:
    """X6: a plan looks at NOT NULL once, without a lock; rows without a value come before the rest of it is made."""
    run(
        database,
        "CREATE TABLE t (id int UNIQUE NOT NULL, region int NOT NULL, u int)",
        "INSERT INTO t VALUES (1, 1, 1)",
    )
    column = "region" if key == "split" else "id"
    with closing(opened(database, **({"split_column": "region"} if key == "split" else {}))) as source:
        snapshot = source.snapshot(consistency)
        run(database, f"ALTER TABLE t ALTER {column} DROP NOT NULL")
        read = source.read_spec(snapshot)
        (whole,) = source.ranges(snapshot, rows=10**6, bytes=2**40)
        piece = source.slice(read, whole.bounds, "0.0")
    with exported(database) as now:
        held = replace(read, snapshot=now if consistency is Consistency.SNAPSHOT else None)
        with pytest.raises((SourceRefused, PlanOutdated), match=f"column {column} may be NULL"):
            count(database, held, piece)


@pytest.mark.parametrize(
    "changes",
    [
        ("ALTER TABLE t ALTER d TYPE bigint USING 1",),
        ("ALTER TABLE t ALTER d TYPE timestamptz",),
        ("CREATE DOMAIN other AS timestamp", "ALTER TABLE t ALTER d TYPE other"),
        (
            "ALTER TABLE t ALTER d TYPE bigint USING 1",
            "DROP DOMAIN dom",
            "CREATE DOMAIN dom AS bigint",
            "ALTER TABLE t ALTER d TYPE dom",
        ),
    ],
    ids=["bigint", "timestamptz", "other-domain", "same-name"],
)
def test_a_column_of_a_domain_that_gets_another_type_stops_a_range(
    database: Endpoint, changes: tuple[str, ...]
) -> None:
    """X6: a domain arrives as what it is made of, and bytes of one type would be stored as values of the other."""
    run(
        database,
        "CREATE DOMAIN dom AS timestamp",
        "CREATE TABLE t (id int PRIMARY KEY, d dom)",
        "INSERT INTO t VALUES (1, now())",
    )
    with closing(opened(database)) as source:
        read, piece = planned(source, Consistency.STATIC)
    assert count(database, read, piece) == 1
    run(database, *changes)
    with pytest.raises(SourceRefused, match=r"column d was .* and is "):
        count(database, read, piece)
