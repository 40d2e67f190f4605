"""A DAG that nobody triggers: Airflow's triggerer looks at the source, and brings its runs and statistics."""

import json

import pytest

from tests.support.kafka import Topic
from tests.system.installation import Installation, until

pytestmark = pytest.mark.system
RECORDS = 50


@pytest.mark.statement("T10", "M7", "M8", "M13")
@pytest.mark.long
def test_what_comes_to_a_topic_brings_the_next_run(installation: Installation):
    """T10, M7, M8, M13: the first run, then one for what has come since; frontiers and metrics go on between runs."""
    topic = Topic(servers=installation.kafka.url, name="arrivals").create(2)
    topic.send(0, *({"id": number} for number in range(RECORDS)))
    installation.airflow.wait_for_dag("arrivals")
    # A watcher begins when the file is parsed once more after its DAG was unpaused.
    installation.airflow.parse("arrivals")
    until(lambda: installation.committed_rows("arrivals", "raw.arrivals") == RECORDS, 700)

    ledger, hydration = installation.ledger, installation.hydration("raw.arrivals")
    assert hydration is not None
    until(lambda: ledger.hydration(hydration.id).holder is None, 120)
    topic.send(1, *({"id": number} for number in range(RECORDS, 2 * RECORDS)))
    until(lambda: installation.committed_rows("arrivals", "raw.arrivals") == 2 * RECORDS, 700)
    assert installation.runs("arrivals") == 2, "one for each time that something had come"

    until(lambda: ledger.hydration(hydration.id).holder is None, 120)
    before = ledger.course(hydration.id)
    until(lambda: (course := ledger.course(hydration.id)) is not None and course.latest.at > before.latest.at, 60)
    course = ledger.course(hydration.id)
    assert (course.latest.known, course.lag) == ({"0": RECORDS, "1": RECORDS}, 0)
    shown = json.loads(installation.cli("status", "raw.arrivals", "--output", "json").stdout)[0]
    assert (shown["keeping_up"], shown["offset_known"]) == ("caught up", 2 * RECORDS)
    screen = installation.cli("status", "raw.arrivals").stdout
    assert "100.0 %" in screen
    assert "yes, caught up" in screen
    assert installation.metric("airflow.backpressure.raw_arrivals.offset_committed") == f"{2 * RECORDS}|g"
