"""Where the pressure of a slow side goes: ranges of a real PostgreSQL, carried out by processes of this host.

Nothing here measures the machine. Every time is compared with another one of the same run.
"""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import pytest

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.execution.lane_runner import Hydrator
from airflow_provider_backpressure.core.poll_policy import PollPolicy
from airflow_provider_backpressure.core.progress.bottleneck import Level, find_bottleneck, find_level
from airflow_provider_backpressure.core.snapshot.ranges import RangeState
from airflow_provider_backpressure.core.stage_metrics import Stage, State
from airflow_provider_backpressure.ledger.repository import SqlLedger
from tests.support.composed import Composed, Ports, difference
from tests.support.local_runner import LocalRunner, processes
from tests.support.marks import mark_long
from tests.support.postgres import connected, run
from tests.support.waiting import beside, until

pytestmark = pytest.mark.integration

SECONDS = 240.0
"""In which what is waited for comes."""
POLL_SECONDS = 60.0
"""A lane that waits for its clock instead of its jobs waits so long."""
MEBIBYTE = 2**20


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    """A process for each credit that a test has."""
    with processes(3) as found:
        yield found


@dataclass(kw_only=True)
class Lane:
    """A planned hydration, and the lane that drains it in a thread."""

    ports: Ports
    runner: LocalRunner
    plan_id: str
    hydration_id: str
    threads: list[threading.Thread] = field(default_factory=list)

    def hydrator(self) -> Hydrator:
        """Return a lane that polls too rarely for any test, and that only the gate keeps from taking more."""
        made = self.ports.hydrator()
        made.share += 1
        made.poll = PollPolicy(initial=POLL_SECONDS, maximum=POLL_SECONDS)
        return made

    def start(self) -> None:
        """Let it drain."""
        self.threads.append(threading.Thread(target=self.hydrator().run))
        self.threads[-1].start()

    def wait(self) -> None:
        """Wait until it has ended."""
        for each in self.threads:
            each.join(SECONDS)
            assert not each.is_alive()

    def join(self) -> None:
        """Wait until everything is committed."""
        self.wait()
        assert self.ports.ledger.counts(self.plan_id).open == 0

    def committed(self) -> int:
        """Return how many ranges the ledger knows to be committed."""
        return self.ports.ledger.counts(self.plan_id).committed

    def submissions(self) -> list[float]:
        """Return when each range was submitted, in seconds since the epoch."""
        return [at for at, _ in self.runner.submitted]

    def commits(self) -> list[float]:
        """Return when the sink committed each range, the earliest first."""
        found = run(self.ports.composed.sink, "SELECT committed_at FROM raw.backpressure_commit")
        return sorted(datetime.fromisoformat(str(at)).timestamp() for (at,) in found)


@contextmanager
def planned(
    pool: ProcessPoolExecutor, database: Endpoint, ledger_url: str, budget: Budget, **changes: Any
) -> Iterator[Lane]:
    """Plan ``public.t`` into ``raw.t`` beside it."""
    composed = Composed(source=database, sink=database, ledger_url=ledger_url, remote="", budget=budget)
    composed = replace(composed, **changes)
    with ExitStack() as stack:
        logins = {name: replace(getattr(composed, name), conn_id=name) for name in ("source", "sink")}
        runner = LocalRunner(logins=logins, pool=pool)
        ports = stack.enter_context(composed.open(runner))
        made = ports.planner().plan()
        lane = Lane(ports=ports, runner=runner, plan_id=made.plan.plan_id, hydration_id=made.hydration.id)
        try:
            yield lane
        finally:
            lane.wait()


def fill(database: Endpoint, rows: int, body: str = "md5(i::text)") -> None:
    """Make ``public.t`` of so many rows."""
    run(
        database,
        "CREATE TABLE t (id bigint PRIMARY KEY, body text NOT NULL)",
        # What a row weighs is what it sends.
        "ALTER TABLE t ALTER body SET STORAGE EXTERNAL",
        f"INSERT INTO t SELECT i, {body} FROM generate_series(1, {rows}) i",
        "ANALYZE t",
    )


def trigger(database: Endpoint, body: str) -> None:
    """Run PL/pgSQL for each row that comes into the target."""
    run(
        database,
        f"CREATE FUNCTION held() RETURNS trigger LANGUAGE plpgsql AS $$ {body} $$",
        "CREATE TRIGGER held BEFORE INSERT ON raw.t FOR EACH ROW EXECUTE FUNCTION held()",
    )


