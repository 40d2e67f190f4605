"""The page and its API in a real API server of Airflow: who gets in, what the figures are, what steering leaves."""

import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest
import sqlalchemy as sa
from fastapi.routing import APIRoute

from airflow_provider_backpressure.core.gate.cluster_queue import Shared
from airflow_provider_backpressure.core.push.hub import Switch, turn
from airflow_provider_backpressure.ledger.models import hydration
from airflow_provider_backpressure.plugins.app import make_app
from airflow_provider_backpressure.testing import MemoryLedger
from tests.conformance.ledger.support import cut, make_plan, take
from tests.support.page import SESSION, PageServer, many, registered

pytestmark = pytest.mark.system

PREFIX = "/backpressure"
VIEWS = ("course", "map", "ranges", "ranges?state=failed", "ranges?after=99000", "ranges/50000", "history")
PATIENCE = 3
"""How many times slower a machine may be that does much else."""
STARTED = sa.text("UPDATE task_instance SET try_number = 3, start_date = :at WHERE run_id = :run")
BECAUSE = {"why": "a test"}


def routes(hydration_id: str) -> Iterator[tuple[str, str]]:
    """Return method and path of every route there is."""
    for route in make_app(MemoryLedger).routes:  # type: ignore[arg-type]
        assert isinstance(route, APIRoute), "what is mounted would ask nobody"
        for method in sorted(route.methods):
            # The first range has failed and is tried again; another one is left out.
            seq = 2 if route.path.endswith("/skip") else 0
            yield method, PREFIX + route.path.format(hydration_id=hydration_id, name="page.js", seq=seq)


@pytest.fixture
def steered(page: PageServer) -> Iterator[str]:
    """A hydration on a cluster of its own, whose first range has failed."""
    made = registered(page.ledger, "raw.steered", owner="orders", cluster="spark_steered")
    plan = make_plan()
    page.ledger.save_plan(made, plan, cut(4))
    taken = take(page.ledger, made)
    page.ledger.release(plan.plan_id, taken.seq, attempt=taken.attempt, error="no room", fail=True)
    yield made
    page.ledger.forget(made)


def acts(hydration_id: str) -> dict[str, dict[str, object]]:
    """Return the body of each act, by its path, in an order in which all of them can be done."""
    base = f"{PREFIX}/api/hydrations/{hydration_id}"
    return {
        f"{base}/pause": BECAUSE,
        f"{base}/resume": BECAUSE,
        f"{base}/set": {**BECAUSE, "priority": 1},
        f"{base}/ranges/0/retry": BECAUSE,
        f"{base}/ranges/2/skip": BECAUSE,
        f"{PREFIX}/api/queue": {**BECAUSE, "cluster": "spark_steered", "at_once": 2},
    }


@pytest.mark.statement("X7")
def test_who_gets_in(page: PageServer, steered: str):
    """X7: 401 for nobody on every route; a viewer reads everything and steers nothing; an administrator may both."""
    ways, bodies = list(routes(steered)), acts(steered)
    assert {path for method, path in ways if method == "POST"} == set(bodies)
    before = page.ledger.controls()
    for method, path in ways:
        body = bodies[path] if method == "POST" else None
        assert page.ask(method, path, body)[0] == 401, (method, path)
        assert page.ask(method, path, body, user="viewer")[0] == (403 if method == "POST" else 200), (method, path)
        if method == "GET":
            assert page.ask(method, path, user="admin")[0] == 200, path
    assert page.ledger.controls() == before, "a viewer left no trace"
    for path, body in bodies.items():
        code, told = page.ask("POST", path, body, user="admin")
        assert code == 200, (path, told)
    done = [act.action for act in page.ledger.controls(steered)]
    assert done == ["skip-range", "retry-range", "set", "resume", "pause"]
    assert page.ledger.get_shared(Shared.HYDRATIONS, "spark_steered") == 2


