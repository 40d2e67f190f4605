"""F4, F6: reader with transform, and sink, of real ranges on a real Spark Connect server, timed by the writer."""

import uuid
from dataclasses import dataclass, replace
from typing import Any

import pytest

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.progress.bottleneck import Level, find_bottleneck, find_level
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, RangeResult, ReadSpec, Transform
from airflow_provider_backpressure.core.stage_metrics import Stage, StageTime, State
from airflow_provider_backpressure.runners.connect_runner import ConnectRunner
from tests.integration.attempts import Begun, begin, columns_of, difference, execute

pytestmark = [pytest.mark.integration, pytest.mark.statement("F4", "F6")]

WIDE = """
CREATE TABLE wide AS
SELECT i AS id, md5(i::text) AS code, repeat(md5(i::text), 16) AS filling FROM generate_series(1, {rows}) i
"""
"""Half a kilobyte a row: some batches of 10,000, and more of them than find room between reader and transform."""
ALL = "SELECT * FROM wide"
WAITING = StageTime(backpressured=1)
"""A gate with ranges behind it."""
STAGES = [Stage.READ_AND_TRANSFORM, Stage.SINK]


@dataclass(kw_only=True)
class Stand:
    """A source table, and what is needed to run ranges of it under a transform."""

    database: Endpoint
    runner: ConnectRunner
    read: tuple[Column, ...]

    def begin(self, transform: Transform | None, **options: Any) -> Begun:
        """Begin a plan for a target of the transform's columns."""
        read = ReadSpec(kind="postgres", conn_id="source", columns=self.read)
        columns = self.read if transform is None else self.runner.describe(read, transform)
        table = f"raw.t{uuid.uuid4().hex[:8]}"
        values = {"path": "frame", "read": self.read, **options}
        return begin(self.database, self.database, table=table, columns=columns, transform=transform, **values)

    def run(self, begun: Begun, *queries: str, seq: int = 0) -> RangeResult:
        """Run a range of these slices."""
        return self.runner.run(begun.spec(*(queries or (ALL,)), seq=seq)).result(240)


def stand(database: Endpoint, runner: ConnectRunner, logins: dict[str, Endpoint], rows: int) -> Stand:
    """Make a source of so many wide rows."""
    execute(database, WIDE.format(rows=rows))
    logins.update({name: replace(database, conn_id=name) for name in ("source", "sink")})
    return Stand(database=database, runner=runner, read=columns_of(database, "wide"))


def whole(flow: dict[Stage, StageTime]) -> None:
    """Check that each stage's times make the same whole, to 20 ms in a second."""
    seconds = [spent.seconds for spent in flow.values()]
    assert max(seconds) - min(seconds) < 0.02 * max(seconds), flow
    assert all(min(spent.busy, spent.idle, spent.backpressured) > -1e-6 for spent in flow.values()), flow


@pytest.mark.long
def test_a_slow_transform_is_the_bottleneck(database: Endpoint, runner: ConnectRunner, logins: Any) -> None:
    """F4, F6: a function in Python that costs a processor: the sink is idle, and read+transform is named."""
    # Sockets grow where the machine lets them, and may hold what half as many rows are.
    made = stand(database, runner, logins, 120_000)
    begun = made.begin(Transform(python="tests.integration.transforms:slow"))
    made.run(begun, f"{ALL} LIMIT 10")
    flow = made.run(begun, ALL, seq=1).flow
    assert list(flow) == STAGES
    whole(flow)
    assert flow[Stage.READ_AND_TRANSFORM].share(State.BUSY) > 0.5, flow
    assert flow[Stage.SINK].share(State.IDLE) > 0.5, flow
    assert find_bottleneck({Stage.ADMIT: WAITING, **flow}) is Stage.READ_AND_TRANSFORM, flow


@pytest.mark.long
def test_so_is_one_that_all_rows_are_read_ahead_of(database: Endpoint, runner: ConnectRunner, logins: Any) -> None:
    """F6: the reader has ended long before the last rows come."""
    made = stand(database, runner, logins, 15_000)
    flow = made.run(made.begin(Transform(python="tests.integration.transforms:ahead"))).flow
    whole(flow)
    assert flow[Stage.READ_AND_TRANSFORM].share(State.BUSY) > 0.5, flow
    assert find_bottleneck({Stage.ADMIT: WAITING, **flow}) is Stage.READ_AND_TRANSFORM, flow


