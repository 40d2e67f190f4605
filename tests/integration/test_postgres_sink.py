"""A PostgreSQL table as a sink, on a real server: what fits, what is created, who may write, what is in flight."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any, cast

import psycopg
import pytest
from psycopg import sql

from airflow_provider_backpressure.connectors.postgres import attempt_sessions as postgres_attempts
from airflow_provider_backpressure.connectors.postgres import connect as postgres_connect
from airflow_provider_backpressure.connectors.postgres.sink.plan_row import HELD
from airflow_provider_backpressure.connectors.postgres.tasks.connections import connect_sink
from airflow_provider_backpressure.connectors.postgres.tasks.copy_streams import Reading, open_copy_out
from airflow_provider_backpressure.core.config import Consistency, Mode
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.poll_policy import PollPolicy, SystemClock
from airflow_provider_backpressure.core.ports.sink import Activity, Sink
from airflow_provider_backpressure.core.snapshot.bounds import KeyBounds
from airflow_provider_backpressure.core.snapshot.plan import Plan, fingerprint
from airflow_provider_backpressure.core.snapshot.ranges import attempt_tag
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, ReadSpec, WriteSpec
from airflow_provider_backpressure.exceptions import SinkRefused, SinkUnavailable, SourceRefused
from airflow_provider_backpressure.sinks import PostgresSink
from airflow_provider_backpressure.sources import PostgresSource
from tests.support.postgres import PASSWORD, connected, new_role, run

pytestmark = pytest.mark.integration

Open = Callable[..., Sink]
COLUMNS = (
    Column(name="id", type="bigint", nullable=False),
    Column(name="name", type="character varying(20)"),
    Column(name="price", type="numeric(15,2)"),
)
SAME = "id bigint, name varchar(20), price numeric(15,2)"


@pytest.fixture
def opened(database: Endpoint) -> Iterator[Open]:
    """Open a sink into ``raw.t`` unless told otherwise; all are closed in the end."""
    sinks: list[Sink] = []

    def open_(endpoint: Endpoint = database, **declared: Any) -> Sink:
        sinks.append(PostgresSink(**{"conn_id": "test", "table": "raw.t", **declared}).open(endpoint))
        return sinks[-1]

    yield open_
    for sink in sinks:
        sink.close()


@pytest.fixture
def writer(database: Endpoint) -> Iterator[Endpoint]:
    """A role without any right of its own."""
    with new_role(database) as endpoint:
        yield endpoint


def fitted(sink: Sink, *, mode: Mode = Mode.APPEND, columns: Sequence[Column] = COLUMNS) -> WriteSpec:
    """Fit rows with an ``id`` into a sink."""
    return sink.fit(columns, mode=mode.value, key=("id",))


def prepared(sink: Sink, *, mode: Mode = Mode.APPEND, columns: Sequence[Column] = COLUMNS) -> WriteSpec:
    """Fit and create."""
    write = fitted(sink, mode=mode, columns=columns)
    sink.prepare(write)
    return write


def planned(write: WriteSpec, *, plan_id: str | None = None, place: str | None = None) -> Plan:
    """Return a plan into a sink."""
    return Plan(
        plan_id=plan_id or uuid.uuid4().hex,
        epoch=0,
        source_identity="postgres://shop:5432/shop/public.orders",
        sink_identity="postgres://wh:5432/wh/raw.t",
        consistency=Consistency.STATIC,
        mode=Mode(write.mode),
        frontier={"public.orders": 10},
        fingerprint=fingerprint(write.columns),
        total=10,
        total_exact=True,
        path="copy",
        read=ReadSpec(kind="postgres", conn_id="shop", columns=write.columns, place=place),
        write=write,
    )


def refusal(sink: Sink, **fit: Any) -> str:
    """Return the sentence by which a sink refuses rows."""
    with pytest.raises(SinkRefused) as raised:
        fitted(sink, **fit)
    sentence = str(raised.value)
    assert PASSWORD not in sentence
    assert sentence.endswith(".")
    assert "\n" not in sentence
    return sentence


def write_marker(endpoint: Endpoint, write: WriteSpec, plan: Plan, slice_id: str, epoch: int, **more: Any) -> None:
    """Write a marker as an attempt does: behind the fence, as the last thing of its transaction."""
    values = {"attempt": 1, "bounds": "{}", "rows": 5, "bytes": 50, "checksum": "xx:0", **more}
    names = ", ".join(values)
    with connected(endpoint, autocommit=False) as connection:
        held = connection.execute(
            f"SELECT epoch FROM {write.plan_table} WHERE target = %s AND plan_id = %s FOR SHARE",
            (write.fence, plan.plan_id),
        ).fetchone()
        assert held == (epoch,)
        connection.execute(
            f"INSERT INTO {write.commit_table} (plan_id, slice_id, target, epoch, {names})"
            f" VALUES (%s, %s, %s, %s, {', '.join(['%s'] * len(values))})",
            (plan.plan_id, slice_id, write.fence, epoch, *values.values()),
        )


# --- what fits


def test_a_missing_target_would_be_created_and_nothing_is_yet(database: Endpoint, opened: Open) -> None:
    write = fitted(opened(table='raw."The ""T"""', system_schema="Sys"))
    assert write.target == '"raw"."The ""T"""'
    assert write.plan_table == '"Sys"."backpressure_plan"'
    assert write.commit_table == '"Sys"."backpressure_commit"'
    assert write.fence == 'raw."The ""T"""'
    assert (write.kind, write.conn_id, write.mode, write.key) == ("postgres", "test", "append", ())
    assert write.columns == COLUMNS
    assert run(database, "SELECT count(*) FROM pg_namespace WHERE nspname IN ('raw', 'Sys')") == [(0,)]


def test_a_target_that_fits_is_taken(database: Endpoint, opened: Open) -> None:
    run(
        database,
        "CREATE SCHEMA raw",
        f"CREATE TABLE raw.t ({SAME}, more text, loaded timestamptz NOT NULL DEFAULT now(),"
        " n bigint GENERATED ALWAYS AS IDENTITY, g bigint GENERATED ALWAYS AS (id * 2) STORED)",
    )
    assert fitted(opened()).columns == COLUMNS


