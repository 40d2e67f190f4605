"""The exact commands that reach spark-submit, as recorded: no cluster runs, a script stands for the program."""

import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_backpressure.core.ports import Runner
from airflow_provider_backpressure.exceptions import InvalidDeclaration, RunnerRefused
from airflow_provider_backpressure.hooks.spark_and_yarn import memory_url, open_runner
from tests.unit.runners.test_submit_runner import ENDPOINTS, PASSWORD, TAG, spec

RECORDED = Path(__file__).parent / "submissions"
SCRIPT = """#!{python}
import json, os, pathlib, sys
with open({record!r}, "a") as file:
    file.write(json.dumps([sys.argv[1:], dict(os.environ)]) + chr(10))
answer = sys.argv[-1]
if answer.endswith("answer.json"):
    pathlib.Path(answer).write_text(json.dumps({{"slices": []}}))
print("exit code: 0")
"""
Open = Callable[..., Runner]


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[Any]]:
    """Puts a spark-submit first on the PATH that writes down how it was called; gives what was written so far."""
    record, program = tmp_path / "calls", tmp_path / "bin" / "spark-submit"
    program.parent.mkdir()
    program.write_text(SCRIPT.format(python=sys.executable, record=str(record)))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return lambda: [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []


@pytest.fixture
def submit(monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Opens runners of a connection; they are closed in the end."""
    opened: list[Runner] = []

    def one(**connection: Any) -> Runner:
        monkeypatch.setenv("AIRFLOW_CONN_SPARK", json.dumps({"conn_type": "spark", **connection}))
        opened.append(open_runner("spark", endpoints=ENDPOINTS))
        return opened[-1]

    yield one
    for runner in opened:
        runner.close()


CASES: dict[str, dict[str, Any]] = {
    "local": {"host": "local[2]", "extra": {"conf": {"spark.driver.memory": "2g"}}},
    "standalone": {
        "host": "spark://127.0.0.1",
        "extra": {"conf": {"spark.pyspark.python": "/opt/python/bin/python3.11", "spark.executor.cores": 2}},
    },
    "yarn-client": {"host": "yarn", "extra": {"queue": "etl"}},
    "yarn-cluster": {
        "host": "yarn",
        "extra": {
            "deploy-mode": "cluster",
            "queue": "etl",
            "secrets_file": "/etc/backpressure/logins.json",
            "conf": {"spark.submit.pyFiles": "hdfs:///lib/transforms.py", "spark.dynamicAllocation.enabled": False},
        },
    },
    "kubernetes-cluster": {
        "host": "k8s://https://kubernetes.default.svc",
        "port": 443,
        "extra": {
            "deploy-mode": "cluster",
            "namespace": "spark",
            "secrets_file": "/run/secrets/logins.json",
            "conf": {
                "spark.kubernetes.container.image": "registry/spark-python:4.1.3",
                "spark.kubernetes.file.upload.path": "s3a://spark/uploads",
                "spark.kubernetes.driver.secrets.backpressure": "/run/secrets",
            },
        },
    },
}


@pytest.mark.statement("X5")
@pytest.mark.parametrize("name", CASES)
def test_the_recorded_submission(
    name: str,
    submit: Open,
    commands: Callable[[], list[Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Argument by argument (RECORD=1 records them again). X5: neither they, environment nor log hold the password."""
    monkeypatch.setattr("airflow.providers.apache.spark.hooks.spark_submit.kube_client", object(), raising=False)
    monkeypatch.setattr("airflow_provider_backpressure.runners.executor_memory.Target.knock", lambda target: None)
    monkeypatch.setenv("AIRFLOW_CONN_SOURCE", f"postgres://u:{PASSWORD}@db/d")
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", f"postgresql://u:{PASSWORD}@meta/d")
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    submit(**CASES[name]).run(spec()).result(30)
    ((arguments, environment),) = commands()
    known = {
        f"{tmp_path}/backpressure-": "<root>",
        sys.executable: "<python>",
        str(Path(__file__).parents[3] / "spark_jobs"): "<jobs>",
    }
    text = "\n".join(arguments) + "\n"
    for found, shown in known.items():
        text = text.replace(found, shown)
    if os.environ.get("RECORD"):
        (RECORDED / f"{name}.txt").write_text(normal(text))
    assert normal(text) == (RECORDED / f"{name}.txt").read_text()
    log = capsys.readouterr().out
    assert "Spark-Submit cmd" in log
    assert PASSWORD not in json.dumps(environment) + text + log
    assert "SPARK_CONNECT_MODE_ENABLED" not in environment


def normal(text: str) -> str:
    """Leave out what is another one on each host and with each version of the code."""
    text = re.sub(r"<root>\d+", "<root>", text)
    return re.sub(r"\S*/airflow_provider_backpressure-\w+\.zip", "<shipment>", text)


@pytest.mark.statement("X5")
@pytest.mark.parametrize(
    ("connection", "sentence"),
    [
        ({"host": ""}, "names no Spark master in its host"),
        ({"host": "yarn", "extra": {"conf": "spark.x=1"}}, "must be an object of properties"),
        (
            {"host": "yarn", "extra": {"deploy-mode": "cluster"}},
            "name by the extra secrets_file a file",
        ),
    ],
)
def test_a_connection_that_cannot_serve_is_refused(submit: Open, connection: Any, sentence: str) -> None:
    """X5: when it is opened, before anything is planned."""
    with pytest.raises((InvalidDeclaration, RunnerRefused), match=sentence):
        submit(**connection)


@pytest.mark.statement("X5")
@pytest.mark.parametrize(
    ("connection", "sentence"),
    [
        (
            {"host": "local", "extra": {"spark-binary": "spark3-submit"}},
            "There is no spark3-submit on this host",
        ),
        ({"host": "local", "extra": {"spark-binary": "sh"}}, "The Spark provider refuses connection 'spark'"),
        ({"host": "k8s://https://k"}, "install apache-airflow-providers-cncf-kubernetes"),
    ],
)
def test_what_is_missing_on_the_host_is_one_sentence(
    submit: Open, commands: Callable[[], list[Any]], monkeypatch: pytest.MonkeyPatch, connection: Any, sentence: str
) -> None:
    """X5: no spark-submit, one that the provider does not allow, no Kubernetes provider."""
    monkeypatch.setattr("airflow.providers.apache.spark.hooks.spark_submit.kube_client", None, raising=False)
    with pytest.raises((InvalidDeclaration, RunnerRefused), match=sentence) as refused:
        submit(**connection).run(spec()).result(30)
    assert "\n" not in str(refused.value)
    assert commands() == []


class Yarn(BaseHTTPRequestHandler):
    """As much of a ResourceManager as it takes to end an application."""

    asked: list[str] = []

    def do_GET(self) -> None:
        """Answer with the one application that has the tag."""
        self.asked.append(self.path)
        found = {"app": [{"id": "application_1_0001"}]} if "0.0%3A1&" in self.path else None
        self._say({"apps": found})

    def do_PUT(self) -> None:
        """Take the new state."""
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.asked.append(f"{self.path} {body}")
        self._say({})

    def _say(self, value: Any) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(value).encode())

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def yarn() -> Iterator[str]:
    """The address of a ResourceManager."""
    server = HTTPServer(("127.0.0.1", 0), Yarn)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_yarn_ends_an_application_by_its_tag(submit: Open, yarn: str, caplog: pytest.LogCaptureFixture) -> None:
    """By the ResourceManager's own interface; where it does not answer the log names the fence."""
    extra = {"deploy-mode": "cluster", "secrets_file": "/s", "yarn_resourcemanager_webapp_address": yarn}
    Yarn.asked.clear()
    submit(host="yarn", extra=extra).interrupt("submit:elsewhere:1", TAG)
    assert Yarn.asked[1] == '/ws/v1/cluster/apps/application_1_0001/state {"state": "KILLED"}'
    assert caplog.messages == []
    submit(host="yarn", extra=extra).interrupt("submit:elsewhere:1", TAG.replace(":1", ":2"))
    assert len(Yarn.asked) == 3, "one that is gone is not ended again"
    submit(host="yarn", extra={**extra, "yarn_resourcemanager_webapp_address": "127.0.0.1:9"}).interrupt("x", TAG)
    assert "could not be ended (ConnectionError): the sink's fence keeps it out" in caplog.text


def test_kubernetes_ends_a_driver_by_its_pods_name(submit: Open, commands: Callable[[], list[Any]]) -> None:
    """The name follows from the tag, so that any process can say it."""
    submit(**CASES["kubernetes-cluster"]).interrupt("submit:elsewhere:1", TAG)
    ((arguments, _),) = commands()
    assert arguments == [
        "--master",
        "k8s://https://kubernetes.default.svc:443",
        "--kill",
        "spark:bp-0123456789abcdef0123456789abcdef-0-0-1-driver",
    ]


def test_applications_have_no_page_for_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deferred lane leaves memory alone, and does not take a missing page for a closed gate."""
    extra = {"ui_url": "http://history:18080"}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK", json.dumps({"conn_type": "spark", "host": "yarn", "extra": extra}))
    assert memory_url("spark") is None
