"""A source that is copied again by each run, while it changes between the runs."""

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_backpressure.core.config import NewColumn, Refresh
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.planning.plan_result import Planned, Verdict
from airflow_provider_backpressure.exceptions import SinkRefused, VerificationFailed
from airflow_provider_backpressure.ledger.migration import migrate
from tests.support.composed import Composed, difference
from tests.support.postgres import numbered_rows, run

pytestmark = [pytest.mark.integration, pytest.mark.in_process]

CHANGES = (
    "INSERT INTO t SELECT i, 'new' FROM generate_series(1001, 1100) i",
    "UPDATE t SET code = 'changed' WHERE id % 7 = 0",
    "DELETE FROM t WHERE id <= 50",
)


@pytest.fixture
def composed(database: Endpoint, hydration: Composed) -> Composed:
    """A source of 1,000 rows."""
    run(
        database,
        *numbered_rows(1000),
        "CREATE SCHEMA raw",
    )
    return replace(hydration, mode="replace")


def copy(composed: Composed, name: str, on_new_column: NewColumn = NewColumn.STOP) -> Planned:
    """Let one run plan and drain its ranges."""
    with composed.open() as ports:
        planner = replace(ports.planner(), run=name, refresh=Refresh.EACH_RUN, on_new_column=on_new_column)
        planned = planner.plan()
        ports.hydrator().run()
    return planned


@pytest.mark.statement("L1")
@pytest.mark.parametrize("consistency", ["static", "snapshot"])
def test_a_target_that_is_replaced_equals_its_source_after_each_run(
    consistency: str, database: Endpoint, composed: Composed
) -> None:
    """L1: inserts, updates and deletes; a complete run that is cleared, or made again under its name, copies again."""
    composed, plans = replace(composed, consistency=consistency), set()
    for name in ("first", "second", "second"):
        planned = copy(composed, name)
        assert planned.verdict is Verdict.PLANNED
        composed.finish()
        plans.add(planned.plan.plan_id)
        assert difference(database, "t", database, "raw.t") == (0, 0)
        run(database, *(CHANGES if name == "first" else CHANGES[1:2]))
    assert len(plans) == 3


@pytest.mark.statement("L1")
def test_upserts_bring_new_values_and_name_the_ranges_of_rows_that_are_gone(
    database: Endpoint, composed: Composed
) -> None:
    """L1: rows that were deleted in the source stay in the target; verification says so."""
    composed = replace(composed, mode="upsert")
    for name in ("first", "second"):
        copy(composed, name)
        composed.finish()
        assert difference(database, "t", database, "raw.t") == (0, 0)
        run(database, *CHANGES[:2] if name == "first" else CHANGES[2:])
    copy(composed, "third")
    assert difference(database, "t", database, "raw.t") == (0, 50)
    with pytest.raises(VerificationFailed, match="upsert leaves rows in the target that are no longer in the source"):
        composed.finish()


def test_a_column_that_was_added_arrives_with_the_next_copy(database: Endpoint, composed: Composed) -> None:
    """Where the declaration says so; otherwise the run stops before it writes anything."""
    copy(composed, "first")
    composed.finish()
    run(database, "ALTER TABLE t ADD COLUMN note text DEFAULT 'later'")
    with pytest.raises(SinkRefused, match="it has no column note"):
        copy(composed, "second")
    copy(composed, "second", NewColumn.ADD)
    composed.finish()
    assert difference(database, "t", database, "raw.t") == (0, 0)


@pytest.mark.statement("L1")
@pytest.mark.parametrize("mode", ["replace", "mirror"])
def test_the_run_after_a_lost_ledger_copies_again(
    mode: str, database: Endpoint, composed: Composed, tmp_path: Path
) -> None:
    """L1: what the target says of the last copy is no copy of this run."""
    composed = replace(composed, mode=mode, consistency="static")
    for name in ("first", "second"):
        ledger_url = f"sqlite:///{tmp_path / name}"
        migrate(ledger_url)
        composed = replace(composed, ledger_url=ledger_url)
        copy(composed, name)
        composed.finish()
        assert difference(database, "t", database, "raw.t") == (0, 0)
        run(database, *CHANGES[1:])


def test_a_login_whose_statements_are_limited_in_time_copies_all_the_same(
    database: Endpoint, composed: Composed
) -> None:
    """To count, to read and to build an index take longer than what is meant for a service's queries."""
    slow = "CREATE FUNCTION slow(i bigint) RETURNS bigint IMMUTABLE LANGUAGE plpgsql AS"
    run(
        database,
        f"{slow} 'BEGIN PERFORM pg_sleep(0.05); RETURN i; END'",
        "CREATE VIEW v AS SELECT id, code FROM t, pg_sleep(0.3) WHERE id <= 10",
        "CREATE TABLE raw.t (id bigint, code text)",
        "CREATE INDEX ON raw.t (slow(id))",
        "INSERT INTO raw.t VALUES (0, 'old')",
        *(
            f'ALTER DATABASE "{database.database}" SET {name} = 200'
            for name in ("statement_timeout", "transaction_timeout")
        ),
    )
    composed = replace(composed, table="public.v", reading={"split_column": "id"})
    copy(composed, "first")
    composed.finish()
    assert difference(database, "(SELECT * FROM t WHERE id <= 10)", database, "raw.t") == (0, 0)