@pytest.mark.statement("X5")
@pytest.mark.parametrize(
    ("definition", "words"),
    [
        ("VIEW raw.t AS SELECT 1 AS id", "it is a view"),
        ("TABLE raw.t (id bigint)", "it has no column name and price"),
        (
            "TABLE raw.t (id integer, name text, price numeric(15,2))",
            "column id arrives as bigint and is integer in the table; column name arrives as character varying(20) "
            "and is text in the table.",
        ),
        (
            f"TABLE raw.t ({SAME}, a int NOT NULL, b int NOT NULL)",
            "a and b of the table must not be NULL, has no default",
        ),
        (
            "TABLE raw.t (id bigint GENERATED ALWAYS AS IDENTITY, name varchar(20),"
            " price numeric(15,2) GENERATED ALWAYS AS (1) STORED)",
            "column id is always generated by the table; column price is always generated by the table",
        ),
        (
            'TABLE raw.t (id bigint, "Name" varchar(20), price numeric(14,2), a int NOT NULL)',
            "it has no column name; column price arrives as numeric(15,2) and is numeric(14,2) in the table; "
            "a of the table must not be",
        ),
    ],
)
def test_every_difference_is_told_in_one_sentence(
    database: Endpoint, opened: Open, definition: str, words: str
) -> None:
    """X5: sink schema that does not fit; columns and both types are named."""
    run(database, "CREATE SCHEMA raw", f"CREATE {definition}")
    sentence = refusal(opened())
    assert words in sentence
    assert sentence.startswith(f"Rows cannot go into raw.t in {database.address} (connection test): ")


@pytest.mark.parametrize("there", [True, False])
def test_names_that_postgresql_would_cut_off_are_refused_all_at_once(
    database: Endpoint, opened: Open, there: bool
) -> None:
    """Whether the target is there or would be made; 63 bytes are taken, however many letters they are."""
    if there:
        run(database, "CREATE SCHEMA raw", "CREATE TABLE raw.t (id bigint)")
    first, second, fits = "a" * 64, "ü" * 32, "ü" * 31 + "a"
    columns = [Column(name=name, type="bigint") for name in ("id", first, second, fits)]
    assert refusal(opened(), columns=columns) == (
        f'Rows cannot go into raw.t: PostgreSQL cuts off names behind 63 bytes, and {first} and "{second}" are longer. '
        "Leave out such columns, or give them shorter names in a transform."
    )


def test_a_domain_that_is_never_null_needs_its_column(database: Endpoint, opened: Open) -> None:
    run(
        database,
        "CREATE SCHEMA raw",
        "CREATE DOMAIN raw.needed AS int NOT NULL",
        "CREATE DOMAIN raw.given AS int NOT NULL DEFAULT 1",
        f"CREATE TABLE raw.t ({SAME}, a raw.needed, b raw.given)",
    )
    assert "a of the table must not be NULL" in refusal(opened())


@pytest.mark.statement("X5", "X4")
def test_a_type_that_the_sink_does_not_know_is_refused_by_column(database: Endpoint, opened: Open) -> None:
    """X5, X4: or the plan refuses the column by name."""
    columns = (*COLUMNS, Column(name="m", type="public.mood"), Column(name="Ms", type='public."Odd"[]'))
    assert (
        "column m has type public.mood, which that server does not know; "
        'column "Ms" has type public."Odd"[], which that server does not know.'
    ) in refusal(opened(), columns=columns)
    run(database, "CREATE TYPE public.mood AS ENUM ('a')", "CREATE TYPE public.\"Odd\" AS ENUM ('a')")
    assert fitted(opened(), columns=columns).columns == columns


@pytest.mark.statement("X5")
@pytest.mark.parametrize(
    ("key", "unique"),
    [
        ("PRIMARY KEY (id)", True),
        ("UNIQUE (id)", True),
        ("UNIQUE (id) INCLUDE (name)", True),
        ("CHECK (id > 0)", False),
        ("UNIQUE (id, name)", False),
        ("UNIQUE (name)", False),
        ("UNIQUE (id) DEFERRABLE", False),
    ],
)
def test_upsert_needs_a_unique_key(database: Endpoint, opened: Open, key: str, unique: bool) -> None:
    """X5: key that is not unique under ``upsert``."""
    run(database, "CREATE SCHEMA raw", f"CREATE TABLE raw.t ({SAME}, {key})")
    if unique:
        assert fitted(opened(), mode=Mode.UPSERT).key == ("id",)
    else:
        assert "key id is not unique there" in refusal(opened(), mode=Mode.UPSERT)
    assert fitted(opened()).key == ()


@pytest.mark.parametrize(
    ("code", "index", "arrives", "refused"),
    [
        ("text", "UNIQUE (id, code)", True, True),
        ("text NOT NULL", "UNIQUE (id, code)", True, False),
        ("raw.needed", "UNIQUE (id, code)", True, False),
        ("text", "UNIQUE (id, code)", False, False),
        ("text", "UNIQUE NULLS NOT DISTINCT (id, code)", True, False),
        ("text", "UNIQUE (id, code), UNIQUE NULLS NOT DISTINCT (code, id)", True, False),
        ("text", "PRIMARY KEY (id, code)", True, False),
    ],
)
def test_a_key_that_may_be_null_is_no_key(
    database: Endpoint, opened: Open, code: str, index: str, arrives: bool, refused: bool
) -> None:
    """Two rows without a key do not collide, so each run would add such a row once more."""
    run(
        database,
        "CREATE SCHEMA raw",
        "CREATE DOMAIN raw.needed AS text NOT NULL",
        f"CREATE TABLE raw.t (id bigint, code {code}, {index})",
    )
    type_ = "raw.needed" if code == "raw.needed" else "text"
    columns = (COLUMNS[0], Column(name="code", type=type_, nullable=arrives))
    sink = opened(key=("code", "id"))
    if refused:
        assert "code of its key may be NULL, and a row without a key would be added with each run: " in refusal(
            sink, mode=Mode.UPSERT, columns=columns
        )
    else:
        assert fitted(sink, mode=Mode.UPSERT, columns=columns).key == ("code", "id")
    assert fitted(sink, columns=columns).key == ()