def test_a_range_leads_to_its_task_and_its_job(page: PageServer, steered: str):
    """As Airflow's own page has it, and as the cluster's connection says."""
    one = page.ask("GET", f"{PREFIX}/api/hydrations/{page.hydration_id}/ranges/3", user="viewer")[1]
    run = "manual__2026-01-01T06%3A00%3A00%2B00%3A00"
    assert one["task"]["href"] == f"/dags/orders/runs/{run}/tasks/hydrate_orders.hydrate_ranges/mapped/1"
    assert one["task"]["try_number"] is None, "Airflow knows of no such run"
    made = page.ask("POST", "/api/v2/dags/orders/dagRuns", {"logical_date": None}, user="admin")[1]["dag_run_id"]
    taken = take(page.ledger, steered, lane=f"orders/{made}/nothing/-1")
    started = taken.admitted_at - timedelta(minutes=1)
    engine = sa.create_engine(page.ledger._database.engine.url)
    with engine.begin() as connection:
        done = connection.execute(STARTED, {"run": made, "at": started})
        assert done.rowcount == 1
    engine.dispose()
    path = f"{PREFIX}/api/hydrations/{steered}/ranges/{taken.seq}"
    assert page.ask("GET", path, user="viewer")[1]["task"]["try_number"] == 3
    page.ledger.release(taken.plan_id, taken.seq, attempt=taken.attempt, error="")
    # A range that has tasks of its own leads to the run, and to the task as soon as that has begun.
    taken = take(page.ledger, steered, lane=f"orders/{made}/range-{taken.seq}")
    assert page.ask("GET", path, user="viewer")[1]["task"]["task_id"] is None
    entries = f"/api/v2/dags/orders/dagRuns/{made}/taskInstances/nothing/xcomEntries"
    link = {"key": "_link_RangeLink", "value": f"/backpressure/#/hydration/{steered}/range/{taken.seq}"}
    assert page.ask("POST", entries, link, user="admin")[0] == 201
    task = page.ask("GET", path, user="viewer")[1]["task"]
    assert (task["task_id"], task["try_number"]) == ("nothing", 3)
    assert task["href"].endswith(f"/runs/{quote(made, safe='')}/tasks/nothing?try_number=3")
    page.ledger.release(taken.plan_id, taken.seq, attempt=taken.attempt, error="")
    assert one["job"]["href"] == f"http://spark.example:4040/connect/session/?id={SESSION}"


@pytest.mark.statement("P4")
def test_a_page_hears_of_a_commit_within_a_second(page: PageServer):
    """P4: over HTTP from a real API server, subscribed while somebody waits; turned off, it says so at once."""
    made = registered(page.ledger, "raw.heard", owner="orders", credits=10)
    page.ledger.save_plan(made, make_plan(), cut(30))
    path = f"{PREFIX}/api/changes?seconds=10&seen={made}:"

    def ask(number: int) -> dict[str, Any]:
        code, told = page.ask("GET", f"{path}{number}", user="viewer")
        assert code == 200
        return told  # type: ignore[no-any-return]

    first = ask(-1)
    assert first["pushed"] is True
    number, took = first["moved"][made], []
    with ThreadPoolExecutor(1) as pool:
        for _ in range(5):
            waiting = pool.submit(ask, number)
            with pytest.raises(TimeoutError):
                waiting.result(timeout=0.3)
            begun = time.monotonic()
            taken = take(page.ledger, made)
            told = waiting.result(timeout=10)
            took.append(time.monotonic() - begun)
            assert (told["pushed"], told["moved"][made]) == (True, number + 1)
            page.ledger.release(taken.plan_id, taken.seq, attempt=taken.attempt, error="")
            number += 2
    print([round(1000 * one) for one in took])
    assert statistics.median(took) < 0.5 * PATIENCE
    turn(page.ledger, Switch.PUBLISH, on=False, who="test")
    try:
        deadline = time.monotonic() + 30
        while ask(number)["pushed"]:
            assert time.monotonic() < deadline
    finally:
        turn(page.ledger, Switch.PUBLISH, on=True, who="test")
        page.ledger.forget(made)


def test_a_forged_token_and_another_site_are_refused(page: PageServer):
    path = f"{PREFIX}/api/hydrations/{page.hydration_id}/pause"
    forged = {"Authorization": "Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhZG1pbiJ9.AAAA"}
    assert page.ask("POST", path, BECAUSE, headers=forged)[0] in (401, 403)
    before = len(page.ledger.controls(page.hydration_id))
    for site, code in (("cross-site", 403), ("same-site", 403), ("same-origin", 200)):
        answer = page.ask("POST", path, BECAUSE, user="admin", cookie=True, headers={"Sec-Fetch-Site": site})
        assert answer[0] == code, site
    form = page.ask("POST", path, BECAUSE, user="admin", cookie=True, headers={"Content-Type": "text/plain"})
    assert form[0] == 415
    assert len(page.ledger.controls(page.hydration_id)) == before + 1
    page.ledger.resume(page.hydration_id, who="test")


