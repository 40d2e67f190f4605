"""``replace`` on a real PostgreSQL: a shadow beside the target, and a swap that nobody sees the middle of."""

import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

import psycopg
import pytest

from airflow_provider_backpressure.connectors.postgres.sink import table_swap
from airflow_provider_backpressure.connectors.postgres.sink import table_swap as postgres_publishing
from airflow_provider_backpressure.connectors.postgres.sink.target import PostgresTarget
from airflow_provider_backpressure.connectors.postgres.tasks.copy import run_slice
from airflow_provider_backpressure.core.config import Mode
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.ports.sink import Sink
from airflow_provider_backpressure.core.snapshot.bounds import KeyBounds
from airflow_provider_backpressure.core.snapshot.spark_messages import Column
from airflow_provider_backpressure.exceptions import PlanSuperseded, SinkRefused, SinkUnavailable
from airflow_provider_backpressure.sinks import PostgresSink
from airflow_provider_backpressure.testing import ManualClock
from tests.integration.attempts import Begun, begin
from tests.support.postgres import connected, new_role, run

pytestmark = pytest.mark.integration

HOSTILE = '"We""ird; --"."T able %s {}"'
COLUMNS = (Column(name="id", type="bigint", nullable=False), Column(name="code", type="text"))
OLD, NEW = 100, 1000


@dataclass(frozen=True, kw_only=True)
class Replacement:
    """A plan that replaces a table."""

    begun: Begun
    table: str

    def open(self) -> Sink:
        """Return the sink again, as another process has it."""
        return PostgresSink(conn_id="sink", table=self.table).open(self.begun.sink)

    def load(self, query: str = "SELECT * FROM source") -> None:
        """Copy rows into the shadow, as a range does."""
        spec = self.begun.spec(query)
        run_slice(spec, spec.slices[0], self.begun.source, self.begun.sink)

    def complete(self) -> None:
        """Complete the shadow."""
        with closing(self.open()) as sink:
            sink.complete(self.begun.plan)

    def publish(self) -> None:
        """Swap."""
        with closing(self.open()) as sink:
            sink.publish(self.begun.plan)

    @property
    def shadow(self) -> str:
        """The shadow's quoted name."""
        return self.begun.plan.write.target


Replacing = Callable[..., Replacement]


@pytest.fixture
def replacing(database: Endpoint) -> Replacing:
    """Begin a plan that replaces ``raw.t`` unless told otherwise; there is a source with new rows."""
    run(
        database,
        "CREATE SCHEMA raw",
        f"CREATE TABLE source AS SELECT i AS id, 'new' || i AS code FROM generate_series(1::bigint, {NEW}) i",
    )

    def begin_(table: str = "raw.t", endpoint: Endpoint = database) -> Replacement:
        begun = begin(endpoint, endpoint, table=table, columns=COLUMNS, mode=Mode.REPLACE)
        return Replacement(begun=begun, table=table)

    return begin_


def target(database: Endpoint, table: str = "raw.t", more: str = "") -> None:
    """Create a target with old rows."""
    run(
        database,
        f"CREATE TABLE {table} (id bigint NOT NULL, code text{more})",
        f"INSERT INTO {table} SELECT i, 'old' FROM generate_series(1, {OLD}) i",
    )


def count(database: Endpoint, table: str = "raw.t") -> int:
    """Rows of a table."""
    return int(run(database, f"SELECT count(*) FROM {table}")[0][0])


def shadows(database: Endpoint) -> int:
    """Tables that begin as shadows do."""
    return int(run(database, "SELECT count(*) FROM pg_class WHERE relname LIKE 'backpressure\\_%\\_%'")[0][0])


def refusal(replacing: Replacing, table: str = "raw.t") -> str:
    """Return why a table is not replaced; nothing was made."""
    with pytest.raises(SinkRefused) as raised:
        replacing(table)
    sentence = str(raised.value)
    assert sentence.endswith(".")
    return sentence


# --- the way