def test_a_partial_index_is_no_key(database: Endpoint, opened: Open) -> None:
    run(
        database,
        "CREATE SCHEMA raw",
        f"CREATE TABLE raw.t ({SAME})",
        "CREATE UNIQUE INDEX ON raw.t (id) WHERE id > 0",
        "CREATE UNIQUE INDEX ON raw.t ((id + 1))",
    )
    assert "key id is not unique there" in refusal(opened(), mode=Mode.UPSERT)


@pytest.mark.parametrize("mode", [Mode.UPSERT, Mode.MIRROR])
def test_a_key_that_refuses_overlaps_is_no_key(database: Endpoint, opened: Open, mode: Mode) -> None:
    """ON CONFLICT cannot go by it, and a row that is exchanged overlaps the one before."""
    table = "CREATE TABLE raw.t (id bigint, at tsrange, PRIMARY KEY (id, at WITHOUT OVERLAPS))"
    run(database, "CREATE EXTENSION btree_gist", "CREATE SCHEMA raw", table)
    sink, columns = opened(key=("id", "at")), (COLUMNS[0], Column(name="at", type="tsrange"))
    assert "key id and at is not unique there" in refusal(sink, mode=mode, columns=columns)
    run(database, "ALTER TABLE raw.t ADD UNIQUE (id, at)")
    if mode is Mode.UPSERT:
        assert fitted(sink, mode=mode, columns=columns).key == ("id", "at")
    else:
        assert "t_pkey" in refusal(sink, mode=mode, columns=columns)


def test_the_sinks_own_key_goes_first(database: Endpoint, opened: Open) -> None:
    run(database, "CREATE SCHEMA raw", f"CREATE TABLE raw.t ({SAME}, UNIQUE NULLS NOT DISTINCT (name, id))")
    assert fitted(opened(key=("id", "name")), mode=Mode.UPSERT).key == ("id", "name")
    assert "cannot be upserted by nix, which does not arrive" in refusal(opened(key=("nix",)), mode=Mode.UPSERT)


@pytest.mark.statement("X5")
def test_rights_are_named(database: Endpoint, opened: Open, writer: Endpoint) -> None:
    """X5: no right to write, each by its name; and with no more than what the sentences ask for, it works."""
    who = writer.user
    assert f"there is no schema raw, and {who} may not create one" in refusal(opened(writer))
    run(database, "CREATE SCHEMA raw")
    assert f"{who} has no CREATE right on schema raw." in refusal(opened(writer))
    run(database, f"CREATE TABLE raw.t ({SAME}, PRIMARY KEY (id))")
    assert f"{who} has no USAGE right on schema raw" in refusal(opened(writer))
    run(database, f"GRANT USAGE ON SCHEMA raw TO {who}")
    sentence = refusal(opened(writer))
    assert f"{who} has no INSERT and no SELECT right on it" in sentence
    assert f"{who} has no CREATE right on schema raw" in sentence
    run(database, f"GRANT SELECT ON raw.t TO {who}", f"GRANT CREATE ON SCHEMA raw TO {who}")
    assert f"{who} has no INSERT right on it." in refusal(opened(writer))
    run(database, f"GRANT INSERT (id, name) ON raw.t TO {who}")
    assert f"{who} has no INSERT right on it." in refusal(opened(writer))
    run(database, f"GRANT INSERT ON raw.t TO {who}")
    assert f"{who} has no UPDATE right on it." in refusal(opened(writer), mode=Mode.UPSERT)
    run(database, f'REVOKE TEMPORARY ON DATABASE "{database.database}" FROM PUBLIC')
    assert f"{who} has no TEMPORARY right on database {database.database}." in refusal(opened(writer), mode=Mode.UPSERT)
    sink = opened(writer)
    write = prepared(sink)
    assert sink.holds_rows() is False
    plan = planned(write)
    write_marker(writer, write, plan, "0.0", sink.begin(plan))
    assert set(sink.markers(plan.plan_id)) == {"0.0"}


def test_tables_that_are_there_already_need_no_right_to_create(
    database: Endpoint, opened: Open, writer: Endpoint
) -> None:
    prepared(opened())
    run(
        database,
        f"GRANT USAGE ON SCHEMA raw TO {writer.user}",
        f"GRANT SELECT, INSERT ON raw.t TO {writer.user}",
    )
    sentence = refusal(opened(writer))
    assert f"{writer.user} has no SELECT and no INSERT and no UPDATE right on raw.backpressure_plan" in sentence
    assert f"{writer.user} has no SELECT and no INSERT right on raw.backpressure_commit" in sentence
    run(
        database,
        f"GRANT SELECT, INSERT, UPDATE ON raw.backpressure_plan TO {writer.user}",
        f"GRANT SELECT, INSERT ON raw.backpressure_commit TO {writer.user}",
    )
    sink = opened(writer)
    write = prepared(sink)
    plan = planned(write)
    write_marker(writer, write, plan, "0.0", sink.begin(plan))
    assert sink.markers(plan.plan_id)["0.0"].rows == 5


def test_tables_of_our_names_that_are_not_ours_are_left_alone(database: Endpoint, opened: Open) -> None:
    run(database, "CREATE SCHEMA raw", "CREATE TABLE raw.backpressure_plan (target text, epoch int)")
    assert "raw.backpressure_plan is not this product's: it has no column plan_id" in refusal(opened())