def test_steering_binds_within_a_second_and_is_written_down(page: PageServer):
    """By the user's own name; a lane that asks the gate sees it at its next look."""
    hydration_id = registered(page.ledger, "raw.steered", owner="orders")
    base = f"{PREFIX}/api/hydrations/{hydration_id}"
    begun = time.monotonic()
    code, told = page.ask("POST", f"{base}/pause", {"why": "release night"}, user="admin")
    assert (code, told["paused_by"]) == (200, "admin")
    assert page.ledger.gate(hydration_id).paused_by == "admin"
    assert time.monotonic() - begun < 5, "on a machine that does much else; the request itself takes milliseconds"
    assert page.ask("POST", f"{base}/resume", {"why": "done"}, user="admin")[0] == 200
    assert page.ledger.gate(hydration_id).paused_by is None
    assert page.ask("POST", f"{base}/set", {"why": "x", "credits": 2}, user="admin")[0] == 200
    assert page.ledger.hydration(hydration_id).credits_max == 2
    acts = [(act.who, act.action, act.why) for act in page.ledger.controls(hydration_id)]
    assert acts == [("admin", "set", "x"), ("admin", "resume", "done"), ("admin", "pause", "release night")]
    page.ledger.forget(hydration_id)


@pytest.mark.statement("M12")
def test_figures_are_the_ledger_s(page: PageServer):
    """M12: how much is done, and whether it keeps up, as the ledger has them."""
    one = page.ask("GET", f"{PREFIX}/api/hydrations/{page.hydration_id}", user="viewer")[1]
    counts = page.ledger.counts(page.ledger.hydration(page.hydration_id).plan.plan_id)  # type: ignore[union-attr]
    assert (one["percent"], one["rows"], one["total"]) == (61.7, 2_470_000, 4_000_000)
    assert (one["ranges"]["committed"], one["ranges"]["failed"], one["in_flight"]) == (
        counts.committed,
        counts.failed,
        counts.admitted,
    )
    assert one["keeping_up"] == "not keeping up"
    assert one["upstream_rate"] > one["process_rate"]
    course = page.ask("GET", f"{PREFIX}/api/hydrations/{page.hydration_id}/course", user="viewer")[1]
    assert len(course["at"]) == len(course["memory_used"]) == len(course["percent"]) > 100


def test_the_plugin_is_in_the_navigation_and_at_the_dag(page: PageServer):
    (own,) = [
        one for one in page.ask("GET", "/api/v2/plugins", user="admin")[1]["plugins"] if one["name"] == "backpressure"
    ]
    views = {(one["destination"], one["href"]) for one in own["external_views"]}
    assert views == {("nav", "/backpressure/"), ("dag", "/backpressure/?dag={DAG_ID}")}


@pytest.mark.long
def test_a_thousand_hydrations_and_a_hundred_thousand_ranges(page: PageServer):
    """Every view answers within 300 ms at the median, on PostgreSQL."""
    ids, plan_id = many(page.ledger, hydrations=1_000, ranges=100_000)
    try:
        one = f"{PREFIX}/api/hydrations/{ids[0]}"
        slow = {}
        fifty = "&".join(f"seen={each}:-1" for each in ids[:50])
        views = (
            f"{PREFIX}/api/hydrations",
            f"{PREFIX}/api/hydrations?limit=50&offset=900",
            f"{PREFIX}/api/queue",
            f"{PREFIX}/api/changes?{fifty}",
            one,
            *(f"{one}/{name}" for name in VIEWS),
        )
        for path in views:
            took = []
            for _ in range(7):
                begun = time.perf_counter()
                assert page.ask("GET", path, user="viewer")[0] == 200
                took.append(time.perf_counter() - begun)
            slow[path.removeprefix(PREFIX)[:80]] = round(statistics.median(took), 3)
        lines = page.ask("GET", views[1], user="viewer")[1]["hydrations"]
        assert all(one["eta_soonest_seconds"] <= one["eta_seconds"] <= one["eta_latest_seconds"] for one in lines)
        print(slow)
        assert max(slow.values()) < 0.3 * PATIENCE, slow
    finally:
        engine = sa.create_engine(page.ledger._database.engine.url)
        with engine.begin() as connection:
            for table in ("range", "sample"):
                connection.execute(
                    sa.text(f"DELETE FROM backpressure_{table} WHERE plan_id = :plan"), {"plan": plan_id}
                )
            connection.execute(
                sa.text("DELETE FROM backpressure_source_statistics WHERE hydration_id = ANY(:ids)"), {"ids": ids}
            )
            connection.execute(sa.delete(hydration).where(hydration.c.owner == "many"))
        engine.dispose()
