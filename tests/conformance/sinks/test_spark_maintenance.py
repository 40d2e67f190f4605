"""Tables that Spark's own connectors write, which are compacted and lose old versions while a plan holds them."""

import pytest

from airflow_provider_backpressure.connectors.lake.spark.commit_notes import HEAD
from airflow_provider_backpressure.connectors.lake.spark.table import SparkTable, open_table
from airflow_provider_backpressure.connectors.lake.tasks import spark_write
from airflow_provider_backpressure.exceptions import PlanSuperseded
from tests.conformance.sinks.cases import Case, SparkTableCase, opened, spark_session
from tests.conformance.sinks.support import Begun, batches, begin, expected, ids
from tests.conformance.sinks.test_spark_rollbacks import complete

pytestmark = [
    pytest.mark.integration,
    pytest.mark.long,
    pytest.mark.statement("K3"),
    pytest.mark.parametrize("case", ["spark_delta", "spark_iceberg"], indirect=True),
]


def open_it(case: Case) -> SparkTable:
    """Return the case's table."""
    assert isinstance(case, SparkTableCase)
    return open_table(spark_session(case.cluster.url), case.place["format"], case.place["table"])


def maintain(case: Case) -> None:
    """Compact the table, and remove every old version that nobody needs."""
    table = open_it(case)
    by_format = {"delta": ("delta.deletedFileRetentionDuration", "interval 0 hours")}
    name, value = by_format.get(table.format, ("history.expire.max-snapshot-age-ms", "1"))
    table.keep({name: value})
    table.compact()
    table.remove_old_versions()


def list_snapshots(case: Case) -> set[str]:
    """Return the ids of an Iceberg table's snapshots."""
    table = open_it(case)
    return {str(row[0]) for row in table.ask(f"SELECT snapshot_id FROM {table.quoted}.snapshots")}


@pytest.mark.statement("K3", "X3")
def test_what_a_plan_needs_outlives_the_maintenance(case: Case) -> None:
    """K3, X3: rows, marks of all plans, the version at the end of the last plan; and the first plan loses nothing."""
    first = begin(case, mode="upsert")
    first.write(0)
    first.write(1)
    maintain(case)
    complete(case, first)
    iceberg = open_it(case).format == "iceberg"
    before = list_snapshots(case) if iceberg else set()
    second = begin(case, mode="upsert")
    second.write(1, word="new")
    second.write(2)
    during = list_snapshots(case) - before if iceberg else set()
    maintain(case)
    assert case.rows() == expected(case, 0) + expected(case, 1, word="new") + expected(case, 2)
    if iceberg:
        left, head = list_snapshots(case), open_it(case).properties()[HEAD].partition("@")[0]
        assert len(before) > 2, "the first plan has lost snapshots"
        assert before & left == {head}
        assert during <= left
    assert set(second.markers()) == {"1.0", "2.0"}
    assert set(first.markers()) == {"0.0", "1.0"}
    with opened(case) as sink:
        sink.check_history()
    again = second.write(1, word="twice")
    assert again.checksum == second.markers()["1.0"].checksum
    complete(case, second)
    with opened(case) as sink:
        sink.check_history()


@pytest.mark.statement("K3", "X1")
def test_a_late_attempt_whose_token_is_forgotten_is_refused(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """K3, X1: two plans came since it was frozen before its commit, and the fence of its range is expired."""
    first = begin(case, mode="upsert", ranges=4)
    first.write(0)
    publish = spark_write._publish
    held: list[Begun] = []

    def freeze(*arguments: object) -> object:
        monkeypatch.undo()
        second = begin(case, mode="upsert")
        second.write(0, word="newer")
        complete(case, second)
        held.append(begin(case, mode="upsert"))
        maintain(case)
        return publish(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(spark_write, "_publish", freeze)
    with pytest.raises(PlanSuperseded):
        case.write(first.spec(3), batches(case, ids(3)))
    assert held
    assert case.rows() == expected(case, 0, word="newer")
    held[0].write(3, word="last")
    assert case.rows() == expected(case, 0, word="newer") + expected(case, 3, word="last")