@pytest.mark.parametrize(
    ("setup", "words"),
    [
        ([f"CREATE UNLOGGED TABLE raw.t ({SAME}, PRIMARY KEY (id))"], "it is unlogged: a crash or a failover of its"),
        (
            [
                f"CREATE TABLE raw.t ({SAME}, PRIMARY KEY (id)) PARTITION BY RANGE (id)",
                "CREATE TABLE raw.low PARTITION OF raw.t FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (id)",
                "CREATE TABLE raw.fine PARTITION OF raw.t DEFAULT",
                'CREATE UNLOGGED TABLE raw."Deep" PARTITION OF raw.low FOR VALUES FROM (0) TO (5)',
            ],
            'its partition raw."Deep" is unlogged: a crash or a failover of its server empties it, and markers of the '
            'rows stay. ALTER TABLE raw."Deep" SET LOGGED, and if',
        ),
        (
            [
                f"CREATE TABLE raw.t ({SAME}) PARTITION BY RANGE (id)",
                "CREATE FOREIGN DATA WRAPPER elsewhere",
                "CREATE SERVER elsewhere FOREIGN DATA WRAPPER elsewhere",
                "CREATE FOREIGN TABLE raw.far PARTITION OF raw.t DEFAULT SERVER elsewhere",
            ],
            "its partition raw.far is a foreign table: its rows and their markers are not committed together",
        ),
    ],
)
@pytest.mark.parametrize("mode", [Mode.APPEND, Mode.UPSERT, Mode.REPLACE])
def test_a_target_that_a_crash_empties_is_refused(
    database: Endpoint, opened: Open, mode: Mode, setup: list[str], words: str
) -> None:
    run(database, "CREATE SCHEMA raw", *setup)
    assert words in refusal(opened(), mode=mode)


@pytest.mark.parametrize("table", ["t", "backpressure_plan", "backpressure_commit", "backpressure_frontier"])
def test_a_table_that_becomes_unlogged_stops_later_runs_and_verification(
    database: Endpoint, opened: Open, table: str
) -> None:
    """A crash would leave markers without rows, or rows without markers."""
    sink = opened()
    write = prepared(sink, mode=Mode.UPSERT)
    sink.prepare(replace(write, ordered=True))
    sink.begin(planned(write))
    sink.check_history()
    run(database, f"ALTER TABLE raw.{table} SET UNLOGGED")
    subject = "it" if table == "t" else f"raw.{table}"
    with pytest.raises(SinkRefused) as raised:
        sink.check_history()
    assert f"may have lost rows that its plans wrote: {subject} is unlogged" in str(raised.value)
    assert str(raised.value).endswith('trigger the DAG with {"backpressure": "restart"} to plan again.')
    assert f"{subject} is unlogged" in refusal(sink, mode=Mode.UPSERT)
    run(database, f"ALTER TABLE raw.{table} SET LOGGED")
    sink.check_history()
    fitted(sink, mode=Mode.UPSERT)


def test_a_partitioned_target_has_no_file_of_its_own(database: Endpoint, opened: Open) -> None:
    """The word UNLOGGED says nothing of a table whose rows lie in its partitions."""
    run(
        database,
        "CREATE SCHEMA raw",
        f"CREATE TABLE raw.t ({SAME}) PARTITION BY RANGE (id)",
        "CREATE TABLE raw.part PARTITION OF raw.t DEFAULT",
        "UPDATE pg_class SET relpersistence = 'u' WHERE oid = 'raw.t'::regclass",
    )
    assert fitted(opened()).columns == COLUMNS


def test_row_security_is_told_beforehand(database: Endpoint, opened: Open, writer: Endpoint) -> None:
    prepared(opened())
    run(
        database,
        f"GRANT ALL ON SCHEMA raw TO {writer.user}",
        f"GRANT ALL ON ALL TABLES IN SCHEMA raw TO {writer.user}",
        "ALTER TABLE raw.t ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY every ON raw.t USING (true) WITH CHECK (true)",
    )
    assert f"its row security applies to {writer.user}" in refusal(opened(writer))
    assert fitted(opened())


def test_a_target_is_known_from_another_table_of_its_name(database: Endpoint, opened: Open) -> None:
    """Where the table of plans is another one too, both were restored from a dump."""
    sink = opened()
    write = prepared(sink)
    sink.check_history()
    sink.begin(planned(write))
    sink.check_history()
    run(database, "ALTER TABLE raw.t RENAME TO old", f"CREATE TABLE raw.t ({SAME})")
    with pytest.raises(SinkRefused, match="created again"):
        sink.check_history()
    run(
        database,
        "ALTER TABLE raw.backpressure_plan RENAME TO plans",
        "CREATE TABLE raw.backpressure_plan AS TABLE raw.plans",
    )
    sink.check_history()


def test_row_security_that_comes_later_hides_no_rows(database: Endpoint, opened: Open, writer: Endpoint) -> None:
    """Neither of a target, nor of a source whose log shows every row."""
    prepared(opened())
    run(
        database,
        f"GRANT ALL ON SCHEMA raw TO {writer.user}",
        f"GRANT ALL ON ALL TABLES IN SCHEMA raw TO {writer.user}",
        "INSERT INTO raw.t VALUES (1)",
        "ALTER TABLE raw.t ENABLE ROW LEVEL SECURITY",
    )
    what = Reading(query="SELECT id FROM raw.t", name="bp-read:1", every_row=True)
    with pytest.raises(SourceRefused, match="row-level security"), open_copy_out(writer, what):
        pass
    with (
        closing(connect_sink(writer, name="bp:x:0:1")) as connection,
        pytest.raises(psycopg.Error, match="row-level security"),
    ):
        connection.execute("DELETE FROM raw.t")


def test_a_database_that_takes_no_rows_is_refused(database: Endpoint, opened: Open) -> None:
    run(database, f'ALTER DATABASE "{database.database}" SET default_transaction_read_only = on')
    assert "is read-only" in refusal(opened())


@pytest.mark.statement("X5")
@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"port": 1}, SinkUnavailable, "cannot be reached: Connection refused"),
        ({"password": "wrong-" + PASSWORD}, SinkRefused, "does not let postgres in: password authentication failed"),
    ],
)
def test_the_door_is_shut_in_one_sentence(
    database: Endpoint, opened: Open, change: dict[str, Any], error: type[Exception], words: str
) -> None:
    """X5: unreachable host, wrong password (not printed)."""
    with pytest.raises(error) as raised:
        fitted(opened(replace(database, **change)))
    assert words in str(raised.value)
    assert PASSWORD not in str(raised.value)


# --- what is created


