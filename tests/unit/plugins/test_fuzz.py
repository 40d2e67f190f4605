"""Whatever is sent to any route there is: an answer of its own, never a fault and never a trace of the code."""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import quote

import pytest
from airflow.api_fastapi.core_api.security import get_user
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_backpressure.ledger.migration import migrate
from airflow_provider_backpressure.ledger.repository import SqlLedger
from airflow_provider_backpressure.plugins import permissions as access
from airflow_provider_backpressure.plugins import routes as acts
from airflow_provider_backpressure.plugins.app import make_app
from airflow_provider_backpressure.plugins.permissions import OpenedLedger
from airflow_provider_backpressure.testing import MemorySink, MemorySource
from tests.conformance.ledger.support import commit, make_plan, planned, register, take
from tests.unit.plugins.test_api import Person

ODD = st.sampled_from(
    ["", "\x00", "..", "../../etc/passwd", "%00", "' OR 1=1 --", '"; DROP TABLE x; --', "<img src=x>", "𝄞", "1e400"]
)
NUMBERS = st.integers() | st.sampled_from([2**31, 2**53, 2**63, 2**64, -(2**63) - 1, 10**40])
TEXTS = ODD | st.text(max_size=30)
ANYTHING = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.floats() | TEXTS | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "hydration_id": st.text("0123456789abcdef", min_size=32, max_size=32),
    "seq": st.integers(0, 5),
    "dag_id": st.just("orders"),
    "state": st.sampled_from(["planned", "committed", "x"]),
    "seen": st.just(f"{'0' * 32}:-1"),
    "seconds": st.sampled_from(["0", "0.01", "nan", "inf", "-inf", "1e-320"]),
    "why": st.text(min_size=1, max_size=20),
    "cluster": st.just("spark_default"),
}
"""What is near to being right, by name: the rest is numbers and odd texts."""


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlLedger]:
    """A real ledger with a hydration of five ranges."""
    url = f"sqlite:///{tmp_path_factory.mktemp('ledger')}/ledger.sqlite"
    migrate(url)
    with closing(SqlLedger(url)) as made:
        yield made


@pytest.fixture(scope="module")
def sent(ledger: SqlLedger) -> Iterator["Sent"]:
    """A client of a person who may do everything."""
    with sending(ledger) as made:
        yield made


@contextmanager
def sending(ledger: SqlLedger) -> Iterator["Sent"]:
    """Give such a client over any ledger with nothing in it; faults are answered as a server does."""
    hydration_id, plan_id = planned(ledger, 5)
    commit(ledger, plan_id, take(ledger, hydration_id).seq)
    taken = take(ledger, hydration_id)
    ledger.release(plan_id, taken.seq, attempt=taken.attempt, error="no room", fail=True)
    register(ledger, owner="others", sink_identity="postgres://w:1/w/raw.others")
    person = Person()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(access, "get_auth_manager", lambda: person)
        patch.setattr(acts, "open_recorded_sink", lambda hydration: closing(MemorySink()))
        patch.setattr(
            acts,
            "open_recorded_source",
            lambda hydration: closing(MemorySource(keys=(), columns=make_plan().read.columns)),
        )
        app = make_app(OpenedLedger(lambda: (ledger, None)))
        app.dependency_overrides[get_user] = lambda: person
        with TestClient(app, raise_server_exceptions=False) as client:
            yield Sent(client, hydration_id)


