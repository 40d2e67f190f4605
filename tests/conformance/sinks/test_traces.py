"""What a sink keeps beside its rows is named, and goes without them."""

import uuid
from contextlib import closing
from dataclasses import replace

import pytest

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.exceptions import PlanSuperseded, SinkRefused
from airflow_provider_backpressure.sinks import PostgresSink
from tests.conformance.sinks.cases import Case, PostgresCase, opened
from tests.conformance.sinks.support import begin, expected
from tests.support.postgres import run

pytestmark = pytest.mark.integration


def test_a_target_that_nobody_has_begun_has_no_traces(case: Case) -> None:
    with opened(case) as sink:
        assert sink.traces() == ()
        sink.erase()
        assert sink.traces() == ()


def test_what_is_kept_beside_the_rows_is_erased_without_them(case: Case) -> None:
    """Twice is no error, no attempt of before comes through, and a new plan finds a target of somebody else's rows."""
    begun = begin(case)
    begun.write(0)
    with opened(case) as sink:
        assert sink.traces()
        for _ in range(2):
            sink.erase()
        assert (sink.traces(), sink.held()) == ((), None)
        assert sink.holds_rows()
    assert case.rows() == expected(case, 0)
    with pytest.raises((PlanSuperseded, SinkRefused)):
        begun.write(1)
    assert case.rows() == expected(case, 0)
    again = begin(case)
    again.write(1)
    assert case.rows() == expected(case, 0, 1)


def test_a_process_that_has_looked_before_holds_nothing_any_more(case: Case) -> None:
    """What it remembers of the fence does not count."""
    begun = begin(case)
    with opened(case) as early:
        assert early.epoch(begun.plan.plan_id) == begun.plan.epoch
        with opened(case) as sink:
            sink.erase()
        assert early.epoch(begun.plan.plan_id) is None
        assert early.renew(begun.plan.plan_id) is None


@pytest.fixture
def beside(database: Endpoint) -> PostgresCase:
    """A target in a database where there may be others."""
    place = replace(database, conn_id="sink")
    return PostgresCase(declared=PostgresSink(conn_id="sink", table="raw.t"), endpoint=place)


def tables(case: PostgresCase) -> list[str]:
    """Every table of the schema."""
    query = "SELECT tablename::text FROM pg_tables WHERE schemaname = 'raw' ORDER BY 1"
    return [name for (name,) in run(case.endpoint, query)]


def test_tables_that_others_use_too_stay_with_their_rows(beside: PostgresCase) -> None:
    """They go with the last target that has a row in them."""
    begin(beside).write(0)
    other = PostgresCase(
        declared=PostgresSink(conn_id="sink", table="raw.other", quarantine=5), endpoint=beside.endpoint
    )
    second = begin(other)
    with opened(beside) as sink:
        assert sink.traces() == (
            "raw.backpressure_plan: 1 rows of raw.t",
            "raw.backpressure_commit: 1 rows of raw.t",
        )
        sink.erase()
        assert sink.traces() == ()
    second.write(0)
    assert len(second.markers()) == 1
    run(beside.endpoint, "CREATE TABLE raw.mine (id int)")
    with opened(other) as sink:
        sink.erase()
    assert tables(beside) == ["mine", "other", "t"]


def test_half_of_a_replacement_and_what_a_killed_probe_left_go_too(beside: PostgresCase) -> None:
    """They bear our comment, and nothing else that looks like them is touched."""
    begin(beside).write(0)
    begin(beside, mode="replace").write(1)
    with opened(beside) as sink:
        with closing(sink.scratch("0123abcd")) as scratch:
            scratch.prepare(scratch.fit(beside.columns, mode="append", key=("id",)))
        run(beside.endpoint, "CREATE TABLE raw.t_probe_0123abce (id int)")
        named = " ".join(sink.traces())
        assert "what was to take the place of raw.t" in named
        assert "raw.t_probe_0123abcd: filled by a probe of raw.t" in named
        sink.erase()
        assert sink.traces() == ()
    assert tables(beside) == ["t", "t_probe_0123abce"]
    assert beside.rows() == expected(beside, 0)


def test_a_role_that_may_only_write_leaves_the_tables_empty(beside: PostgresCase) -> None:
    """What belongs to another role is not ours to drop."""
    role = f"writer_{uuid.uuid4().hex[:8]}"
    begin(beside).write(0)
    run(
        beside.endpoint,
        f"CREATE ROLE {role} LOGIN PASSWORD 'w'",
        f"GRANT USAGE ON SCHEMA raw TO {role}",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA raw TO {role}",
    )
    place = replace(beside.endpoint, user=role, password="w")
    with opened(PostgresCase(declared=beside.declared, endpoint=place)) as sink:
        sink.erase()
        assert sink.traces() == ()
    assert run(beside.endpoint, "SELECT count(*) FROM raw.backpressure_plan") == [(0,)]
    run(beside.endpoint, f"DROP OWNED BY {role}", f"DROP ROLE {role}")