@pytest.mark.parametrize(("mode", "key"), [(Mode.APPEND, []), (Mode.UPSERT, [("id",)])])
def test_the_target_is_created_with_its_types(
    database: Endpoint, opened: Open, mode: Mode, key: list[tuple[str]]
) -> None:
    sink = opened()
    assert sink.holds_rows() is False
    write = prepared(sink, mode=mode)
    sink.prepare(write)
    assert fitted(sink, mode=mode) == write
    created = run(
        database,
        "SELECT attname, format_type(atttypid, atttypmod), attnotnull FROM pg_attribute"
        " WHERE attrelid = 'raw.t'::regclass AND attnum > 0 ORDER BY attnum",
    )
    assert created == [(column.name, column.type, not column.nullable) for column in COLUMNS]
    keys = run(
        database,
        "SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)"
        " WHERE i.indrelid = 'raw.t'::regclass",
    )
    assert keys == key
    run(database, "INSERT INTO raw.t VALUES (1, 'a', 2)")
    assert sink.holds_rows() is True


@pytest.mark.parametrize(
    ("there", "refused"), [("DEFAULT 7", True), ("", False), (None, False)], ids=["filled", "empty", "missing"]
)
def test_a_column_that_has_values_already_is_not_taken_for_the_new_one(
    database: Endpoint, opened: Open, there: str | None, refused: bool
) -> None:
    """The source has NULL in the rows of before."""
    sink = opened()
    prepared(sink)
    run(database, "INSERT INTO raw.t VALUES (1, 'a', 2)")
    if there is not None:
        run(database, f"ALTER TABLE raw.t ADD more int {there}")
    new = (Column(name="more", type="integer"),)
    if refused:
        with pytest.raises(SinkRefused, match="has a column more already, with values in rows that were committed"):
            sink.widen(new)
        run(database, "ALTER TABLE raw.t DROP more")
    sink.widen(new)
    sink.widen(new)
    assert run(database, "SELECT id, more FROM raw.t") == [(1, None)]


def test_two_may_prepare_at_once(opened: Open) -> None:
    barrier = threading.Barrier(4)

    def prepare(number: int) -> None:
        sink = opened(table=f"raw.t{number % 2}")
        write = fitted(sink)
        barrier.wait(10)
        sink.prepare(write)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(prepare, range(4)))


def test_hostile_names_stay_names(database: Endpoint, opened: Open) -> None:
    columns = (
        Column(name='i"d; --', type="bigint", nullable=False),
        Column(name="sel ect %s {}", type="text"),
    )
    sink = opened(table='"a.b; --"."c""d%s{}"')
    write = sink.fit(columns, mode="upsert", key=('i"d; --',))
    sink.prepare(write)
    plan = planned(write)
    assert sink.begin(plan) == 1
    assert sink.epoch(plan.plan_id) == 1
    run(database, 'INSERT INTO "a.b; --"."c""d%s{}" VALUES (1, \'x\'), (2, \'y\')')
    bounds = KeyBounds.of_column(column='i"d; --', start="2", end=None)
    assert run(database, sink.slice_query(write, bounds)) == [(2, "y")]
    assert sink.holds_rows()


@pytest.mark.statement("X4")
@pytest.mark.parametrize("type_", ["time", "timetz(3)", "varbit(3)", "int[]", "public.mood"])
def test_a_type_fits_by_every_name_that_the_server_takes(database: Endpoint, opened: Open, type_: str) -> None:
    """X4: the second run finds what the first one has created."""
    run(database, "CREATE TYPE public.mood AS ENUM ('a')")
    columns = (Column(name="id", type="int", nullable=False), Column(name="v", type=type_))
    prepared(opened(), columns=columns)
    assert fitted(opened(), columns=columns).columns == columns
    with pytest.raises(SinkRefused, match="column v arrives as date"):
        fitted(opened(), columns=(columns[0], Column(name="v", type="date")))


def test_what_cannot_be_created_is_told_and_leaves_nothing(database: Endpoint, opened: Open) -> None:
    sink = opened()
    write = fitted(sink, mode=Mode.UPSERT, columns=(Column(name="id", type="json"),))
    with pytest.raises(SinkRefused, match="json has no default operator class"):
        sink.prepare(write)
    assert run(database, "SELECT count(*) FROM pg_namespace WHERE nspname = 'raw'") == [(0,)]


# --- the fence and the markers


def test_a_plan_fences_those_before_it(database: Endpoint, opened: Open) -> None:
    """The epoch is minted in the sink, one above the last, and only the newest plan has one."""
    sink = opened()
    write = prepared(sink)
    first, second = planned(write), planned(write)
    assert sink.begin(first) == 1
    assert (sink.epoch(first.plan_id), sink.epoch(second.plan_id)) == (1, None)
    assert sink.begin(second) == 2
    assert (sink.epoch(first.plan_id), sink.epoch(second.plan_id)) == (None, 2)
    assert sink.begin(second) == 3
    row = run(
        database,
        "SELECT target, source_identity, consistency, mode, frontier, fingerprint, slot FROM raw.backpressure_plan",
    )
    assert row == [
        ("raw.t", first.source_identity, "static", "append", {"public.orders": 10}, second.fingerprint, None)
    ]


def test_targets_of_one_schema_have_their_own_epochs(opened: Open) -> None:
    one, other = opened(table="raw.one"), opened(table="raw.other")
    plan = planned(prepared(one))
    assert one.begin(plan) == 1
    prepared(other)
    assert other.epoch(plan.plan_id) is None
    assert other.begin(plan) == 1


def test_a_target_is_held_in_one_schema(opened: Open, database: Endpoint) -> None:
    """Two plan tables do not see each other's epochs, so both plans would write."""
    run(database, "CREATE SCHEMA mine", "CREATE TABLE mine.backpressure_plan (note text UNIQUE)")
    one, other = opened(), opened(system_schema="etl")
    # Both were checked before either has begun.
    first, second = planned(prepared(one)), planned(prepared(other))
    one.begin(first)
    words = f"is held by plan {first.plan_id} of .* in the schema raw: .* Use system_schema='raw', or delete"
    with pytest.raises(SinkRefused, match=words):
        other.begin(second)
    with pytest.raises(SinkRefused, match=words):
        prepared(other)
    run(database, "INSERT INTO etl.backpressure_plan SELECT * FROM raw.backpressure_plan")
    assert other.begin(second) == 2