@pytest.mark.parametrize("table", ["raw.t", HOSTILE], ids=["plain", "hostile"])
def test_the_target_is_replaced_at_once(database: Endpoint, replacing: Replacing, table: str) -> None:
    """Old rows until the swap, new ones from then on; nothing else is left, and doing it again changes nothing."""
    run(database, 'CREATE SCHEMA "We""ird; --"')
    target(database, table, ", PRIMARY KEY (id)")
    plan = replacing(table)
    plan.load()
    assert count(database, table) == OLD
    plan.complete()
    assert count(database, table) == OLD
    plan.publish()
    assert count(database, table) == NEW
    assert run(database, f"SELECT DISTINCT left(code, 3) FROM {table}") == [("new",)]
    assert run(database, "SELECT count(*) FROM pg_class WHERE relname ~ '^backpressure_[0-9a-f]{16}'") == [(0,)]
    run(database, f"INSERT INTO {table} VALUES (0, 'mine')")
    plan.complete()
    plan.publish()
    assert count(database, table) == NEW + 1
    with pytest.raises(psycopg.errors.UniqueViolation):
        run(database, f"INSERT INTO {table} VALUES (1, 'twice')")


def test_a_missing_target_appears_with_the_swap(database: Endpoint, replacing: Replacing) -> None:
    """Its schema is made before, the table only when it is whole."""
    plan = replacing("more.t")
    plan.load()
    assert run(database, "SELECT to_regclass('more.t')") == [(None,)]
    plan.publish()
    assert count(database, "more.t") == NEW
    assert run(database, "SELECT obj_description('more.t'::regclass)") == [(None,)]
    plan.publish()
    assert count(database, "more.t") == NEW


def test_rows_are_read_where_they_are(database: Endpoint, replacing: Replacing) -> None:
    """From the shadow before the swap, from the target afterwards; the swap is no marker of a slice."""
    target(database)
    plan = replacing()
    plan.load()
    bounds = KeyBounds.of_column(column="id", start="11", end="21")
    with closing(plan.open()) as sink:
        for step in (lambda: None, plan.complete, plan.publish):
            step()
            for asked, rows in ((bounds, 10), (None, NEW)):
                query = sink.slice_query(plan.begun.plan.write, asked)
                assert [row[1][:3] for row in run(database, query)] == ["new"] * rows
            assert set(sink.markers(plan.begun.plan.plan_id)) == {"0.0"}
            assert sink.epoch(plan.begun.plan.plan_id) == plan.begun.plan.epoch


def test_a_new_plan_drops_the_shadow_of_the_one_before(database: Endpoint, replacing: Replacing) -> None:
    """And fences it: it neither writes nor swaps any more. Shadows of other targets stay."""
    target(database)
    other = replacing("raw.other")
    first = replacing()
    first.load()
    second = replacing()
    assert run(database, f"SELECT to_regclass('{first.shadow}'), to_regclass('{other.shadow}') IS NULL") == [
        (None, False)
    ]
    for late in (first.load, first.complete, first.publish):
        with pytest.raises(PlanSuperseded):
            late()
    assert count(database) == OLD
    second.load()
    second.publish()
    assert count(database) == NEW


def test_a_plan_that_begins_again_keeps_its_shadow(database: Endpoint, replacing: Replacing) -> None:
    """As a lane's later life does, to fence its earlier one: what is committed stays, and the swap goes by the plan."""
    target(database)
    plan = replacing()
    plan.load()
    with closing(plan.open()) as sink:
        assert sink.begin(plan.begun.plan) == plan.begun.plan.epoch + 1
    plan.publish()
    assert count(database) == NEW
    assert run(database, "SELECT epoch FROM raw.backpressure_commit WHERE slice_id = 'publish'") == [(2,)]


# --- what is carried over

