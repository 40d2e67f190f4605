"""The API over the ledger in memory; who may what is told by a stand-in of Airflow's auth manager."""

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from airflow.api_fastapi.core_api.security import get_user
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from airflow_provider_backpressure.core.gate.cluster_queue import Shared
from airflow_provider_backpressure.core.gate.signals import Decision, MemoryReading, Signal
from airflow_provider_backpressure.core.progress.lag import Sight
from airflow_provider_backpressure.core.progress.source_position import Unit
from airflow_provider_backpressure.core.snapshot.ranges import RangeState
from airflow_provider_backpressure.core.snapshot.spark_messages import Transform
from airflow_provider_backpressure.core.stage_metrics import Stage, StageTime
from airflow_provider_backpressure.exceptions import LedgerUnavailable
from airflow_provider_backpressure.plugins import permissions as access
from airflow_provider_backpressure.plugins import routes as acts
from airflow_provider_backpressure.plugins import task_and_job_links
from airflow_provider_backpressure.plugins.app import make_app
from airflow_provider_backpressure.plugins.permissions import OpenedLedger
from airflow_provider_backpressure.testing import MemoryLedger, MemorySink, MemorySource
from tests.conformance.ledger.support import commit, cut, make_plan, planned, register, replan, take

JSON = {"Content-Type": "application/json"}
NOTHING = {"hydrations": [], "total": 0, "may_plan": False}
ACTS = ("pause", "resume", "set", "ranges/{seq}/retry", "ranges/{seq}/skip")


@dataclass
class Person:
    """A user whose rights are by DAG."""

    name: str = "ada"
    reads: frozenset[str] = frozenset({"orders"})
    edits: frozenset[str] = frozenset({"orders"})
    runs: frozenset[str] = frozenset({"orders"})

    def get_name(self) -> str:
        return self.name

    def is_authorized_dag(self, *, method: str, details: Any, user: Any, access_entity: Any = None) -> bool:
        if access_entity is not None:
            return method == "POST" and details.id in self.runs
        return details.id in (self.edits if method == "PUT" else self.reads)

    # As of Airflow 3.1, which knows no team.
    def filter_authorized_dag_ids(self, *, dag_ids: set[str], user: Any, method: str) -> set[str]:
        return {one for one in dag_ids if one in (self.edits if method == "PUT" else self.reads)}


@pytest.fixture
def person(monkeypatch: pytest.MonkeyPatch) -> Person:
    made = Person()
    monkeypatch.setattr(access, "get_auth_manager", lambda: made)
    return made


@dataclass
class TeamPerson(Person):
    """A user where DAGs belong to teams."""

    asked: dict[str | None, set[str]] = field(default_factory=dict)

    def filter_authorized_dag_ids(
        self, *, dag_ids: set[str], user: Any, method: str, team_name: str | None = None
    ) -> set[str]:
        self.asked[team_name] = dag_ids
        return super().filter_authorized_dag_ids(dag_ids=dag_ids, user=user, method=method)


@pytest.mark.statement("V4")
def test_rights_are_asked_for_by_team_where_there_are_teams(monkeypatch: pytest.MonkeyPatch) -> None:
    """V4: what belongs to none is asked for without the argument, which Airflow 3.1 does not take."""
    made = TeamPerson()
    monkeypatch.setattr(access, "get_auth_manager", lambda: made)
    monkeypatch.setattr(access, "_teams", lambda owners: {"orders": "sales"})
    assert access.readable(made, ["orders", "others"]) == {"orders"}
    assert made.asked == {"sales": {"orders"}, None: {"others"}}


@pytest.fixture
def ledger() -> MemoryLedger:
    return MemoryLedger()


@pytest.fixture
def client(ledger: MemoryLedger, person: Person) -> Iterator[TestClient]:
    app = make_app(OpenedLedger(lambda: (ledger, None)))
    app.dependency_overrides[get_user] = lambda: person
    with TestClient(app) as made:
        yield made