@pytest.mark.statement("L3")
def test_the_row_that_holds_a_target_is_found_by_its_key(opened: Open, database: Endpoint) -> None:
    """Each of a thousand targets of a schema asks three times, and read the plans of all others each time."""
    opened().begin(planned(prepared(opened())))
    run(
        database,
        "INSERT INTO raw.backpressure_plan (target, plan_id, epoch, source_identity, consistency, mode, frontier, "
        "fingerprint) SELECT 'raw.other_' || i, 'p', 1, 's', 'static', 'append', '{}', 'f' FROM "
        "generate_series(1, 2000) i",
        "ANALYZE raw.backpressure_plan",
    )
    values = {"target": "raw.t", "table": "raw.t", "plans": "backpressure_plan"}
    query = sql.SQL("EXPLAIN (COSTS OFF) ") + HELD.format(sql.Identifier("raw", "backpressure_plan"))
    with connected(database) as link:
        shown = "\n".join(line for (line,) in link.execute(query, values).fetchall())
    assert "Index Cond: (target = 'raw.t'::text)" in shown, shown


def test_a_plan_in_a_renamed_or_copied_schema_holds_no_table_of_the_old_name(opened: Open, database: Endpoint) -> None:
    """Its row says which table it is of. One whose table is gone still holds the name: it may be restored."""
    first = planned(prepared(opened()))
    opened().begin(first)
    run(
        database,
        "ALTER SCHEMA raw RENAME TO old",
        "CREATE SCHEMA copied",
        "CREATE TABLE copied.backpressure_plan AS TABLE old.backpressure_plan",
    )
    assert opened().begin(planned(prepared(opened()))) == 1
    run(database, "DELETE FROM raw.backpressure_plan", "DROP TABLE old.t")
    with pytest.raises(SinkRefused, match=f"is held by plan {first.plan_id} of .* in the schema old: "):
        prepared(opened())
    run(
        database,
        "CREATE SCHEMA whole",
        "CREATE TABLE whole.backpressure_plan (LIKE old.backpressure_plan INCLUDING ALL)",
        "INSERT INTO whole.backpressure_plan SELECT * FROM old.backpressure_plan",
        "DROP SCHEMA old CASCADE",
    )
    with pytest.raises(SinkRefused, match=f"is held by plan {first.plan_id} of .* in the schema whole: "):
        prepared(opened())
    # The other copy has no key, so no plan could ever begin in it.
    run(database, "DROP SCHEMA whole CASCADE")
    assert opened().begin(planned(prepared(opened()))) == 1


def test_a_plan_of_a_dropped_table_takes_no_table_that_another_schema_holds(opened: Open, database: Endpoint) -> None:
    """Its own row is of the old table: it says nothing of the new one."""
    one, other = opened(), opened(system_schema="etl")
    one.begin(planned(prepared(one)))
    run(database, "ALTER TABLE raw.t RENAME TO old")
    second = planned(prepared(other))
    assert other.begin(second) == 1
    for statement in ("SELECT 1", "DROP TABLE raw.old"):
        run(database, statement)
        with pytest.raises(SinkRefused, match=f"is held by plan {second.plan_id} of .* in the schema etl: "):
            one.begin(planned(prepared(opened())))
    run(database, "DROP TABLE raw.t", "DROP TABLE etl.backpressure_plan")
    assert one.begin(planned(prepared(opened()))) == 2


def test_plans_that_begin_at_once_get_different_epochs(opened: Open) -> None:
    write = prepared(opened())
    barrier = threading.Barrier(6)

    def begin(_: int) -> int:
        sink = opened()
        barrier.wait(10)
        return sink.begin(planned(write))

    with ThreadPoolExecutor(6) as pool:
        assert sorted(pool.map(begin, range(6))) == [1, 2, 3, 4, 5, 6]


def test_markers_are_read_as_they_were_written(database: Endpoint, opened: Open) -> None:
    sink = opened()
    write = prepared(sink)
    plan = planned(write)
    epoch = sink.begin(plan)
    bounds = KeyBounds.of_column(column="id", start=None, end="7").to_json()
    assert sink.markers(plan.plan_id) == {}
    write_marker(database, write, plan, "0.0", epoch, bounds=json.dumps(bounds), attempt=3, checksum="xx:00ff")
    write_marker(database, write, plan, "1.0", epoch, revoked=True)
    markers = sink.markers(plan.plan_id)
    assert set(markers) == {"0.0", "1.0"}
    assert set(sink.markers(plan.plan_id, ["1.0", "2.0"])) == {"1.0"}
    assert sink.markers(plan.plan_id, []) == {}
    assert sink.markers(uuid.uuid4().hex) == {}
    first = markers["0.0"]
    assert (first.plan_id, first.slice_id, first.epoch, first.attempt) == (plan.plan_id, "0.0", epoch, 3)
    assert (first.bounds, first.rows, first.bytes, first.checksum) == (bounds, 5, 50, "xx:00ff")
    assert (first.revoked, markers["1.0"].revoked) == (False, True)
    assert first.committed_at.utcoffset() is not None
    assert run(database, "SELECT commit_seq FROM raw.backpressure_commit ORDER BY slice_id") == [(1,), (2,)]


@pytest.mark.statement("X1")
def test_a_slice_has_one_marker(database: Endpoint, opened: Open) -> None:
    """X1: keyed by (plan, slice): the sink itself refuses a duplicate, and the attempt is no part of the key."""
    sink = opened()
    write = prepared(sink)
    plan = planned(write)
    epoch = sink.begin(plan)
    write_marker(database, write, plan, "0.0", epoch, attempt=1)
    with pytest.raises(psycopg.errors.UniqueViolation):
        write_marker(database, write, plan, "0.0", epoch, attempt=2)


def test_without_its_tables_the_sink_says_so(opened: Open) -> None:
    plan_id = uuid.uuid4().hex
    assert opened().epoch(plan_id) is None
    with pytest.raises(SinkRefused, match=r'relation "raw\.backpressure_commit" does not exist'):
        opened().markers(plan_id)


