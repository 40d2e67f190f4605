"""T12 over real parts: a target that gives so many rows a second, whoever writes, is found to be the bound."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_backpressure.core.capacity.capacity_probe import OWNER, Prober
from airflow_provider_backpressure.core.capacity.saturation_curve import Bound, Curve
from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.gate.signals import MemoryReading
from airflow_provider_backpressure.core.ports import Runner
from airflow_provider_backpressure.core.ports.sink import ScratchSink
from airflow_provider_backpressure.exceptions import SinkRefused
from airflow_provider_backpressure.sinks import PostgresSink
from tests.support import lakes
from tests.support.composed import Composed, Ports
from tests.support.postgres import connected, numbered_rows, run

pytestmark = [pytest.mark.integration, pytest.mark.statement("T12")]

ROWS, RANGE_ROWS, SECONDS_PER_RANGE = 20_000, 200, 1.5
"""One range commits at a time, so long after the one before: longer than all else takes, also on a busy machine."""
BRAKE = f"""
CREATE SEQUENCE committed;
CREATE FUNCTION brake() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE after float; BEGIN
    PERFORM pg_advisory_xact_lock(7);
    SELECT last_value / 1000.0 + NEW.rows * {SECONDS_PER_RANGE} / {RANGE_ROWS} INTO after FROM committed;
    PERFORM pg_sleep(greatest(0, after - extract(epoch FROM clock_timestamp())));
    PERFORM setval('committed', (extract(epoch FROM clock_timestamp()) * 1000)::bigint);
    RETURN NEW;