def test_before_a_slow_sink_a_transform_is_held_back(database: Endpoint, runner: ConnectRunner, logins: Any) -> None:
    """F4, F6: the same with a quick transform and a target that lingers over its rows."""
    made = stand(database, runner, logins, 50_000)
    begun = made.begin(Transform(python="tests.integration.transforms:quick"))
    execute(
        database,
        "CREATE FUNCTION linger() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN IF NEW.id % 100 = 0 THEN PERFORM pg_sleep(0.015); END IF; RETURN NEW; END'",
        f"CREATE TRIGGER linger BEFORE INSERT ON {begun.plan.write.target} FOR EACH ROW EXECUTE FUNCTION linger()",
    )
    flow = made.run(begun).flow
    assert list(flow) == STAGES
    whole(flow)
    assert flow[Stage.SINK].share(State.BUSY) > 0.4, flow
    assert find_level(flow[Stage.READ_AND_TRANSFORM]) is not Level.OK, flow
    assert find_bottleneck({Stage.ADMIT: WAITING, **flow}) is Stage.SINK, flow


@pytest.mark.long
def test_behind_a_slow_source_the_sink_is_idle(database: Endpoint, runner: ConnectRunner, logins: Any) -> None:
    """F4, F6: two slices, which one task reads one after the other, from a source that lingers; the rows are right."""
    made = stand(database, runner, logins, 8_000)
    execute(
        database,
        "CREATE FUNCTION lingered(number int) RETURNS int LANGUAGE plpgsql AS"
        " 'BEGIN IF number % 100 = 0 THEN PERFORM pg_sleep(0.05); END IF; RETURN number; END'",
    )
    begun = made.begin(Transform(sql="SELECT * FROM source WHERE id % 2 = 0"))
    slowly = "SELECT lingered(id) AS id, code, filling FROM wide WHERE id {} 4000"
    flow = made.run(begun, slowly.format("<="), slowly.format(">")).flow
    assert list(flow) == STAGES
    whole(flow)
    assert flow[Stage.READ_AND_TRANSFORM].share(State.BUSY) > 0.6, flow
    assert flow[Stage.SINK].share(State.IDLE) > 0.6, flow
    assert find_bottleneck({Stage.ADMIT: WAITING, **flow}) is Stage.READ_AND_TRANSFORM, flow
    assert difference(database, f"{ALL} WHERE id % 2 = 0", database, f"TABLE {begun.plan.write.target}")[2] == 0


def test_behind_a_shuffle_the_times_make_a_whole_too(database: Endpoint, runner: ConnectRunner, logins: Any) -> None:
    """Two slices: reading is over before the writer begins, maybe on another host, and nothing is guessed."""
    made = stand(database, runner, logins, 2_000)
    begun = made.begin(Transform(sql="SELECT id % 7 AS id, count(*) AS n FROM source GROUP BY id % 7"))
    flow = made.run(begun, f"{ALL} WHERE id <= 1000", f"{ALL} WHERE id > 1000").flow
    assert list(flow) == STAGES
    whole(flow)


@pytest.mark.parametrize("path", ["frame", "copy"])
def test_without_a_transform_there_is_no_such_stage(
    database: Endpoint, runner: ConnectRunner, logins: Any, path: str
) -> None:
    """Absent, not idle."""
    made = stand(database, runner, logins, 2_000)
    flow = made.run(made.begin(None, path=path)).flow
    assert list(flow) == [Stage.READ, Stage.SINK]
    whole(flow)


@pytest.mark.parametrize("query", ["SELECT id FROM source WHERE false", "SELECT id FROM source LIMIT 10"])
def test_rows_that_are_not_asked_for_leave_the_range_whole(
    database: Endpoint, runner: ConnectRunner, logins: Any, query: str
) -> None:
    """A reader that never begins, and one that is left in the middle: whatever is told, it adds up."""
    made = stand(database, runner, logins, 2_000)
    result = made.run(made.begin(Transform(sql=query)))
    assert result.rows == (10 if "LIMIT" in query else 0)
    whole(result.flow)