def test_the_source_is_no_target_of_its_own(database: Endpoint, opened: Open) -> None:
    """By whatever address: the server says what the table is."""
    run(database, "CREATE SCHEMA raw", f"CREATE TABLE raw.t ({SAME}, PRIMARY KEY (id))")
    source = PostgresSource(conn_id="other", table="raw.t").open(replace(database, host="localhost"))
    read = source.read_spec(source.snapshot())
    source.close()
    sink = opened()
    write = prepared(sink)
    with pytest.raises(SinkRefused, match=r"raw\.t at .* is the source itself"):
        sink.begin(planned(write, place=read.place))
    other = opened(table="raw.u")
    assert other.begin(planned(prepared(other), place=read.place)) == 1


# --- attempts


@pytest.fixture
def attempt(database: Endpoint) -> Iterator[Callable[..., psycopg.Connection[Any]]]:
    """Open connections as attempts have them."""
    connections: list[psycopg.Connection[Any]] = []

    def open_(plan_id: str, slice_id: str, number: int = 1, **change: Any) -> psycopg.Connection[Any]:
        name = attempt_tag(plan_id, slice_id, number)
        connections.append(connected(replace(database, **change), application_name=name, autocommit=False))
        return connections[-1]

    yield open_
    for connection in connections:
        connection.close()


def alive(connection: psycopg.Connection[Any]) -> bool:
    """Whether a connection still answers."""
    try:
        connection.execute("SELECT 1")
    except psycopg.OperationalError:
        return False
    return True


def test_only_the_attempts_at_this_slice_are_ended(
    opened: Open, writer: Endpoint, attempt: Callable[..., psycopg.Connection[Any]]
) -> None:
    plan, sink = uuid.uuid4().hex, opened()
    ours = [attempt(plan, "1.0", 1), attempt(plan, "1.0", 12)]
    others = [
        attempt(plan, "11.0"),
        attempt(plan, "1.01"),
        attempt(plan, "1.1"),
        attempt(uuid.uuid4().hex, "1.0"),
        attempt(plan, "1.0", user=writer.user, password=writer.password),
    ]
    for connection in (*ours, *others):
        connection.execute("SELECT 1")
    assert sink.end_attempts(plan, "1.0") == 2
    assert [alive(connection) for connection in (*ours, *others)] == [False] * 2 + [True] * 5
    assert sink.end_attempts(plan, "1.0") == 0
    assert sink.holds_rows() is False, "its own connection is still there"


def test_a_frozen_client_is_ended_too(database: Endpoint, opened: Open) -> None:
    """A zombie that stands still in the middle of its COPY neither blocks a retry nor commits when it wakes up."""
    sink = opened()
    write = prepared(sink)
    plan = planned(write)
    sink.begin(plan)
    code = (
        "import os, sys, psycopg\n"
        "connection = psycopg.connect(os.environ['DSN'], application_name=sys.argv[1])\n"
        "with connection.cursor().copy('COPY raw.t FROM STDIN') as copy:\n"
        "    copy.write('1\\ta\\t1\\n' * 100000)\n"
        "    print('copying', flush=True)\n"
        "    sys.stdin.read()\n"
        "connection.commit()\n"
    )
    dsn = psycopg.conninfo.make_conninfo(
        host=database.host, port=database.port, dbname=database.database, user=database.user, password=database.password
    )
    zombie = subprocess.Popen(
        [sys.executable, "-c", code, attempt_tag(plan.plan_id, "0.0", 1)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "DSN": dsn},
        text=True,
    )
    try:
        assert zombie.stdout is not None
        assert zombie.stdout.readline() == "copying\n"
        os.kill(zombie.pid, signal.SIGSTOP)
        assert sink.end_attempts(plan.plan_id, "0.0") == 1
        os.kill(zombie.pid, signal.SIGCONT)
        zombie.communicate(timeout=20)
        assert zombie.returncode != 0
    finally:
        zombie.kill()
        zombie.wait(10)
        for pipe in (zombie.stdin, zombie.stdout):
            if pipe is not None:
                pipe.close()
    assert sink.holds_rows() is False


def test_a_new_plan_ends_the_attempts_of_the_one_before(
    opened: Open, attempt: Callable[..., psycopg.Connection[Any]]
) -> None:
    """Also of one that holds the fence shared and would keep the new plan waiting."""
    sink = opened()
    write = prepared(sink)
    old = planned(write)
    sink.begin(old)
    frozen = attempt(old.plan_id, "0.0")
    frozen.execute(f"SELECT epoch FROM {write.plan_table} WHERE target = %s FOR SHARE", (write.fence,))
    start = time.monotonic()
    assert sink.begin(planned(write)) == 2
    assert time.monotonic() - start < 10
    assert not alive(frozen)