class Sent:
    """Sends requests as they are drawn."""

    def __init__(self, client: TestClient, hydration_id: str) -> None:
        self.client = client
        self.described = client.get("/api/openapi.json").json()
        self.hydration_id = hydration_id
        self.operations = [
            (method, path, told)
            for path, methods in sorted(self.described["paths"].items())
            for method, told in sorted(methods.items())
        ]

    def draw(self, data: st.DataObject) -> Any:
        """Send one request and return its answer."""
        method, path, told = data.draw(st.sampled_from(self.operations))
        query: list[tuple[str, str]] = []
        for parameter in told.get("parameters", ()):
            name = parameter["name"]
            if parameter["in"] == "path":
                path = path.replace(f"{{{name}}}", quote(str(data.draw(self.value(name))), safe="") or "%20")
            elif parameter["in"] == "query":
                query += [(name, str(value)) for value in data.draw(st.lists(self.value(name), max_size=2))]
        body = data.draw(self.body(told)) if method == "post" else None
        query = [(name, value.encode(errors="replace").decode()) for name, value in query]
        return self.client.request(
            method,
            path,
            params=query,
            content=None if body is None else body,
            headers={"Content-Type": "application/json"} if method == "post" else None,
        )

    def value(self, name: str) -> st.SearchStrategy[Any]:
        known = VALUES.get(name, st.integers(0, 100))
        if name == "hydration_id":
            known = st.just(self.hydration_id)
        # Three times in four something that can be meant: what is refused at the door goes no further.
        return st.integers(0, 3).flatmap(
            lambda turn: known if turn else VALUES.get(name, NUMBERS) | NUMBERS | TEXTS | st.floats()
        )

    def body(self, told: dict[str, Any]) -> st.SearchStrategy[bytes]:
        """Bodies as the description has them, with some values wrong; any JSON; and what is none."""
        reference = told["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        fields = self.described["components"]["schemas"][reference.rpartition("/")[2]]["properties"]
        near = st.fixed_dictionaries(
            {}, optional={name: VALUES.get(name, st.integers(-1, 9)) | ANYTHING for name in fields}
        )
        right = st.fixed_dictionaries({name: VALUES.get(name, st.integers(0, 9)) for name in fields})
        bodies = st.integers(0, 2).flatmap(lambda turn: right if turn else near | ANYTHING)
        return bodies.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=20)


def send_whatever(sent: Sent, examples: int) -> set[tuple[str, int]]:
    """Send so many requests, none of which may be a fault, and return methods and status codes."""
    answered: set[tuple[str, int]] = set()

    @settings(max_examples=examples, deadline=None)
    @given(data=st.data())
    def whatever(data: st.DataObject) -> None:
        answer = sent.draw(data)
        assert answer.status_code < 500, answer.text
        assert "Traceback" not in answer.text
        assert 'File "' not in answer.text
        assert answer.headers["content-type"] == "application/json" or answer.status_code in (307, 404, 405)
        answered.add((answer.request.method, answer.status_code))

    whatever()
    return answered


@pytest.mark.statement("X7")
def test_no_request_is_a_fault(sent: Sent, caplog: pytest.LogCaptureFixture) -> None:
    """X7: every route of the description, with values of every kind, on a real ledger."""
    with caplog.at_level("WARNING"):
        answered = send_whatever(sent, 400)
    assert {("GET", 200), ("GET", 422), ("POST", 200), ("POST", 422)} <= answered, "some of it was meant well"


@pytest.mark.parametrize(
    "body",
    [b'{"why": "\\ud800"}', b'{"why": NaN}', b'{"why": "a\\u0000b"}', b'{"why": 1' + b"0" * 5000 + b"}", b"[" * 9000],
)
def test_what_json_cannot_say_again_is_refused_in_words(sent: Sent, body: bytes) -> None:
    path = f"/api/hydrations/{sent.hydration_id}/pause"
    answer = sent.client.post(path, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422)
    assert answer.json()["detail"]


def test_a_refusal_does_not_repeat_what_was_sent(sent: Sent) -> None:
    answer = sent.client.get("/api/hydrations?limit=canary<script>")
    assert answer.status_code == 422
    assert "canary" not in answer.text
    assert answer.json()["detail"][0]["loc"] == ["query", "limit"]


@pytest.mark.parametrize(
    "name", ["..%2F..%2Fapp.py", "..%5Capp.py", "%2Fetc%2Fpasswd", "page.js%00", ".", "page.js/../../app.py"]
)
def test_only_the_page_s_own_files_are_served(sent: Sent, name: str) -> None:
    answer = sent.client.get(f"/static/{name}")
    assert answer.status_code in (404, 405)
    assert "import" not in answer.text


@pytest.mark.statement("X7")
def test_nobody_is_answered_nothing_but_401(ledger: SqlLedger) -> None:
    """X7: whatever is sent, valid or not: what is wrong with a request is for those who may ask."""
    app = make_app(OpenedLedger(lambda: (ledger, None)))
    with TestClient(app, raise_server_exceptions=False) as nobody:
        described = app.openapi()["paths"]
        for path, methods in described.items():
            for method in methods:
                for value in ("0" * 32, "x", "%00"):
                    told = path.format(hydration_id=value, seq=value)
                    for body in (None, b"{", b'{"why": "x"}'):
                        answer = nobody.request(method, told, content=body, params={"limit": "x"})
                        assert (answer.status_code, set(answer.json())) == (401, {"detail"}), (method, told)