END $$;
CREATE TRIGGER brake BEFORE INSERT ON raw.backpressure_commit FOR EACH ROW EXECUTE FUNCTION brake()
"""
TICKS = f"""
CREATE FUNCTION brake(id bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE now float; BEGIN
    -- Of the tasks that read, one passes at each tick of the clock.
    IF id % {RANGE_ROWS} = 1 AND current_setting('application_name') LIKE 'bp%' THEN
        PERFORM pg_advisory_lock(8);
        now := extract(epoch FROM clock_timestamp());
        PERFORM pg_sleep((floor(now / {SECONDS_PER_RANGE}) + 1) * {SECONDS_PER_RANGE} - now);
        PERFORM pg_advisory_unlock(8);
    END IF;
    RETURN true;
END $$
"""
BREAK = """
CREATE SEQUENCE markers;
CREATE FUNCTION break() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF nextval('markers') > 3 THEN RAISE EXCEPTION 'the disk is on fire'; END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER break BEFORE INSERT ON raw.backpressure_commit FOR EACH ROW EXECUTE FUNCTION break()
"""


@pytest.fixture
def composed(database: Endpoint, hydration: Composed) -> Composed:
    """Twenty thousand rows in a hundred ranges."""
    run(database, *numbered_rows(ROWS))
    return replace(
        hydration,
        budget=Budget(credits=8, range_rows=RANGE_ROWS),
    )


@contextmanager
def planned(composed: Composed) -> Iterator[Ports]:
    """Plan a hydration and do not begin it."""
    with composed.open() as opened:
        opened.planner().plan()
        yield opened


@pytest.fixture
def ports(composed: Composed) -> Iterator[Ports]:
    with planned(composed) as opened:
        yield opened


@dataclass
class Roomy:
    """A runner whose executors have memory enough: those of the tests are small."""

    runner: Runner

    def memory(self) -> MemoryReading | None:
        reading = self.runner.memory()
        return None if reading is None else replace(reading, limit_bytes=2**40)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runner, name)


def prober(ports: Ports) -> Prober:
    runner: Any = Roomy(ports.runner)
    return Prober(
        planner=replace(ports.planner(), runner=runner),
        hydration=ports.hydration,
        plan=ports.plan,
        seconds=3.0,
        sizes=(1 / 4,),
        tell=print,
    )


def left_behind(ports: Ports) -> list[object]:
    """Return what there is in target and ledger beside the hydration itself."""
    with connected(ports.composed.sink) as connection:
        found = [
            *connection.execute("SELECT tablename FROM pg_tables WHERE tablename LIKE '%probe%'").fetchall(),
            *connection.execute("SELECT target FROM raw.backpressure_plan WHERE target <> 'raw.t'").fetchall(),
            *connection.execute("SELECT target FROM raw.backpressure_commit").fetchall(),
            *connection.execute("SELECT id FROM raw.t").fetchall(),
        ]
    return [*found, *(one.owner for one in ports.ledger.hydrations() if one.id != ports.hydration.id)]


@pytest.mark.long
def test_a_target_that_takes_so_much_and_no_more_is_the_bound(ports: Ports):
    """One writer or two fill it; the probe says so, keeps the curve, and leaves nothing."""
    run(ports.composed.sink, BRAKE)
    plan = ports.plan
    curve = prober(ports).run(most=4)
    assert curve.knee.credits <= 2, curve.verdict()
    assert curve.bound is Bound.SINK, curve.to_json()
    assert f"8 credits can be scaled down to {curve.knee.credits}: more bring less than 5%." in curve.verdict()
    assert "More executors will not help: the sink is the bound." in curve.verdict()
    # No step is faster than the target lets anyone be.
    assert all(step.rate <= 1.1 * RANGE_ROWS / SECONDS_PER_RANGE for step in (*curve.steps, *curve.sizes))
    assert Curve.from_json(ports.ledger.probe(ports.hydration.id) or "") == curve
    assert left_behind(ports) == []
    assert ports.plan == plan
    assert ports.ledger.counts(plan.plan_id).planned == ports.ledger.counts(plan.plan_id).total
    assert ports.sink.epoch(plan.plan_id) == plan.epoch


@pytest.mark.long
def test_a_source_that_gives_so_much_and_no_more_is_the_bound(composed: Composed):
    """A part of a table too, where the one who asks knows which."""
    run(composed.source, TICKS)
    with planned(replace(composed, reading={"where": "brake(id)"})) as ports:
        curve = replace(prober(ports), sizes=()).run(most=4)
        assert curve.knee.credits <= 2, curve.verdict()
        assert curve.bound is Bound.SOURCE, curve.to_json()
        assert "More executors will not help: the source is the bound." in curve.verdict()
        assert left_behind(ports) == []


def test_a_table_of_files_is_probed_too(composed: Composed, tmp_path: Path):
    into = lakes.place("parquet", tmp_path)
    with planned(replace(composed, into=into)) as ports:
        curve = replace(prober(ports), seconds=2.0, sizes=()).run(most=1)
        assert curve.knee.rows >= 2 * RANGE_ROWS
        assert [one.id for one in ports.ledger.hydrations()] == [ports.hydration.id]
    assert [path.name for path in (tmp_path / "lake").iterdir()] == ["t"]


def test_a_probe_that_breaks_in_the_middle_leaves_nothing(ports: Ports):
    run(ports.composed.sink, BREAK)
    with pytest.raises(SinkRefused, match="the disk is on fire"):
        prober(ports).run()
    assert left_behind(ports) == []
    assert ports.ledger.probe(ports.hydration.id) is None


def test_what_a_killed_probe_left_is_removed_by_the_next(ports: Ports):
    """Killed before it had admitted anything: table, plan row and hydration are there."""
    with closing(ports.sink.scratch("0123abcd")) as scratch:
        replace(ports.planner(), sink=scratch, owner=OWNER).plan()
        assert len(left_behind(ports)) == 3
        prober(ports).clear()
    assert left_behind(ports) == []


def scratch_of(database: Endpoint, table: str, **options: bool) -> ScratchSink:
    return PostgresSink(conn_id="sink", table=table).open(database).scratch("0123abcd", **options)


def test_a_scratch_table_is_made_like_the_target(ports: Ports):
    """With its indexes, unless rows go into a shadow; of the plan's columns where there is no target."""
    database = ports.composed.sink
    run(database, "CREATE INDEX ON raw.t (code)", f"CREATE TABLE raw.{'x' * 63} (id bigint)")
    with connected(database) as connection:

        def indexes() -> int:
            (found,) = connection.execute(
                "SELECT count(*) FROM pg_indexes WHERE tablename = 't_probe_0123abcd'"
            ).fetchone()
            return int(found)

        for options, expected in (({}, 1), ({"indexes": False}, 0)):
            with closing(scratch_of(database, "raw.t", **options)) as scratch:
                scratch.prepare(ports.plan.write)
                assert indexes() == expected
                scratch.drop("0" * 32)
        with closing(scratch_of(database, "raw." + "x" * 63)) as scratch:
            assert scratch.identity.endswith("." + "x" * 48 + "_probe_0123abcd")
        with closing(scratch_of(database, "raw.missing")) as scratch:
            scratch.prepare(ports.plan.write)
            assert connection.execute("SELECT * FROM raw.missing_probe_0123abcd").fetchall() == []
            scratch.drop("0" * 32)
    assert left_behind(ports) == []


def test_only_what_a_probe_made_is_dropped(ports: Ports):
    """Not a person's table of that name, nor a target that another plan holds."""
    database = ports.composed.sink
    run(database, "CREATE TABLE raw.t_probe_0123abcd (id bigint)")
    with closing(scratch_of(database, "raw.t")) as scratch, connected(database) as connection:
        with pytest.raises(SinkRefused, match="was not made by a probe: it is not dropped"):
            scratch.drop("0" * 32)
        connection.execute("DROP TABLE raw.t_probe_0123abcd")
        scratch.prepare(ports.plan.write)
        scratch.begin(ports.plan)
        with pytest.raises(SinkRefused, match="is held by plan"):
            scratch.drop("0" * 32)
        scratch.drop(ports.plan.plan_id)
        scratch.drop(ports.plan.plan_id)
    assert left_behind(ports) == []