def test_the_overview_tells_how_hydrations_stand(client: TestClient, ledger: MemoryLedger):
    hydration_id, plan_id = planned(ledger, 10, credits=1)
    commit(ledger, plan_id, take(ledger, hydration_id).seq)
    take(ledger, hydration_id)
    (line,) = client.get("/api/hydrations").json()["hydrations"]
    assert (line["id"], line["phase"], line["percent"], line["rows"], line["total"]) == (
        hydration_id,
        "hydration",
        10.0,
        10,
        100,
    )
    assert (line["in_flight"], line["credits_now"], line["open"]) == (1, 1, False)
    assert line["reasons"] == ["1 of 1 credits in flight"]
    assert line["may_steer"] is True
    assert (line["keeping_up"], line["lag"]) == (None, None)


def test_a_failed_hydration_is_shown_as_failed(client: TestClient, ledger: MemoryLedger):
    """With its reason, without a plan too; and by a range that has used up its attempts, once nothing is in flight."""
    other = register(ledger)
    ledger.keep_failure(other, "There is no table public.t.")
    one = client.get(f"/api/hydrations/{other}").json()
    assert (one["state"], one["begun"], one["failure"]) == ("failed", False, "There is no table public.t.")
    assert datetime.fromisoformat(one["failed_at"]).tzinfo is not None
    ledger.forget(other)
    hydration_id, plan_id = planned(ledger, 3)
    poor, busy = take(ledger, hydration_id), take(ledger, hydration_id)
    ledger.release(plan_id, poor.seq, attempt=1, error="a poison row", fail=True)
    assert client.get(f"/api/hydrations/{hydration_id}").json()["state"] == "running"
    ledger.release(plan_id, busy.seq, attempt=1, error="ended")
    one = client.get(f"/api/hydrations/{hydration_id}").json()
    assert (one["state"], one["failed"], one["failure"], one["eta_seconds"]) == ("failed", 1, None, None)


def test_lag_is_told_only_of_what_follows_its_source(client: TestClient, ledger: MemoryLedger):
    hydration_id, _ = planned(ledger, 3)
    for number, (follows, lag, by_key) in enumerate([(False, None, {}), (True, 900, {"wal": 900})]):
        at = ledger.hydration(hydration_id).created_at + timedelta(seconds=number)
        sight = Sight(at=at, unit=Unit.BYTES, known={"wal": 1000}, committed={"wal": 100}, follows=follows)
        ledger.record_sight(hydration_id, sight, least_seconds=1)
        one = client.get(f"/api/hydrations/{hydration_id}").json()
        assert (one["lag"], one["lag_by_key"]) == (lag, by_key)


def test_memory_that_was_not_seen_is_null(client: TestClient, ledger: MemoryLedger):
    """And not 0."""
    hydration_id, _ = planned(ledger, 3)
    take(ledger, hydration_id)
    ledger.record_memory(hydration_id, MemoryReading(used_bytes=None, limit_bytes=1000, age_seconds=0.0))
    one = client.get(f"/api/hydrations/{hydration_id}").json()
    course = client.get(f"/api/hydrations/{hydration_id}/course").json()
    assert one["memory_used"] is None
    assert set(course["memory_used"]) == {None}


def test_the_overview_is_paged(client: TestClient, ledger: MemoryLedger):
    for number in range(5):
        register(ledger, sink_identity=f"postgres://w:5432/w/raw.t{number}")
    pages = [client.get(f"/api/hydrations?limit=2&offset={offset}").json() for offset in (0, 2, 4)]
    assert [len(page["hydrations"]) for page in pages] == [2, 2, 1]
    assert {page["total"] for page in pages} == {5}
    assert client.get("/api/hydrations?limit=100000").status_code == 422


