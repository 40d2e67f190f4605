"""What a person sees of a hydration in a real Airflow: gates, clears, refusals, mapping, many ranges."""

import getpass
import json
import urllib.request
from urllib.parse import quote

import pytest

from tests.system.installation import SMALL_ROWS, Installation, until

pytestmark = pytest.mark.system


@pytest.mark.statement("P11")
@pytest.mark.long
def test_a_closed_gate_gives_the_worker_slot_back(installation: Installation):
    """P11: paused with nothing in flight the lane is deferred; resumed, it comes back by itself."""
    ledger = installation.ledger
    paused = installation.paused("gated", "small", "raw.gated")
    run = installation.run("gated")
    run.reaches("hydrate.hydrate_ranges", ["deferred"])
    assert ledger.gate(paused.id).in_flight == 0
    # The lane is woken for it, tells a notifier of Airflow's, and gives its slot back again.
    until(lambda: installation.events.exists(), 120)
    run.reaches("hydrate.hydrate_ranges", ["deferred"])
    assert "paused by ada: release night" in run.log("hydrate.hydrate_ranges")
    shown = json.loads(installation.cli("status", "raw.gated", "--output", "json").stdout)[0]
    assert shown["percent"] == 0.0
    # Every reason is shown; on a busy machine the executors' memory may not have been seen in time either.
    assert shown["gate"].startswith("paused by ada: release night")

    intruder = installation.run("intruder")
    assert intruder.ends() == "failed"
    assert "is owned by gated: intruder may not run it" in intruder.log("hydrate.plan_snapshot")

    done = installation.cli("resume", "raw.gated", "--why", "all well")
    assert (done.returncode, done.stderr) == (0, "")
    assert run.ends() == "success", run.states()
    assert installation.rows("raw.gated") == SMALL_ROWS
    (told,) = installation.events.read_text().splitlines()
    assert told.startswith("gate_closed hydrate.hydrate_ranges: paused by ada: release night")
    with installation.open("airflow") as link:
        acts = link.execute(
            "SELECT who, action, why FROM backpressure_control WHERE hydration_id = %s ORDER BY id", (paused.id,)
        ).fetchall()
    assert acts == [("ada", "pause", "release night"), (getpass.getuser(), "resume", "all well")]


@pytest.mark.statement("T7")
@pytest.mark.long
def test_the_source_s_health_holds_a_lane_back_without_a_worker_slot(installation: Installation):
    """T7: the trigger looks at source, sink and a third connection itself, and lets the lane come back."""
    with installation.open("shop") as link:
        link.execute("CREATE TABLE pressure (v int)")
        link.execute("INSERT INTO pressure VALUES (99)")
        run = installation.run("watched")
        run.reaches("hydrate.hydrate_ranges", ["deferred"])
        assert "pressure on source 99 >= 50" in run.log("hydrate.hydrate_ranges")
        assert installation.committed("raw.watched") == 0
        link.execute("UPDATE pressure SET v = 1")
        assert run.ends() == "success", run.states()
        assert installation.rows("raw.watched") == SMALL_ROWS
        link.execute("DROP TABLE pressure")


@pytest.mark.fault(24)
@pytest.mark.long
def test_a_cleared_lane_goes_on_from_the_ledger(installation: Installation):
    """Cleared in mid-run: its jobs end, its credits come back, and what was committed is not read again."""
    run = installation.run("slow")
    run.reaches("hydrate.hydrate_ranges", ["running"])
    before = until(lambda: (count := installation.committed("raw.slow")) >= 5 and count, 600)
    run.clear("hydrate.hydrate_ranges")
    assert run.ends() == "success", run.states()
    assert installation.fingerprint("warehouse", "raw.slow") == installation.fingerprint("shop", "public.slow")
    attempts = [record.attempt for record in installation.ranges("raw.slow")]
    assert len(attempts) == SMALL_ROWS // 800
    assert before < len(attempts), "it was cleared in mid-run"
    assert sum(attempt - 1 for attempt in attempts) <= 2, "only what was in flight was submitted again"


@pytest.mark.long
def test_a_run_that_only_plans_tells_what_a_plan_would_be(installation: Installation):
    """As the command tells it, and nothing else: neither plan nor target are there afterwards."""
    run = installation.run("foretold", backpressure="plan")
    assert run.ends() == "success", run.states()
    assert set(run.states().values()) == {"skipped"}
    found = installation.hydration("raw.foretold")
    assert found is not None
    assert (found.plan, found.holder) == (None, None)
    facts = json.loads(installation.ledger.preview(found.id) or "")
    shown = json.loads(installation.cli("plan", "foretold", "--output", "json").stdout)[0]
    assert {name: str(value) for name, value in facts.items() if name != "at"} == {
        name: str(value) for name, value in shown.items()
    }
    with installation.open("warehouse") as link:
        assert link.execute("SELECT to_regclass('raw.foretold')").fetchone() == (None,)


def test_a_range_leads_to_its_task_and_to_spark(installation: Installation):
    """The try that submitted it, as Airflow has it; and Spark's page of the session, which names the range's job."""
    run = installation.first("postgres_hydrate")
    assert run.ends() == "success", run.states()
    found = installation.hydration("raw.lineitem")
    assert found is not None
    one = installation.airflow.request("GET", f"/backpressure/api/hydrations/{found.id}/ranges/0")
    task = one["task"]
    assert (task["dag_id"], task["run_id"], task["map_index"], task["try_number"]) == (run.dag_id, run.run_id, -1, 1)
    assert task["task_id"] in run.states()
    assert task["href"].endswith(f"/tasks/{task['task_id']}?try_number=1")
    with urllib.request.urlopen(one["job"]["href"], timeout=30) as page:
        assert one["job"]["tag"] in page.read().decode()