RICH = (
    "CREATE TABLE raw.other (code text PRIMARY KEY)",
    f"INSERT INTO raw.other SELECT 'new' || i FROM generate_series(1, {NEW}) i UNION ALL SELECT 'old'",
    """CREATE TABLE raw.t (
        id bigint CONSTRAINT "the KEY" PRIMARY KEY, code text COLLATE "C" DEFAULT 'x' CONSTRAINT known
        REFERENCES raw.other, n serial, m int GENERATED BY DEFAULT AS IDENTITY (START 50 INCREMENT 5),
        g text GENERATED ALWAYS AS (code || '!') STORED, at timestamptz NOT NULL DEFAULT now(),
        CONSTRAINT positive CHECK (id > 0), CONSTRAINT "one %s" UNIQUE (code, id) INCLUDE (n) DEFERRABLE
    ) WITH (fillfactor = 70, toast.autovacuum_enabled = false)""",
    'CREATE INDEX "by code; --" ON raw.t (lower(code) DESC) WITH (fillfactor = 60) WHERE id > 5',
    "CREATE UNIQUE INDEX ON raw.t (id DESC) INCLUDE (code)",
    'CREATE INDEX "in order" ON raw.t (at)',
    "CREATE STATISTICS raw.together (ndistinct) ON id, code FROM raw.t",
    'CREATE STATISTICS public."else; where" ON (id + 1), (lower(code)) FROM raw.t',
    "ALTER STATISTICS raw.together SET STATISTICS 66",
    "COMMENT ON STATISTICS raw.together IS 'it''s both'",
    'ALTER INDEX raw."by code; --" ALTER COLUMN 1 SET STATISTICS 55',
    "ALTER TABLE raw.t ALTER COLUMN code SET STATISTICS 77, ALTER COLUMN id SET (n_distinct = -1),"
    ' REPLICA IDENTITY USING INDEX "the KEY", CLUSTER ON "in order"',
    "COMMENT ON TABLE raw.t IS 'all ''of'' them'",
    "COMMENT ON COLUMN raw.t.code IS 'a code'",
    "COMMENT ON INDEX raw.\"by code; --\" IS 'an index'",
    "COMMENT ON CONSTRAINT known ON raw.t IS 'a reference'",
    "COMMENT ON SEQUENCE raw.t_m_seq IS 'a sequence'",
    "INSERT INTO raw.t SELECT i, 'old' FROM generate_series(1, 100) i",
    'CREATE VIEW raw.v WITH (security_barrier = true, check_option = local) AS SELECT id, code AS "C" FROM raw.t'
    " WHERE id < 50",
    "CREATE VIEW public.w AS SELECT count(*) AS n, max(t.id) AS id FROM raw.t JOIN raw.v USING (id)",
    "COMMENT ON VIEW raw.v IS 'a view'",
)
PICTURE = """
SELECT 'column', a.attname, concat_ws(' ', format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity,
       a.attgenerated, pg_get_expr(d.adbin, d.adrelid), a.attcollation, a.attstattarget, a.attoptions,
       col_description(a.attrelid, a.attnum), a.attacl, a.attstorage)
FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = 'raw.t'::regclass AND a.attnum > 0
UNION ALL SELECT 'constraint', k.conname, concat_ws(' ', pg_get_constraintdef(k.oid), k.convalidated,
       obj_description(k.oid, 'pg_constraint')) FROM pg_constraint k WHERE k.conrelid = 'raw.t'::regclass
UNION ALL SELECT 'index', x.relname, concat_ws(' ', pg_get_indexdef(x.oid), i.indisclustered, i.indisreplident,
       (SELECT array_agg(a.attstattarget ORDER BY a.attnum) FROM pg_attribute a WHERE a.attrelid = x.oid),
       obj_description(x.oid, 'pg_class')) FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
       WHERE i.indrelid = 'raw.t'::regclass
UNION ALL SELECT 'statistics', stxname, concat_ws(' ', pg_get_statisticsobjdef(oid), stxstattarget, stxowner,
       obj_description(oid, 'pg_statistic_ext')) FROM pg_statistic_ext
       WHERE stxrelid = 'raw.t'::regclass
UNION ALL SELECT 'table', relname, concat_ws(' ', relowner, relacl, reloptions, relreplident, relpersistence,
       obj_description(oid, 'pg_class'), (SELECT t.reloptions FROM pg_class t WHERE t.oid = c.reltoastrelid))
       FROM pg_class c WHERE c.oid = 'raw.t'::regclass
UNION ALL SELECT 'sequence', c.relname, concat_ws(' ', s.seqstart, s.seqincrement, d.refobjsubid, d.deptype, c.relowner,
       c.relacl, obj_description(c.oid, 'pg_class')) FROM pg_class c JOIN pg_sequence s ON s.seqrelid = c.oid
       JOIN pg_depend d ON d.objid = c.oid AND d.classid = 'pg_class'::regclass AND d.refobjid = 'raw.t'::regclass
UNION ALL SELECT 'view', c.oid::regclass::text, concat_ws(' ', pg_get_viewdef(c.oid), c.reloptions, c.relowner,
       c.relacl, obj_description(c.oid, 'pg_class')) FROM pg_class c WHERE c.relkind = 'v' AND c.oid IN
       ('raw.v'::regclass, 'public.w'::regclass)
ORDER BY 1, 2
"""
NAMES = "SELECT relname FROM pg_class WHERE relname !~ '^(pg_|backpressure_(plan|commit))' ORDER BY 1"