@pytest.mark.statement("X7")
def test_what_may_not_be_read_is_not_shown(client: TestClient, ledger: MemoryLedger, person: Person):
    """X7: neither in the overview, nor by its id, nor in the queue, nor by naming its DAG."""
    hidden = register(ledger, owner="secret", sink_identity="postgres://w:5432/w/raw.secret")
    replan(ledger, hidden)
    ledger.enqueue(hidden, run="a")
    shown = register(ledger)
    assert [one["id"] for one in client.get("/api/hydrations").json()["hydrations"]] == [shown]
    assert client.get("/api/hydrations?dag_id=secret").json() == NOTHING
    (cluster,) = client.get("/api/queue").json()["clusters"]
    assert (cluster["running"], cluster["turns"]) == (1, [])
    assert client.get(f"/api/changes?seen={hidden}:-1").status_code == 403
    for path in ("", "/course", "/map", "/ranges", "/ranges/0", "/history"):
        answer = client.get(f"/api/hydrations/{hidden}{path}")
        assert answer.status_code == 403, path
        assert "raw.secret" not in answer.text
    assert client.get(f"/api/hydrations/{'0' * 32}").status_code == 404
    assert client.get(f"/api/changes?seen={'0' * 32}:-1").status_code == 404


@pytest.mark.statement("X7")
@pytest.mark.parametrize("act", ["pause", "resume", "set", "ranges/0/retry", "ranges/0/skip"])
def test_who_may_not_edit_may_not_steer(client: TestClient, ledger: MemoryLedger, person: Person, act: str):
    """X7: the right to see a DAG is not the right to steer its hydration."""
    hydration_id, _ = planned(ledger)
    person.edits = frozenset()
    answer = client.post(f"/api/hydrations/{hydration_id}/{act}", json={"why": "x", "credits": 9})
    assert answer.status_code == 403
    assert ledger.controls() == []
    assert client.get(f"/api/hydrations/{hydration_id}").json()["may_steer"] is False


def test_steering_leaves_who_and_why(client: TestClient, ledger: MemoryLedger):
    hydration_id, _ = planned(ledger, credits=4)
    base = f"/api/hydrations/{hydration_id}"
    paused = client.post(f"{base}/pause", json={"why": "release night"}).json()
    assert (paused["state"], paused["state_note"], paused["reasons"]) == (
        "paused",
        "by ada: release night",
        ["paused by ada: release night"],
    )
    assert client.post(f"{base}/resume", json={"why": "done"}).json()["state"] == "running"
    changed = client.post(f"{base}/set", json={"why": "gently", "credits": 2, "range_rows": 500, "priority": 7}).json()
    assert (changed["credits_set"], changed["range_rows_set"], changed["priority"]) == (2, 500, 7)
    acts = client.get(f"{base}/history").json()["acts"]
    assert [(act["who"], act["action"], act["why"]) for act in acts] == [
        ("ada", "set", "gently"),
        ("ada", "resume", "done"),
        ("ada", "pause", "release night"),
    ]
    assert acts[0]["values"] == {"credits": 2, "range_rows": 500, "priority": 7}


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"why": "x"}, "Nothing to change"),
        ({"why": "x", "credits": -1}, "greater than or equal to 0"),
        ({"why": "x", "priority": 5_000}, "less than or equal to 1000"),
        ({"why": "x", "credits": 2**31}, "less than or equal to 10000"),
        ({"why": "x", "range_rows": 2**63}, "less than or equal to 1000000000000"),
        ({"credits": 2}, "Field required"),
        ({"why": "", "credits": 2}, "at least 1 character"),
    ],
)
def test_nonsense_is_refused(client: TestClient, ledger: MemoryLedger, body: dict, sentence: str):
    hydration_id, _ = planned(ledger)
    answer = client.post(f"/api/hydrations/{hydration_id}/set", json=body)
    assert answer.status_code == 422
    assert sentence in answer.text
    assert ledger.controls() == []


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({**JSON, "Sec-Fetch-Site": "cross-site"}, 403),
        ({**JSON, "Sec-Fetch-Site": "same-site"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({**JSON, "Sec-Fetch-Site": "same-origin"}, 200),
    ],
)
def test_another_site_s_page_cannot_steer(client: TestClient, ledger: MemoryLedger, headers: dict[str, str], code: int):
    hydration_id, _ = planned(ledger)
    answer = client.post(f"/api/hydrations/{hydration_id}/pause", content='{"why": "x"}', headers=headers)
    assert answer.status_code == code
    assert len(ledger.controls()) == (1 if code == 200 else 0)