def test_templates_transform_and_two_lanes(installation: Installation):
    """The condition is rendered from the run, the rows go through SQL, and two mapped lanes share the credits."""
    run = installation.first("templated")
    assert run.ends() == "success", run.states()
    assert {task for task in run.states() if "hydrate_ranges" in task} == {
        "hydrate.hydrate_ranges[0]",
        "hydrate.hydrate_ranges[1]",
    }
    with installation.open("warehouse") as link, installation.open("shop") as source:
        found = link.execute("SELECT count(*), sum(doubled), max(l_id) FROM raw.templated").fetchone()
        assert (
            found
            == source.execute("SELECT count(*), sum(amount * 2), max(l_id) FROM small WHERE l_id <= 15000").fetchone()
        )


GROUP = ("plan_snapshot", "hydrate_ranges", "verify_hydration")


def test_several_tables(installation: Installation):
    """By a pattern and by name: each is a hydration of its own; the one that does not exist fails by itself."""
    run = installation.first("mapped")
    assert run.ends() == "failed"
    states = run.states()
    assert states == {
        **dict.fromkeys((f"pattern.{task}" for task in GROUP), "success"),
        **dict.fromkeys((f"named.{task}" for task in GROUP), "failed"),
    }, states
    for task in GROUP:
        assert "1 of 2 tables have failed:" in run.log(f"named.{task}")
        assert "- public.gone: There is no table public.gone in" in run.log(f"named.{task}")
    for table, target in (("mapped_a", "mapped_a"), ("mapped_b", "mapped_b"), ("mapped_a", "public_mapped_a")):
        assert installation.fingerprint("warehouse", f"raw.{target}") == installation.fingerprint("shop", table)
    events = installation.airflow.request("GET", "/api/v2/assets/events?source_dag_id=mapped")["asset_events"]
    asset = "backpressure://default/shop_db/public.mapped_{0}->warehouse/raw.mapped_{0}"
    pattern = {one["uri"]: one for one in events if one["source_task_id"] == "pattern.verify_hydration"}
    assert set(pattern) == {asset.format("a"), asset.format("b")}
    assert [one["extra"]["rows"] for _, one in sorted(pattern.items())] == [1_000, 2_000]


@pytest.mark.long
def test_a_dag_is_scheduled_on_hydrations_whose_names_only_a_run_knows(installation: Installation):
    """Airflow runs it for the events by the alias, and it sees whose they are."""
    installation.first("mapped").ends()
    asset = "backpressure://default/shop_db/public.mapped_{0}->warehouse/raw.mapped_{0}"
    until(lambda: told(installation) == [asset.format("a"), asset.format("b")], 120)


def told(installation: Installation) -> object:
    """Return what the latest run that was scheduled on the alias has seen."""
    done = [run for run in installation.dag_runs("told") if run["state"] == "success"]
    if not done:
        return None
    latest = max(done, key=lambda run: str(run["end_date"]))["dag_run_id"]
    path = f"/api/v2/dags/told/dagRuns/{quote(latest, safe='')}/taskInstances/told/xcomEntries/return_value"
    return installation.airflow.request("GET", path)["value"]


@pytest.mark.long
def test_operators_are_mapped(installation: Installation):
    """``partial(...).expand_kwargs(...)``: declarations as mapped values, with templates in them."""
    run = installation.first("mapped_operators")
    assert run.ends() == "success", run.states()
    assert set(run.states()) == {f"{task}[0]" for task in ("plan_snapshot", "hydrate_ranges", "verify_hydration")}
    assert installation.rows("raw.part_of_mapped_a") == 500


@pytest.mark.statement("X5")
@pytest.mark.parametrize(
    ("dag_id", "sentence"),
    [
        ("no_tables", "run `airflow db migrate`"),
        ("no_spark", "cannot be reached"),
    ],
)
def test_refused_before_any_row_moves(installation: Installation, dag_id: str, sentence: str):
    """X5: one clear sentence in the task's log."""
    run = installation.first(dag_id)
    assert run.ends() == "failed"
    assert sentence in run.log("hydrate.plan_snapshot")
    with installation.open("warehouse") as link:
        assert link.execute("SELECT to_regclass(%s)", (f"raw.{dag_id}",)).fetchone() == (None,)


@pytest.mark.statement("X5")
def test_a_bad_budget_is_refused_at_parse(installation: Installation):
    """X5: Airflow shows the sentence as the DAG's import error."""

    def sentence() -> str | None:
        errors = installation.airflow.request("GET", "/api/v2/importErrors")["import_errors"]
        return next((one["stack_trace"] for one in errors if "bad_budget" in one["filename"]), None)

    assert "Budget.credits must be a whole number of at least 1, not 0." in until(sentence, 60)


@pytest.mark.long
def test_ten_thousand_ranges_need_one_task(installation: Installation):
    """The lane's loop over the ledger, with nothing behind it; see benchmarks/orchestration.py for the time."""
    run = installation.first("ten_thousand")
    assert run.ends() == "success", run.states()
    assert len(run.states()) == 4
    assert "10,000 of 10,000 rows" in run.log("hydrate.hydrate_ranges")