def test_all_that_a_table_has_is_carried_over(database: Endpoint, replacing: Replacing) -> None:
    """Columns, defaults, identities, checks, keys, indexes, references, statistics, comments, rights, options."""
    with new_role(database) as reader, new_role(database) as owner:
        run(database, *RICH, f"GRANT CREATE, USAGE ON SCHEMA raw TO {owner.user}")
        run(
            database,
            f"ALTER TABLE raw.t OWNER TO {owner.user}",
            f"GRANT SELECT ON raw.t TO {reader.user} WITH GRANT OPTION",
            f"GRANT UPDATE (code) ON raw.t TO {reader.user}",
            f"GRANT SELECT ON SEQUENCE raw.t_m_seq TO {reader.user}",
            f"GRANT SELECT ON raw.v TO {reader.user}",
            f"GRANT USAGE ON SCHEMA raw TO {reader.user}",
            "ALTER DEFAULT PRIVILEGES IN SCHEMA raw GRANT ALL ON TABLES TO PUBLIC",
        )
        before, names = run(database, PICTURE), run(database, NAMES)
        plan = replacing()
        plan.load()
        assert "PUBLIC" not in str(run(database, f"SELECT relacl FROM pg_class WHERE oid = '{plan.shadow}'::regclass"))
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            run(reader, f"SELECT FROM {plan.shadow}")
        plan.publish()
        assert run(database, PICTURE) == before
        assert run(database, NAMES) == names
        assert run(reader, "SELECT count(*), max(left(code, 3)) FROM raw.t") == [(NEW, "new")]
        assert run(database, "SELECT n, id FROM public.w") == [(49, 49)]
        assert run(database, "INSERT INTO raw.t (id, code) VALUES (5000, 'old') RETURNING n, m, g") == [
            (OLD + NEW + 1, 50 + 5 * (OLD + NEW), "old!")
        ]
        plan = replacing()
        plan.load()
        plan.publish()
        assert run(database, PICTURE) == before
        run(database, f"REASSIGN OWNED BY {owner.user} TO postgres")


@pytest.mark.statement("X5")
@pytest.mark.parametrize(
    ("statements", "words"),
    [
        (["CREATE MATERIALIZED VIEW raw.m AS SELECT * FROM raw.t"], "materialized view raw.m depends on it"),
        (
            ["ALTER TABLE raw.t ADD PRIMARY KEY (id)", "CREATE TABLE raw.child (id bigint REFERENCES raw.t)"],
            "constraint child_id_fkey on table raw.child depends on it",
        ),
        (
            ["ALTER TABLE raw.t ADD PRIMARY KEY (id), ADD up bigint REFERENCES raw.t"],
            "constraint t_up_fkey on table raw.t depends on it",
        ),
        (["CREATE TABLE raw.child () INHERITS (raw.t)"], "table raw.child depends on it"),
        (
            ["CREATE FUNCTION raw.f() RETURNS bigint BEGIN ATOMIC SELECT count(*) FROM raw.t; END"],
            "function raw.f() depends on it",
        ),
        (
            ["CREATE TABLE raw.u (t raw.t[])", "CREATE VIEW raw.v AS SELECT t FROM raw.t t"],
            "column t of table raw.u and column t of view raw.v depend on it",
        ),
        (["CREATE RULE r AS ON INSERT TO raw.t DO INSTEAD NOTHING"], "it has rules"),
        (
            [
                "CREATE FUNCTION raw.nix() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
                "CREATE TRIGGER tr BEFORE INSERT ON raw.t FOR EACH ROW EXECUTE FUNCTION raw.nix()",
            ],
            "it has the trigger tr",
        ),
        (["ALTER TABLE raw.t ENABLE ROW LEVEL SECURITY"], "it has row security"),
        (["CREATE PUBLICATION p FOR ALL TABLES"], "the publication p sends its rows out"),
        (
            [
                "CREATE TABLE raw.p (id bigint NOT NULL, code text) PARTITION BY LIST (id)",
                "ALTER TABLE raw.p ATTACH PARTITION raw.t DEFAULT",
            ],
            "it is a partition",
        ),
        (
            ["DROP TABLE raw.t", "CREATE TABLE raw.t (id bigint NOT NULL, code text) PARTITION BY LIST (id)"],
            "it is a partitioned table",
        ),
        (
            ["DROP TABLE raw.t", 'CREATE PUBLICATION "p p" FOR ALL TABLES'],
            'the publication "p p" would send every row',
        ),
    ],
)
def test_what_would_stay_behind_is_refused_beforehand(
    database: Endpoint, replacing: Replacing, statements: list[str], words: str
) -> None:
    """X5: in one sentence, before any row moves, and nothing is left of the attempt."""
    target(database)
    run(database, *statements)
    assert words in refusal(replacing)
    assert run(database, "SELECT count(*) FROM pg_class WHERE relname ~ '^backpressure_[0-9a-f]{16}'") == [(0,)]