@pytest.mark.statement("X7")
def test_no_act_can_be_sent_by_another_site(client: TestClient, ledger: MemoryLedger):
    """X7: whatever route there is that changes something."""
    hydration_id, _ = planned(ledger)
    app: Any = client.app
    acts = [route for route in app.routes if route.methods - {"GET", "HEAD"}]
    assert len(acts) == len(ACTS) + 1
    for route in acts:
        path = route.path.format(hydration_id=hydration_id, seq=0)
        for headers, code in (({**JSON, "Sec-Fetch-Site": "cross-site"}, 403), ({"Content-Type": "text/plain"}, 415)):
            assert client.post(path, content='{"why": "x"}', headers=headers).status_code == code, path
    assert ledger.controls() == []


def test_a_failed_range_is_tried_again_from_the_page(client: TestClient, ledger: MemoryLedger):
    hydration_id, plan_id = planned(ledger, 3)
    taken = take(ledger, hydration_id)
    ledger.release(plan_id, taken.seq, attempt=taken.attempt, error="no room", fail=True)
    base = f"/api/hydrations/{hydration_id}/ranges"
    answer = client.post(f"{base}/{taken.seq}/retry", json={"why": "there is room again"})
    assert (answer.status_code, answer.json()["state"]) == (200, "planned")
    (act,) = ledger.controls(hydration_id)
    assert (act.who, act.action, act.why) == ("ada", "retry-range", "there is room again")
    again = client.post(f"{base}/{taken.seq}/retry", json={"why": "once more"})
    assert (again.status_code, "planned" in again.json()["detail"]) == (409, True)
    assert client.post(f"{base}/99/retry", json={"why": "x"}).status_code == 404
    assert client.post(f"{base}/0/retry", json={}).status_code == 422


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> MemorySink:
    """What stands for the recorded target."""
    sink = MemorySink()
    monkeypatch.setattr(acts, "open_recorded_sink", lambda hydration: closing(sink))
    return sink


@pytest.mark.statement("X3")
def test_a_committed_range_stays_where_the_source_lost_it(
    client: TestClient, ledger: MemoryLedger, target: MemorySink, monkeypatch: pytest.MonkeyPatch
):
    """X3: the page answers with the source's sentence, and nothing has changed."""
    source = MemorySource(keys=(), columns=())
    monkeypatch.setattr(acts, "open_recorded_source", lambda hydration: closing(source))
    hydration_id, plan_id = planned(ledger, 3)
    commit(ledger, plan_id, take(ledger, hydration_id).seq)
    answer = client.post(f"/api/hydrations/{hydration_id}/ranges/0/retry", json={"why": "rows are wrong"})
    assert (answer.status_code, "column id is gone" in answer.json()["detail"]) == (409, True)
    assert ledger.range(plan_id, 0).state is RangeState.COMMITTED
    assert ledger.controls(hydration_id) == []


def test_a_range_is_left_out_from_the_page(client: TestClient, ledger: MemoryLedger, target: MemorySink):
    hydration_id, plan_id = planned(ledger, 3)
    commit(ledger, plan_id, take(ledger, hydration_id).seq)
    base = f"/api/hydrations/{hydration_id}/ranges"
    assert client.post(f"{base}/2/skip", json={"why": "nobody wants 2019"}).json()["state"] == "revoked"
    (act,) = ledger.controls(hydration_id)
    assert (act.who, act.action, act.why) == ("ada", "skip-range", "nobody wants 2019")
    done = client.post(f"{base}/0/skip", json={"why": "x"})
    assert (done.status_code, "committed" in done.json()["detail"]) == (409, True)