@pytest.mark.statement("T1")
def test_the_bytes_of_the_ranges_in_flight_stay_within_the_budget(
    pool: ProcessPoolExecutor, database: Endpoint, ledger_url: str
) -> None:
    """T1: rows of 40 bytes and of 200,000: what the ranges in flight send together is at most W*B, at each sample.

    The bytes are those that the sink has counted in the end, not those of the plan. Each of the heavy ranges fills more
    than half of its share, so one range above W, or one that is cut by its rows alone, is too much.
    """
    fill(database, 6_000, "repeat('x', CASE WHEN i % 400 = 0 OR i > 5970 THEN 200000 ELSE 40 END)")
    budget = Budget(credits=3, range_rows=2_000, range_bytes=MEBIBYTE // 2)
    with planned(pool, database, ledger_url, budget) as lane:
        trigger(database, "BEGIN IF length(NEW.body) > 100 THEN PERFORM pg_sleep(0.03); END IF; RETURN NEW; END")
        seen: set[tuple[int, ...]] = set()
        connections: list[int] = []

        def look(over: threading.Event) -> None:
            ledger = SqlLedger(ledger_url)
            with connected(database) as connection:
                while not over.wait(0.01):
                    flying = ledger.ranges(lane.plan_id, states=[RangeState.ADMITTED])
                    seen.add(tuple(each.seq for each in flying))
                    row = connection.execute(
                        "SELECT count(*) FROM pg_stat_activity WHERE starts_with(application_name, %s)"
                        " AND starts_with(query, 'COPY') AND query LIKE '%%FROM STDIN%%' AND state = 'active'",
                        (f"bp:{lane.plan_id}:",),
                    ).fetchone()
                    connections.append(row[0] if row else 0)
            ledger.close()

        with beside(look):
            lane.start()
            lane.join()
        records = lane.ports.ledger.ranges(lane.plan_id)
    sizes = {each.seq: each.bytes or 0 for each in records}
    assert max(sizes.values()) > 5 * min(sizes.values()), "the ranges do not differ in size"
    assert max(map(len, seen)) == budget.credits
    assert max(connections) <= budget.credits
    assert max(sum(sizes[seq] for seq in flying) for flying in seen) <= budget.credits * budget.range_bytes
    assert max(sum(sizes[seq] for seq in flying) for flying in seen) > 0.5 * budget.credits * budget.range_bytes
    assert max(each.planned_bytes for each in records) <= budget.range_bytes
    assert difference(database, "public.t", database, "raw.t") == (0, 0)


@pytest.mark.statement("T2", "T1")
def test_each_submission_follows_a_commit_and_no_clock(
    pool: ProcessPoolExecutor, database: Endpoint, ledger_url: str
) -> None:
    """T2: with the target locked exactly W ranges are out; later the one after the n-th commit follows it at once.

    By the sink's own time of each commit no submission is early (T1), and none waits for a tenth of the time after
    which the lane would look again by itself.
    """
    fill(database, 800)
    budget = Budget(credits=2, range_rows=100)
    with planned(pool, database, ledger_url, budget) as lane, connected(database) as holder:
        with holder.transaction():
            holder.execute("LOCK TABLE raw.t IN ACCESS EXCLUSIVE MODE")
            lane.start()
            until(lambda: waiting_for_locks(database) == 2, SECONDS)
            assert len(lane.runner.submitted) == lane.ports.ledger.gate(lane.hydration_id).in_flight == 2
        lane.join()
        submissions, commits = lane.submissions(), lane.commits()
    assert len(submissions) == len(commits) == 8
    latencies = [after - commit for commit, after in zip(commits, submissions[2:], strict=False)]
    assert min(latencies) >= 0, latencies
    assert max(latencies) < POLL_SECONDS / 10, latencies


def waiting_for_locks(database: Endpoint) -> int:
    """Return how many attempts wait for a lock in the sink."""
    ((found,),) = run(
        database,
        "SELECT count(DISTINCT a.pid) FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
        " WHERE NOT l.granted AND a.application_name LIKE 'bp:%' AND a.datname = current_database()",
    )
    return int(found)


READ = """
CREATE FUNCTION lingered(id bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    -- The reader of a range waits; the planner, who counts, does not.
    IF id % {every} = 0 AND starts_with(current_setting('application_name'), 'bp-read:') THEN
        PERFORM pg_sleep({seconds});
    END IF;
    RETURN true;
END $$
"""


@pytest.mark.statement("T4")
@pytest.mark.parametrize("times", mark_long([1, 10, 100], quick=[10]))
def test_the_sink_sets_the_time_however_fast_the_source_is(
    pool: ProcessPoolExecutor, database: Endpoint, ledger_url: str, times: int
) -> None:
    """T4: a source 1, 10 and 100 times as fast: at most 5 % of the time the sink has nothing to do.

    The target takes one row after the other, whoever brings it, and writes down when it had something to do: its time
    is the sink-bound time of this very run.
    """
    every, seconds = 25, 0.2
    # Of so many bytes that the server sends them as it reads them.
    fill(database, 750, "repeat('x', 4000)")
    run(database, READ.format(every=5, seconds=seconds / 5 / times), "CREATE TABLE worked (span tstzrange)")
    budget = Budget(credits=3, range_rows=125, law="fixed")
    with planned(pool, database, ledger_url, budget, reading={"where": "lingered(id)"}) as lane:
        trigger(
            database,
            f"DECLARE began timestamptz := clock_timestamp();"
            f" BEGIN IF NEW.id % {every} = 0 THEN PERFORM pg_advisory_lock(7), pg_sleep({seconds});"
            " PERFORM pg_advisory_unlock(7);"
            " INSERT INTO public.worked VALUES (tstzrange(began, clock_timestamp())); END IF; RETURN NEW; END",
        )
        lane.start()
        lane.join()
        last = max(each.committed_at for each in lane.ports.ledger.ranges(lane.plan_id) if each.committed_at)
    ((first, busy),) = run(
        database,
        "SELECT min(lower(span)), (SELECT extract(epoch FROM sum(upper(part) - lower(part)))"
        " FROM unnest(range_agg(span)) part) FROM worked",
    )
    took = (last - datetime.fromisoformat(str(first))).total_seconds()
    assert took <= 1.05 * float(busy), (took, busy)


@pytest.mark.statement("T5")
def test_a_slow_source_leaves_the_gate_open_and_the_sink_idle(
    pool: ProcessPoolExecutor, database: Endpoint, ledger_url: str
) -> None:
    """T5: the source takes twice as long as the sink: nothing waits at the gate, and the sink is idle for the rest."""
    fill(database, 2_000)
    run(database, READ.format(every=100, seconds=0.3))
    budget = Budget(credits=3, range_rows=1_000)
    with planned(pool, database, ledger_url, budget, reading={"where": "lingered(id)"}) as lane:
        trigger(database, "BEGIN IF NEW.id % 100 = 0 THEN PERFORM pg_sleep(0.15); END IF; RETURN NEW; END")
        lane.start()
        lane.join()
        flow = lane.ports.ledger.flow(lane.hydration_id, seconds=600)
    admit, read, sink = flow[Stage.ADMIT], flow[Stage.READ], flow[Stage.SINK]
    assert admit.backpressured == 0, flow
    assert admit.share(State.IDLE) > 0.5, flow
    assert read.share(State.BUSY) > 0.5, flow
    assert find_level(read) is not Level.HIGH, flow
    assert sink.share(State.IDLE) > 0.4, flow
    assert find_bottleneck(flow) is not Stage.SINK, flow


@pytest.mark.statement("F9", "F2")
def test_the_picture_clears_from_the_sink_upwards(
    pool: ProcessPoolExecutor, database: Endpoint, ledger_url: str
) -> None:
    """F9: without the brake first the sink goes on, then the readers, then the gate, all within two ranges.

    PostgreSQL itself says what the attempts wait for, and what the readers' backends wait for. The brake is held for
    five times as long as a free range takes.
    """
    # A range is more than all buffers between the two servers hold.
    fill(database, 1_600, "repeat(md5(i::text), 3000)")
    budget = Budget(credits=2, range_rows=200, law="fixed")
    with (
        planned(pool, database, ledger_url, budget) as lane,
        connected(database) as brake,
        connected(database) as watching,
    ):
        trigger(database, "BEGIN PERFORM pg_advisory_xact_lock_shared(9); RETURN NEW; END")

        def waits(prefix: str, kind: str, event: str) -> bool:
            row = watching.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE starts_with(application_name, %s)"
                " AND datname = current_database() AND wait_event_type = %s AND wait_event = %s",
                (prefix, kind, event),
            ).fetchone()
            return row is not None and row[0] == budget.credits

        def picture(submitted: int) -> dict[str, bool]:
            """Return which of them is held up; the gate is where nothing more was submitted."""
            gate = len(lane.runner.submitted) == submitted
            read = waits("bp-read:", "Client", "ClientWrite")
            return {"sink": waits("bp:", "Lock", "advisory"), "read": read, "gate": gate}

        lane.start()
        until(lambda: len(lane.runner.results) >= 2, SECONDS)
        brake.execute("SELECT pg_advisory_lock(9)")
        free = max(each.flow[Stage.SINK].seconds for each in lane.runner.results)
        until(lambda: waits("bp:", "Lock", "advisory") and waits("bp-read:", "Client", "ClientWrite"), SECONDS)
        submitted, began = len(lane.runner.submitted), time.monotonic()
        until(lambda: time.monotonic() - began > 5 * free, SECONDS)
        assert all(picture(submitted).values())
        committed = lane.committed()
        brake.execute("SELECT pg_advisory_unlock(9)")
        seen = [picture(submitted)]
        until(lambda: (now := picture(submitted), seen.append(now), not now["gate"])[-1], SECONDS, pause=0.001)
        assert lane.committed() - committed <= 2
        lane.join()
        flows = {each.seq: each.flow for each in lane.runner.results}
        held = [flows[spec.seq] for _, spec in lane.runner.submitted[submitted - budget.credits : submitted]]
        after = [flows[spec.seq] for _, spec in lane.runner.submitted[submitted:]]
    cleared = [next((at for at, one in enumerate(seen) if not one[stage]), len(seen)) for stage in seen[0]]
    assert cleared == sorted(cleared), seen
    assert {find_level(each[Stage.READ]) for each in held} == {Level.HIGH}
    assert len(after) >= 2
    for stage, state in ((Stage.SINK, "busy"), (Stage.READ, "backpressured")):
        assert (
            max(getattr(each[stage], state) for each in after) < min(getattr(each[stage], state) for each in held) / 2
        )