@pytest.mark.statement("X5")
def test_rights_are_named(database: Endpoint, replacing: Replacing) -> None:
    """X5: only an owner may replace a table; a role that owns no more than the table and the schema's right can."""
    with new_role(database) as writer:
        target(database)
        run(
            database,
            f"GRANT USAGE, CREATE ON SCHEMA raw TO {writer.user}",
            f"GRANT ALL ON raw.t TO {writer.user}",
            f"GRANT SELECT ON source TO {writer.user}",
        )

        def begun() -> Replacement:
            return replacing(endpoint=writer)

        with pytest.raises(SinkRefused, match=f"it belongs to postgres and not to {writer.user}"):
            begun()
        run(database, f"ALTER TABLE raw.t OWNER TO {writer.user}", "CREATE VIEW raw.v AS SELECT id FROM raw.t")
        with pytest.raises(SinkRefused, match=r"view raw\.v depends on it"):
            begun()
        run(database, f"ALTER VIEW raw.v OWNER TO {writer.user}")
        plan = begun()
        plan.load()
        plan.publish()
        assert count(writer) == NEW
        assert run(database, "SELECT count(*) FROM raw.v") == [(NEW,)]


# --- what stands between the plan and the swap


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("ALTER TABLE raw.t ADD more int", "its columns, defaults or checks were changed"),
        ("ALTER TABLE raw.t ALTER code SET DEFAULT 'y'", "its columns, defaults or checks were changed"),
        ("ALTER TABLE raw.t ADD CHECK (id < 10000)", "its columns, defaults or checks were changed"),
        ("CREATE MATERIALIZED VIEW raw.m AS SELECT * FROM raw.t", "materialized view raw.m depends on it"),
        ("ALTER TABLE raw.t RENAME TO gone", "is not the table that it was"),
    ],
)
def test_a_target_that_changed_meanwhile_is_left_alone(
    database: Endpoint, replacing: Replacing, statement: str, words: str
) -> None:
    target(database)
    plan = replacing()
    plan.load()
    plan.complete()
    run(database, statement)
    with pytest.raises(SinkRefused, match=words):
        plan.publish()
    assert run(database, f"SELECT count(*) FROM {plan.shadow}") == [(NEW,)], "the shadow stays for a look"


def test_a_table_that_appeared_meanwhile_is_nobodys_to_drop(database: Endpoint, replacing: Replacing) -> None:
    plan = replacing()
    plan.load()
    target(database)
    with pytest.raises(SinkRefused, match="is not the table that it was"):
        plan.publish()
    assert count(database) == OLD