def test_a_range_leads_to_its_task_and_its_job(
    client: TestClient, ledger: MemoryLedger, monkeypatch: pytest.MonkeyPatch
):
    """The log of the try that submitted it; the session in Spark's pages, without a login in its address."""
    monkeypatch.setattr(task_and_job_links, "memory_url", lambda cluster: "http://ada:secret@spark:4040/")
    monkeypatch.setattr(task_and_job_links, "_try_of", lambda found, by: 2)
    hydration_id, plan_id = planned(ledger, 3)
    session, lane = "01234567-89ab-cdef-0123-456789abcdef", "orders/manual__1/hydrate.hydrate_ranges/3"
    ledger.admit(hydration_id, lane=lane, session_id=session, lease_seconds=60)
    one = client.get(f"/api/hydrations/{hydration_id}/ranges/0").json()
    assert (one["seq"], one["state"]) == (0, "admitted")
    path = "/dags/orders/runs/manual__1/tasks/hydrate.hydrate_ranges/mapped/3?try_number=2"
    assert one["task"] == {
        "dag_id": "orders",
        "run_id": "manual__1",
        "task_id": "hydrate.hydrate_ranges",
        "map_index": 3,
        "try_number": 2,
        "href": path,
    }
    assert one["job"] == {
        "tag": f"bp:{plan_id}:0.0:1",
        "cluster": "spark_default",
        "session_id": session,
        "href": f"http://spark:4040/connect/session/?id={session}",
    }
    planned_one = client.get(f"/api/hydrations/{hydration_id}/ranges/1").json()
    assert (planned_one["task"], planned_one["job"]) == (None, None)
    assert client.get(f"/api/hydrations/{hydration_id}/ranges/7").status_code == 404


@pytest.mark.parametrize(
    ("lane", "of_lane"), [("orders/manual__1/by_range", False), ("orders/manual__1/drain/-1", True)]
)
def test_the_try_that_submitted_a_range_began_before_its_credit_in_a_lane_only(
    client: TestClient, ledger: MemoryLedger, monkeypatch: pytest.MonkeyPatch, lane: str, of_lane: bool
):
    """A sensor reserves the credit of a range that has a task of its own, before that task begins."""
    asked: list[datetime | None] = []
    monkeypatch.setattr(task_and_job_links, "_try_of", lambda found, by: asked.append(by))
    monkeypatch.setattr(
        task_and_job_links, "_of_one_range", lambda found, record: replace(found, task_id="submit", map_index=0)
    )
    hydration_id, plan_id = planned(ledger, 3)
    ledger.admit(hydration_id, lane=lane, session_id="", lease_seconds=60)
    client.get(f"/api/hydrations/{hydration_id}/ranges/0").raise_for_status()
    (taken,) = (one for one in ledger.ranges(plan_id) if one.state is RangeState.ADMITTED)
    assert taken.admitted_at is not None
    assert asked == [taken.admitted_at if of_lane else None]


@pytest.mark.parametrize("address", [None, "javascript:alert(1)", "spark:4040"])
def test_no_link_leads_to_what_is_no_page(
    client: TestClient, ledger: MemoryLedger, monkeypatch: pytest.MonkeyPatch, address: str | None
):
    monkeypatch.setattr(task_and_job_links, "memory_url", lambda cluster: address)
    hydration_id, _ = planned(ledger, 3)
    ledger.admit(hydration_id, lane="x", session_id="01234567-89ab-cdef-0123-456789abcdef", lease_seconds=60)
    job = client.get(f"/api/hydrations/{hydration_id}/ranges/0").json()["job"]
    assert (job["href"], job["tag"][:3]) == (None, "bp:")


