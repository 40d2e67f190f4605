"""Tables that Spark's own connectors write, which somebody sets back to an older version between two plans."""

import pytest

from airflow_provider_backpressure.exceptions import PlanSuperseded, SinkRefused
from tests.conformance.sinks.cases import Case, SparkTableCase, opened, spark_session
from tests.conformance.sinks.support import Begun, begin, expected
from tests.conformance.sinks.test_spark_tables import count_versions, roll_back

pytestmark = [
    pytest.mark.integration,
    pytest.mark.long,
    pytest.mark.parametrize("case", ["spark_delta", "spark_iceberg"], indirect=True),
]


def complete(case: Case, begun: Begun) -> None:
    """End a plan, as the last task of a run does."""
    with opened(case) as sink:
        sink.complete(begun.plan)


@pytest.mark.statement("K2", "X3")
def test_a_table_that_was_set_back_after_its_plan_had_ended_is_refused(case: Case) -> None:
    """K2, X3: the next plan would go on from what is not there any more. A restart takes the table."""
    first = begin(case)
    first.write(0)
    complete(case, first)
    versions = count_versions(case)
    second = begin(case)
    second.write(1)
    complete(case, second)
    with opened(case) as sink:
        sink.check_history()
    roll_back(case, to=versions - 1)
    assert case.rows() == expected(case, 0)
    with opened(case) as sink:
        with pytest.raises(SinkRefused, match=r"no longer has the commit .* was restored"):
            sink.check_history()
        with pytest.raises((SinkRefused, PlanSuperseded)):
            sink.complete(second.plan)
        assert sink.held() is not None, "a restart has to know whom it takes the table from"
    third = begin(case, mode="upsert")
    third.write(1)
    complete(case, third)
    with opened(case) as sink:
        sink.check_history()


@pytest.mark.statement("K2", "X3")
@pytest.mark.parametrize("ended", [True, False], ids=["ended", "open"])
def test_a_table_that_was_replaced_is_refused(case: Case, ended: bool) -> None:
    """K2, X3: its log keeps every mark, and the rows are those of another statement."""
    assert isinstance(case, SparkTableCase)
    begun = begin(case)
    begun.write(0)
    if ended:
        complete(case, begun)
    table, format_ = case.place["table"], case.place["format"]
    spark_session(case.cluster.url).sql(
        f"CREATE OR REPLACE TABLE {table} USING {format_} AS SELECT * FROM {table} WHERE false"
    ).collect()
    # Of a plan that never ended Iceberg's log has nothing any more: the table is of no plan then.
    refused = r"no longer has the commit .* replaced|no longer holds"
    with opened(case) as sink, pytest.raises((SinkRefused, PlanSuperseded), match=refused):
        sink.complete(begun.plan)


@pytest.mark.statement("K2", "X3")
def test_a_table_that_others_compact_and_expire_is_not_taken_for_one_that_was_set_back(case: Case) -> None:
    """K2, X3: no row is lost by that, though the snapshot that the plan left may be expired."""
    assert isinstance(case, SparkTableCase)
    begun = begin(case)
    begun.write(0)
    begun.write(1)
    complete(case, begun)
    session, table = spark_session(case.cluster.url), case.place["table"]
    if case.place["format"] == "delta":
        session.sql(f"OPTIMIZE {table}").collect()
    else:
        system = f"{table.partition('.')[0]}.system"
        session.sql(
            f"CALL {system}.rewrite_data_files(table => '{table}', options => map('rewrite-all', 'true'))"
        ).collect()
        session.sql(f"INSERT INTO {table} SELECT * FROM {table} WHERE false").collect()
        now = session.sql("SELECT CAST(now() AS STRING)").collect()[0][0]
        expire = f"table => '{table}', older_than => TIMESTAMP '{now}', retain_last => 1"
        session.sql(f"CALL {system}.expire_snapshots({expire})").collect()
        assert count_versions(case) == 1
    with opened(case) as sink:
        sink.check_history()
    assert case.rows() == expected(case, 0, 1)