def test_an_index_that_came_meanwhile_is_made_too(database: Endpoint, replacing: Replacing) -> None:
    target(database)
    plan = replacing()
    plan.load()
    plan.complete()
    run(database, "CREATE INDEX late ON raw.t (code)")
    plan.publish()
    assert run(database, "SELECT tablename FROM pg_indexes WHERE indexname = 'late'") == [("t",)]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (", CONSTRAINT k UNIQUE (code)", "break k, so the old ones stay: some of them have the same key"),
        (", CONSTRAINT f FOREIGN KEY (code) REFERENCES raw.o", "break f, .* some of them refer to rows that are not"),
    ],
)
def test_new_rows_that_break_a_key_change_nothing(
    database: Endpoint, replacing: Replacing, more: str, words: str
) -> None:
    """They go into the shadow freely, and the key is asked when all are in."""
    run(database, "CREATE TABLE raw.o (code text PRIMARY KEY)", "INSERT INTO raw.o VALUES ('new1')")
    run(database, f"CREATE TABLE raw.t (id bigint NOT NULL, code text{more})", "INSERT INTO raw.t VALUES (1, 'new1')")
    plan = replacing()
    plan.load("SELECT id, CASE id WHEN 2 THEN 'new1' ELSE code END AS code FROM source")
    with pytest.raises(SinkRefused, match=words):
        plan.complete()
    assert run(database, "SELECT * FROM raw.t") == [(1, "new1")]


def test_a_shadow_that_somebody_dropped_is_told(database: Endpoint, replacing: Replacing) -> None:
    target(database)
    plan = replacing()
    plan.load()
    run(database, f"DROP TABLE {plan.shadow}")
    with pytest.raises(SinkRefused, match="is gone: trigger the DAG with"):
        plan.publish()
    assert count(database) == OLD


# --- others are there too


def test_readers_see_the_old_rows_or_the_new_ones(database: Endpoint, replacing: Replacing) -> None:
    """Through the table, a view, a prepared statement and a long transaction, all the time, none ever fails."""
    target(database)
    run(database, "CREATE VIEW raw.v AS SELECT id FROM raw.t", "CREATE VIEW raw.vv AS SELECT id FROM raw.v")
    plan, done, ready = replacing(), threading.Event(), threading.Barrier(5)
    seen: dict[str, list[int]] = {name: [] for name in ("raw.t", "raw.v", "raw.vv", "prepared")}
    failures: list[psycopg.Error] = []

    def read(name: str, counts: list[int]) -> None:
        try:
            with connected(database, prepare_threshold=0 if name == "prepared" else None) as connection:
                table = "raw.t" if name == "prepared" else name
                query = f"SELECT count(*) FROM {table}"
                counts.append(connection.execute(query).fetchall()[0][0])
                ready.wait(30)
                while not done.is_set():
                    counts.append(connection.execute(query).fetchall()[0][0])
                counts.append(connection.execute(query).fetchall()[0][0])
        except psycopg.Error as error:
            failures.append(error)

    threads = [threading.Thread(target=read, args=each) for each in seen.items()]
    for thread in threads:
        thread.start()
    try:
        plan.load()
        ready.wait(30)
        with closing(PostgresSink(conn_id="sink", table="raw.t").open(database)) as sink:
            sink.publish(plan.begun.plan)
    finally:
        done.set()
        for thread in threads:
            thread.join(30)
    assert failures == []
    for name, counts in seen.items():
        assert counts == sorted(counts), name
        assert {counts[0], counts[-1]} == {OLD, NEW}, name
        assert set(counts) == {OLD, NEW}, name