def test_a_queue_is_changed_by_who_may_edit_every_dag_on_its_cluster(
    client: TestClient, ledger: MemoryLedger, person: Person
):
    register(ledger)
    body = {"cluster": "spark_default", "at_once": 2, "why": "quiet hours"}
    (cluster,) = client.post("/api/queue", json=body).json()["clusters"]
    assert (cluster["at_once"], cluster["may_steer"]) == (2, True)
    assert [(act["who"], act["why"]) for act in cluster["acts"]] == [("ada", "quiet hours")]
    assert ledger.get_shared(Shared.HYDRATIONS, "spark_default") == 2
    register(ledger, owner="secret", sink_identity="postgres://w:5432/w/raw.secret")
    refused = client.post("/api/queue", json={**body, "at_once": 9})
    assert refused.status_code == 403
    (cluster,) = client.get("/api/queue").json()["clusters"]
    assert (cluster["at_once"], cluster["may_steer"]) == (2, False)
    unknown = client.post("/api/queue", json={**body, "cluster": "elsewhere"})
    assert unknown.status_code == 403
    person.edits = frozenset({"orders", "secret"})
    assert client.post("/api/queue", json={**body, "at_once": 0}).status_code == 200


def test_what_a_plan_would_be_is_told_before_there_is_one(client: TestClient, ledger: MemoryLedger, person: Person):
    hydration_id = register(ledger)
    path = f"/api/hydrations/{hydration_id}"
    one = client.get(path).json()
    assert (one["begun"], one["preview"], one["may_plan"]) == (False, None, True)
    facts = {
        "at": "2026-01-01T12:00:00+00:00",
        "source": "s",
        "target": "t",
        "mode": "append",
        "consistency": "snapshot",
        "rows": 1000,
        "exact": False,
        "key": "id",
        "columns": 3,
        "range_rows": 100,
        "ranges": 10,
        "path": "copy",
        "credits": 4,
        "python": "3.11",
    }
    ledger.keep_preview(hydration_id, json.dumps(facts))
    person.runs = frozenset()
    one = client.get(path).json()
    assert (one["preview"]["rows"], one["preview"]["ranges"], one["may_plan"]) == (1000, 10, False)
    replan(ledger, hydration_id)
    one = client.get(path).json()
    assert (one["begun"], one["preview"]) == (True, None)


def test_changes_are_answered_at_once_without_push(client: TestClient, ledger: MemoryLedger):
    hydration_id, _ = planned(ledger)
    answer = client.get(f"/api/changes?seen={hydration_id}:-1")
    assert (answer.status_code, answer.json()) == (200, {"pushed": False, "moved": {}})
    assert client.get("/api/changes").json() == {"pushed": False, "moved": {}}
    assert client.get("/api/changes?seen=nonsense").status_code == 422
    assert client.get("/api/changes?seconds=1000").status_code == 422


def test_one_hydration_with_all_that_the_gate_says(client: TestClient, ledger: MemoryLedger):
    hydration_id, plan_id = planned(ledger, 4)
    commit(ledger, plan_id, take(ledger, hydration_id).seq)
    signals = (Signal(name="sink commit", utilisation=float("inf"), sentence="oldest uncommitted range 12 s >= 10 s"),)
    ledger.record_decision(hydration_id, Decision(open=False, pressure=1.2, signals=signals))
    times = {Stage.ADMIT: StageTime(busy=1, backpressured=9), Stage.SINK: StageTime(busy=10)}
    ledger.record_flow(hydration_id, worker="lane", times=times)
    one = client.get(f"/api/hydrations/{hydration_id}").json()
    assert one["reasons"] == ["oldest uncommitted range 12 s >= 10 s"]
    assert (one["signals"][0]["closed"], one["signals"][0]["utilisation"]) == (True, None)
    assert one["bottleneck"] == "sink"
    assert one["stages"][0] == {"stage": "admit", "busy": 0.1, "idle": 0.0, "backpressured": 0.9, "level": "HIGH"}
    assert (one["ranges"]["committed"], one["ranges"]["total"]) == (1, 4)
    assert one["plan"]["plan_id"] == plan_id
    assert one["plan"]["transform"] is False
    course = client.get(f"/api/hydrations/{hydration_id}/course").json()
    assert course["percent"] == [0.0]
    assert course["flow"]["admit"]["backpressured"] == [0.9]
    assert course["flow"]["read"]["busy"] == [None]
    assert course["memory_used"] == [None] * len(course["at"])