def test_a_planner_that_is_frozen_in_its_transaction_lets_others_pass(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends its session, though its connection lives; when it wakes up, its transaction is over."""
    known = postgres_connect.SESSION_SETTINGS
    soon = {name: "1s" for name in known if name == "idle_in_transaction_session_timeout"}
    monkeypatch.setattr(postgres_connect, "SESSION_SETTINGS", {**known, **soon})
    frozen, other = cast("Any", opened()), opened()
    write = prepared(frozen)
    frozen.begin(planned(write))
    runs = 0

    def hold(connection: psycopg.Connection[Any]) -> int:
        nonlocal runs
        runs += 1
        if runs == 1:
            connection.execute(f"SELECT FROM {write.plan_table} WHERE target = %s FOR UPDATE", (write.fence,))
            assert other.begin(planned(write)) == 2
        return connection.execute("SELECT 1").rowcount

    assert frozen._session.transaction(hold) == 1
    assert runs == 2, "over another connection"


def test_a_connection_that_does_not_go_is_told(
    opened: Open, attempt: Callable[..., psycopg.Connection[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, sink = uuid.uuid4().hex, opened()
    stays = attempt(plan, "0.0")
    stays.execute("SELECT 1")
    monkeypatch.setattr(postgres_attempts, "END_SECONDS", 0.3)
    # What a backend that cannot be interrupted looks like: asked to go, and still there at the next look.
    monkeypatch.setattr(
        postgres_attempts,
        "_TERMINATE",
        psycopg.sql.SQL("SELECT pid FROM pg_stat_activity WHERE starts_with(application_name, %(prefix)s)"),
    )
    with pytest.raises(SinkUnavailable, match=r"did not end within 0\.3 s"):
        sink.end_attempts(plan, "0.0")


def test_rows_in_flight_are_seen_by_slice(
    database: Endpoint, opened: Open, attempt: Callable[..., psycopg.Connection[Any]]
) -> None:
    """M5: what is read and not committed yet, without counting the source's side of the same cluster."""
    sink = opened()
    write = prepared(sink)
    plan = planned(write)
    sink.begin(plan)
    assert sink.rows_in_flight(plan.plan_id) == {}
    run(database, "CREATE TABLE source AS SELECT g FROM generate_series(1, 100000) g")
    with (
        attempt(plan.plan_id, "0.0").cursor() as first,
        attempt(plan.plan_id, "7.0").cursor() as second,
        attempt(plan.plan_id, "9.0").cursor() as reading,
        attempt(uuid.uuid4().hex, "1.0").cursor() as stranger,
    ):
        with (
            first.copy("COPY raw.t FROM STDIN") as one,
            second.copy("COPY raw.t FROM STDIN") as two,
            reading.copy("COPY source TO STDOUT") as out,
            stranger.copy("COPY raw.t FROM STDIN") as other,
        ):
            next(iter(out))
            for copy, rows in ((one, 50_000), (two, 20_000), (other, 10_000)):
                copy.write("1\ta\t1\n" * rows)

            def seen() -> bool | None:
                flying = sink.rows_in_flight(plan.plan_id)
                return (set(flying) == {"0.0", "7.0"} and flying["0.0"] > 40_000 and flying["7.0"] > 10_000) or None

            assert PollPolicy().until(seen, timeout=20, clock=SystemClock()), sink.rows_in_flight(plan.plan_id)
            # Nothing is written now, so the server waits for rows.
            waiting = {"0.0": Activity.WAITING, "7.0": Activity.WAITING}
            assert PollPolicy().until(
                lambda: sink.activities(plan.plan_id) == waiting or None, timeout=20, clock=SystemClock()
            ), sink.activities(plan.plan_id)
            for _ in out:
                pass
        assert sink.rows_in_flight(plan.plan_id) == {}


# --- reading it back


@pytest.mark.parametrize(
    ("type_", "values", "cut"),
    [
        ("bigint", "g - 50", "7"),
        ("numeric", "CASE g WHEN 1 THEN 'NaN' WHEN 2 THEN '-Infinity' ELSE g / 3.0 END::numeric", "10.5"),
        ("uuid", "md5(g::text)::uuid", "80000000-0000-0000-0000-000000000000"),
        ("timestamp with time zone", "timestamptz '2024-01-01 UTC' + g * interval '1 h'", "2024-01-02 10:00:00+00"),
        ("character varying(20)", "CASE g % 2 WHEN 0 THEN 'a' ELSE 'B' END || g", "B5"),
        ("text", "'é''' || g", "é'5"),
    ],
)
def test_the_target_is_read_back_by_the_same_bounds(
    database: Endpoint, opened: Open, type_: str, values: str, cut: str
) -> None:
    """Two pieces that meet are the whole, columns as written."""
    run(
        database,
        "CREATE SCHEMA raw",
        f"CREATE TABLE raw.source (id {type_} PRIMARY KEY, a int)",
        f"INSERT INTO raw.source SELECT {values}, g FROM generate_series(1, 100) g",
    )
    source = PostgresSource(conn_id="s", table="raw.source", columns=("a", "id")).open(database)
    snapshot = source.snapshot()
    sink = opened()
    write = prepared(sink, columns=snapshot.columns)
    run(database, "INSERT INTO raw.t SELECT a, id FROM raw.source")
    read, pieces = source.read_spec(snapshot), []
    for bounds in (
        KeyBounds.of_column(column="id", start=None, end=cut),
        KeyBounds.of_column(column="id", start=cut, end=None),
    ):
        there = run(database, sink.slice_query(write, bounds))
        assert sorted(map(repr, there)) == sorted(map(repr, run(database, source.slice(read, bounds, "x").query)))
        assert there
        pieces += there
    source.close()
    assert sorted(map(repr, pieces)) == sorted(map(repr, run(database, sink.slice_query(write, None))))
    assert len(pieces) == 100


def test_bounds_that_do_not_single_out_the_same_rows_are_refused(database: Endpoint, opened: Open) -> None:
    """Text in another order has other rows between the same two values."""
    run(
        database,
        "CREATE SCHEMA raw",
        'CREATE TABLE raw.source (id text COLLATE "en-US-x-icu" PRIMARY KEY, a int)',
        "INSERT INTO raw.source VALUES ('a', 1), ('B', 2), ('c', 3)",
        'CREATE TABLE raw.t (id text COLLATE "C", a int)',
    )
    source = PostgresSource(conn_id="s", table="raw.source").open(database)
    columns = source.snapshot().columns
    source.close()
    sink = opened()
    write = prepared(sink, columns=columns)
    bounds = KeyBounds.of_column(column="id", start="B", end=None)
    with pytest.raises(SinkRefused, match=r"ordered by C in raw\.t and by icu en-US .* in the source"):
        sink.slice_query(write, bounds)
    assert run(database, sink.slice_query(write, None)) == []
    for order in ("C", None):
        same = replace(write, columns=(replace(columns[0], collation=order),))
        assert run(database, sink.slice_query(same, bounds)) == []
    with pytest.raises(SinkRefused, match="no column nix"):
        sink.slice_query(write, KeyBounds.of_column(column="nix", start="1", end=None))


def test_a_lost_connection_is_made_anew(database: Endpoint, opened: Open) -> None:
    sink = opened()
    prepared(sink)
    run(
        database,
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'backpressure control'"
        " AND datname = current_database()",
    )
    assert sink.holds_rows() is False
    sink.close()
    sink.close()