def test_a_long_reader_is_not_waited_for_in_front_of_others(
    database: Endpoint, replacing: Replacing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The swap gives up for now with one sentence, the target as it was; later it goes well."""
    target(database)
    plan = replacing()
    plan.load()
    monkeypatch.setattr(table_swap, "IN_USE_SECONDS", 3.0)
    with connected(database, autocommit=False) as reader:
        assert reader.execute("SELECT count(*) FROM raw.t").fetchall() == [(OLD,)]
        clock = ManualClock(on_sleep=lambda _: slept.append(count(database)))
        slept: list[int] = []
        sink = PostgresTarget(PostgresSink(conn_id="sink", table="raw.t"), database, clock=clock)
        with closing(sink), pytest.raises(SinkUnavailable, match=r"^raw\.t was locked by other .* 3 tries [^\n]*\.$"):
            sink.publish(plan.begun.plan)
        assert slept == [OLD, OLD], "between two tries the readers get through"
        assert reader.execute("SELECT count(*) FROM raw.t").fetchall() == [(OLD,)]
    plan.publish()
    assert count(database) == NEW


def test_a_view_of_the_past_is_waited_for(
    database: Endpoint, replacing: Replacing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction that would see none of the new rows keeps the swap back; one that began later does not."""
    target(database)
    plan = replacing()
    monkeypatch.setattr(postgres_publishing, "SNAPSHOT_SECONDS", 0.5)
    isolation = psycopg.IsolationLevel.REPEATABLE_READ
    with connected(database, autocommit=False) as past, connected(database, autocommit=False) as present:
        past.isolation_level = present.isolation_level = isolation
        past.execute("SELECT count(*) FROM source")
        plan.load()
        with pytest.raises(SinkUnavailable, match="would show them a part of these rows"):
            plan.publish()
        assert past.execute("SELECT count(*) FROM raw.t").fetchall() == [(OLD,)]
        past.rollback()
        present.execute("SELECT count(*) FROM source")
        plan.publish()
        assert present.execute("SELECT count(*) FROM raw.t").fetchall() == [(NEW,)]


# --- killed

KILLER = """
CREATE FUNCTION public.die() RETURNS event_trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('application_name') LIKE 'bp:%:publish:%' AND EXISTS (
        SELECT FROM pg_event_trigger_ddl_commands() WHERE object_type = '{what}') THEN
        PERFORM pg_terminate_backend(pg_backend_pid());
        PERFORM pg_sleep(5);
    END IF;
END $$
"""


@pytest.mark.statement("X2")
@pytest.mark.parametrize(
    ("command", "what"),
    [("CREATE INDEX", "index"), ("ALTER TABLE", "table"), ("CREATE VIEW", "view"), ("ALTER INDEX", "index")],
)
def test_killed_at_any_step_a_retry_finishes_it(
    database: Endpoint, replacing: Replacing, command: str, what: str
) -> None:
    """X2: while indexes are made, between two renames, while a view is bound, at the last names."""
    target(database)
    run(database, "CREATE INDEX one ON raw.t (code)", "CREATE VIEW raw.v AS SELECT * FROM raw.t")
    plan = replacing()
    plan.load()
    run(
        database,
        KILLER.replace("{what}", what),
        f"CREATE EVENT TRIGGER killer ON ddl_command_end WHEN TAG IN ('{command}') EXECUTE FUNCTION public.die()",
    )
    with pytest.raises(SinkUnavailable, match="lost"):
        plan.publish()
    assert (count(database), count(database, "raw.v")) == (OLD, OLD)
    run(database, "DROP EVENT TRIGGER killer")
    plan.publish()
    assert (count(database), count(database, "raw.v")) == (NEW, NEW)
    run(database, "DELETE FROM raw.t")
    plan.publish()
    assert count(database) == 0, "an answer that was lost does not swap twice"


def test_a_frozen_swap_is_ended_by_its_retry(database: Endpoint, replacing: Replacing) -> None:
    """It stands in the middle of its transaction with its locks; neither the retry nor a new plan waits for it."""
    target(database)
    plan = replacing()
    plan.load()
    for other in (plan.publish, lambda: replacing()):
        name = f"bp:{plan.begun.plan.plan_id}:publish:0"
        with connected(database, application_name=name, autocommit=False) as frozen:
            frozen.execute("LOCK TABLE raw.t")
            frozen.execute("SELECT FROM raw.backpressure_plan FOR UPDATE")
            other()
            with pytest.raises(psycopg.OperationalError):
                frozen.execute("SELECT 1")
    assert count(database) == NEW


def test_two_publish_at_once(database: Endpoint, replacing: Replacing) -> None:
    """One ends the other or finds it done; the rows are there once."""
    target(database)
    plan, results = replacing(), []
    plan.load()
    barrier = threading.Barrier(2)

    def publish() -> None:
        barrier.wait(10)
        try:
            plan.publish()
            results.append("done")
        except SinkUnavailable:
            results.append("later")

    threads = [threading.Thread(target=publish) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(results) == 2
    plan.publish()
    assert count(database) == NEW