@pytest.mark.statement("F6", "F8")
def test_reader_and_transform_are_answered_in_one_way(client: TestClient, ledger: MemoryLedger):
    """Apart; or together, where more of the last minute's time is told so."""
    hydration_id = register(ledger)
    ledger.save_plan(hydration_id, make_plan(transform=Transform(sql="SELECT * FROM source")), cut(4))
    apart = {Stage.READ: StageTime(backpressured=10), Stage.TRANSFORM: StageTime(busy=10)}
    ledger.record_flow(hydration_id, worker="lane", times={**apart, Stage.ADMIT: StageTime(backpressured=9)})
    one = client.get(f"/api/hydrations/{hydration_id}").json()
    assert one["plan"]["transform"] is True
    assert [stage["stage"] for stage in one["stages"]] == ["admit", "read", "transform"]
    assert one["bottleneck"] == "transform"
    ledger.record_flow(hydration_id, worker="other", times={Stage.READ_AND_TRANSFORM: StageTime(busy=20)})
    one = client.get(f"/api/hydrations/{hydration_id}").json()
    assert [stage["stage"] for stage in one["stages"]] == ["admit", "read+transform"]
    assert one["bottleneck"] == "read+transform"


def test_a_hydration_without_a_plan(client: TestClient, ledger: MemoryLedger):
    hydration_id = register(ledger)
    one = client.get(f"/api/hydrations/{hydration_id}").json()
    assert (one["percent"], one["total"], one["ranges"], one["plan"]) == (None, None, None, None)
    assert client.get(f"/api/hydrations/{hydration_id}/course").json()["at"] == []
    assert client.get(f"/api/hydrations/{hydration_id}/map").json() == {"tiles": []}
    assert client.get(f"/api/hydrations/{hydration_id}/ranges").json() == {"ranges": [], "next_after": None}


def test_ranges_are_paged_and_chosen_by_state(client: TestClient, ledger: MemoryLedger):
    hydration_id, plan_id = planned(ledger, 5)
    commit(ledger, plan_id, take(ledger, hydration_id).seq)
    base = f"/api/hydrations/{hydration_id}/ranges"
    first = client.get(f"{base}?limit=3").json()
    assert [one["seq"] for one in first["ranges"]] == [0, 1, 2]
    second = client.get(f"{base}?limit=3&after={first['next_after']}").json()
    assert ([one["seq"] for one in second["ranges"]], second["next_after"]) == ([3, 4], None)
    (committed,) = client.get(f"{base}?state=committed").json()["ranges"]
    assert (committed["rows"], committed["attempt"], committed["state"]) == (10, 1, "committed")
    tiles = client.get(f"/api/hydrations/{hydration_id}/map").json()["tiles"]
    assert [tile["states"] for tile in tiles[:2]] == [{"committed": 1}, {"planned": 1}]


@pytest.mark.statement("H9")
def test_the_queue_tells_positions_and_expected_starts(client: TestClient, ledger: MemoryLedger):
    """H9: position of those that wait; nobody can say when they start before the one under way has a rate."""
    ids = [register(ledger, sink_identity=f"postgres://w:5432/w/raw.t{number}") for number in range(3)]
    ledger.share(Shared.HYDRATIONS, "spark_default", 1, who="ada")
    for hydration_id in ids:
        replan(ledger, hydration_id)
        ledger.enqueue(hydration_id, run="run")
    (cluster,) = client.get("/api/queue").json()["clusters"]
    assert (cluster["at_once"], cluster["running"], cluster["waiting"]) == (1, 1, 2)
    assert [(turn["id"], turn["position"]) for turn in cluster["turns"]] == [(ids[0], None), (ids[1], 1), (ids[2], 2)]
    assert [turn["starts_in_seconds"] for turn in cluster["turns"]] == [None, None, None]
    lines = {one["id"]: one["queue_position"] for one in client.get("/api/hydrations").json()["hydrations"]}
    assert lines == {ids[0]: None, ids[1]: 1, ids[2]: 2}


