"""What Airflow's own gestures do to a hydration, in a real Airflow: see docs/concepts/airflow-gestures.md."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from tests.support.sampler import running_jobs
from tests.system.installation import COLUMNS, Installation, Run, until

pytestmark = [pytest.mark.system, pytest.mark.long]

PLAN, LANE, VERIFY = (f"hydrate.{name}" for name in ("plan_snapshot", "hydrate_ranges", "verify_hydration"))
IDLE = (None, "scheduled", "queued")
"""States of a task that was not started."""

WAITING = """
SELECT count(DISTINCT a.pid) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
WHERE NOT l.granted AND l.relation = to_regclass(%s) AND starts_with(a.application_name, 'bp:')
"""


def all_given_back(installation: Installation, target: str, *, within: float = 30.0) -> None:
    """Wait until no credit is out, sooner than any lease runs out, and see that nothing of the plan runs any more."""
    until(lambda: installation.in_flight(target) == 0, within)
    found = installation.hydration(target)
    assert found is not None
    assert found.plan is not None
    plan_id = found.plan.plan_id
    until(lambda: not running_jobs(installation.connect.ui_url, plan_id), 10)
    with installation.open("warehouse") as link:
        attempts = link.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE starts_with(application_name, %s)", (f"bp:{plan_id}:",)
        ).fetchone()
    assert attempts == (0,)


@dataclass(frozen=True, kw_only=True)
class Blocked:
    """A run that cannot commit anything until its target is unlocked."""

    run: Run
    unlock: Callable[[], None]


@pytest.fixture(scope="module")
def blocked(installation: Installation) -> Iterator[Blocked]:
    """A run whose lane gets nowhere until its ``execution_timeout``; begun early, since it takes its time."""
    with installation.open("warehouse") as link:
        link.execute("CREATE SCHEMA IF NOT EXISTS raw")
        link.execute(f"CREATE TABLE raw.timed {COLUMNS}")
    with ExitStack() as stack:
        stack.enter_context(installation.locked("raw.timed"))
        yield Blocked(run=installation.run("timed"), unlock=stack.close)


class Story:
    """Runs of one DAG, one after the other, each of which is interrupted with its two credits out."""

    target = "raw.gestured"

    def __init__(self, installation: Installation) -> None:
        self.installation = installation

    def stuck(self) -> None:
        """Wait until a lane has submitted two ranges, which the locked target keeps in flight."""
        with self.installation.open("warehouse") as link:
            until(lambda: link.execute(WAITING, (self.target,)).fetchone() == (2,), 600)

    def next(self, before: Run) -> Run:
        """Trigger a run, and see it wait for the one before it, without a worker slot."""
        run = self.installation.run("gestured")
        run.reaches(PLAN, ["deferred"])
        assert f"Run {before.run_id} has this hydration" in run.log(PLAN)
        return run


@pytest.mark.timeout(1500)
@pytest.mark.usefixtures("blocked")
@pytest.mark.fault(24)
def test_what_a_person_does_to_a_run(installation: Installation):
    """Marked failed, deleted, marked success, cleared, paused: credits come back, and the next one goes on."""
    story, airflow = Story(installation), installation.airflow
    first = installation.run("gestured")
    until(lambda: installation.committed(story.target) >= 3, 600)
    with installation.locked(story.target):
        story.stuck()
        early = {record.seq: record for record in installation.ranges(story.target) if record.rows is not None}
        assert 3 <= len(early) < 40, "it is interrupted in mid-run"

        second = story.next(first)
        first.mark(LANE, "failed")
        all_given_back(installation, story.target)
        assert first.ends() == "failed"

        story.stuck()  # the second run's turn has come by itself
        third = story.next(second)
        second.delete()
        all_given_back(installation, story.target)

        story.stuck()
        third.mark(LANE, "success")
        all_given_back(installation, story.target)
        assert third.ends() == "failed"
        assert f"{40 - len(early)} of 40 ranges are not committed yet" in third.log(VERIFY)
        assert installation.committed(story.target) == len(early), "a mark commits nothing"
        assert installation.rows(story.target) == len(early) * 100

        airflow.pause("gestured")
        third.clear(LANE, VERIFY)
        trespasser = installation.run("trespasser")
        assert trespasser.ends() == "failed"
        assert "is owned by gestured: trespasser may not run it" in trespasser.log(PLAN)
        assert third.states()[LANE] in IDLE, "a paused DAG starts no task"
        airflow.pause("gestured", paused=False)
        story.stuck()
        airflow.pause("gestured")
    third.reaches(LANE, ["success"])  # a running lane is left alone
    assert third.states()[VERIFY] in IDLE
    airflow.pause("gestured", paused=False)
    assert third.ends() == "success", third.states()

    assert installation.fingerprint("warehouse", story.target) == installation.fingerprint("shop", "gestured")
    records = installation.ranges(story.target)
    assert sorted(record.attempt for record in records) == [1] * 38 + [4, 4], "only what was in flight is read again"
    assert {record.seq: record for record in records if record.seq in early} == early

    again, nothing = installation.run("gestured", backpressure="restart"), installation.run("gestured")
    assert again.ends() == "failed"
    assert "already holds rows" in again.log(PLAN)
    assert nothing.ends() == "success"
    assert set(nothing.states().values()) == {"skipped"}


@pytest.mark.fault(24)
def test_airflows_backfill_takes_turns(installation: Installation):
    """One of its runs hydrates, the others wait for it, find nothing to do and are skipped."""
    airflow = installation.airflow
    airflow.wait_for_dag("backfilled")
    airflow.command(
        *("backfill", "create", "--dag-id", "backfilled", "--from-date", "2026-01-01", "--to-date", "2026-01-03")
    )
    found = airflow.request("GET", "/api/v2/dags/backfilled/dagRuns")["dag_runs"]
    runs = [Run(airflow=airflow, dag_id="backfilled", run_id=one["dag_run_id"]) for one in found]
    assert len(runs) == 3
    assert [run.ends() for run in runs] == ["success"] * 3
    plans = sorted(str(run.states()[PLAN]) for run in runs)
    assert plans == ["skipped", "skipped", "success"]
    assert installation.fingerprint("warehouse", "raw.backfilled") == installation.fingerprint("shop", "small")
    assert [record.attempt for record in installation.ranges("raw.backfilled")] == [1, 1]


@pytest.mark.fault(24)
def test_a_timed_out_lane_gives_its_credits_back(installation: Installation, blocked: Blocked):
    """A later run goes on with the same plan."""
    assert blocked.run.ends() == "failed"
    assert "AirflowTaskTimeout" in blocked.run.log(LANE)
    all_given_back(installation, "raw.timed")
    assert installation.rows("raw.timed") == 0
    assert sorted(record.attempt for record in installation.ranges("raw.timed")) == [0] * 8 + [1, 1]
    blocked.unlock()
    later = installation.run("timed")
    assert later.ends() == "success", later.states()
    assert installation.fingerprint("warehouse", "raw.timed") == installation.fingerprint("shop", "timed")
    assert sorted(record.attempt for record in installation.ranges("raw.timed")) == [1] * 8 + [2, 2]