def test_a_ledger_that_does_not_answer_is_a_sentence_and_is_opened_anew(person: Person, ledger: MemoryLedger):
    opened: list[Any] = []

    class Broken(MemoryLedger):
        def owners(self) -> set[str]:
            raise LedgerUnavailable("The ledger in db:5432/airflow does not answer: no route.")

        def close(self) -> None:
            opened.append("closed")

    def open_() -> tuple[MemoryLedger, None]:
        opened.append("opened")
        return (ledger if "closed" in opened else Broken()), None

    app = make_app(OpenedLedger(open_))
    app.dependency_overrides[get_user] = lambda: person
    with TestClient(app) as client:
        answer = client.get("/api/hydrations")
        assert (answer.status_code, answer.json()["detail"]) == (
            503,
            "The ledger in db:5432/airflow does not answer: no route.",
        )
        assert client.get("/api/hydrations").status_code == 200
    assert opened == ["opened", "closed", "opened"]


@pytest.mark.statement("X7")
def test_every_route_asks_who_it_is():
    """X7: every route there is, the page and its parts included: 401 without a person."""
    app = make_app(OpenedLedger(lambda: (MemoryLedger(), None)))
    assert all(isinstance(route, APIRoute) for route in app.routes), "what is mounted would ask nobody"
    with TestClient(app) as nobody:
        for route in app.routes:
            assert isinstance(route, APIRoute)
            path = route.path.format(hydration_id="0" * 32, name="page.js", seq=0)
            for method in route.methods:
                answer = nobody.request(method, path, json={"why": "x", "credits": 1} if method == "POST" else None)
                assert answer.status_code == 401, (method, path)
        for path in ("/docs", "/redoc", "/openapi.json"):
            assert nobody.get(path).status_code == 404


def test_the_page_and_its_parts_come_from_the_package(client: TestClient):
    """No address of another host stands in them, and the browser is told to ask none."""
    page = client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for name in ("page.css", "page.js", "detail.js", "tap.svg"):
        part = client.get(f"/static/{name}")
        assert part.status_code == 200, name
        assert "://" not in part.text.replace("http://www.w3.org/2000/svg", "").replace("postgres://", "").replace(
            'split("://")', ""
        )
    charts = client.get("/static/uplot.min.js")
    assert charts.status_code == 200
    assert "Permission is hereby granted" in charts.text[:400]
    assert len(charts.content) < 60_000
    assert client.get("/static/..%2Fapp.py").status_code == 404
    described = client.get("/api/openapi.json").json()
    assert set(described["paths"]) == {
        "/api/hydrations",
        "/api/hydrations/{hydration_id}",
        "/api/hydrations/{hydration_id}/course",
        "/api/hydrations/{hydration_id}/map",
        "/api/hydrations/{hydration_id}/ranges",
        "/api/hydrations/{hydration_id}/history",
        "/api/hydrations/{hydration_id}/ranges/{seq}",
        "/api/hydrations/{hydration_id}/ranges/{seq}/retry",
        "/api/hydrations/{hydration_id}/ranges/{seq}/skip",
        "/api/hydrations/{hydration_id}/pause",
        "/api/hydrations/{hydration_id}/resume",
        "/api/hydrations/{hydration_id}/set",
        "/api/queue",
        "/api/changes",
    }
    assert {name: sorted(path) for name, path in described["paths"].items() if "post" in path} == {
        f"/api/{name}": ["get", "post"] if name == "queue" else ["post"]
        for name in (*(f"hydrations/{{hydration_id}}/{act}" for act in ACTS), "queue")
    }
