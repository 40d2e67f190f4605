"""Applications, up to the moment at which spark-submit would be started, and what is made of its end."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_backpressure.connectors.kafka.connect import SUBSTITUTE
from airflow_provider_backpressure.core.endpoints import Endpoint, endpoints_from_json
from airflow_provider_backpressure.core.snapshot.application_request import Request
from airflow_provider_backpressure.core.snapshot.spark_messages import (
    ChecksumSpec,
    Column,
    RangeSpec,
    ReadSpec,
    Slice,
    Transform,
    WriteSpec,
)
from airflow_provider_backpressure.exceptions import (
    InvalidDeclaration,
    PlanSuperseded,
    RangeFailed,
    RunnerRefused,
    RunnerUnavailable,
    to_text,
)
from airflow_provider_backpressure.runners.driver_process_and_files import Application
from airflow_provider_backpressure.runners.executor_memory import Target
from airflow_provider_backpressure.runners.session_settings import TIME_ZONE
from airflow_provider_backpressure.runners.submit_runner import SubmitRunner

PASSWORD = "hunter2-is-secret"
COLUMNS = (Column(name="id", type="bigint"),)
READ = ReadSpec(kind="postgres", conn_id="source", columns=COLUMNS)
ENDPOINTS = {
    name: Endpoint(conn_id=name, host="db", port=5432, database="d", user="u", password=PASSWORD)
    for name in ("source", "sink", "other")
}
PIECE = {"slice_id": "0.0", "rows": 5, "bytes": 40, "checksum": "pgcopy-xxh3:0000000000000001"}
TAG = "bp:0123456789abcdef0123456789abcdef:0.0:1"


def spec(**changes: Any) -> RangeSpec:
    """One attempt of one range."""
    write = WriteSpec(
        kind="postgres",
        conn_id="sink",
        target="raw.t",
        columns=COLUMNS,
        mode="append",
        key=(),
        plan_table="raw.backpressure_plan",
        commit_table="raw.backpressure_commit",
        fence="raw.t",
    )
    values: dict[str, Any] = {
        "hydration_id": "h",
        "plan_id": "p",
        "epoch": 1,
        "seq": 0,
        "attempt": 1,
        "tag": TAG,
        "path": "copy",
        "read": READ,
        "write": write,
        "slices": (Slice(slice_id="0.0", query="SELECT 1", bounds={}),),
    }
    return RangeSpec(**{**values, **changes})


@dataclass(kw_only=True)
class Recorder:
    """A submitter that keeps what it is handed, with the files as they lie there meanwhile, and answers."""

    answer: Callable[[Request], Any] = lambda request: {"slices": [PIECE] * max(1, len(request.checksums))}
    output: str | None = None
    applications: list[Application] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    logins: list[dict[str, Endpoint]] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)

    def submit(self, application: Application) -> str | None:
        """See ``Submitter.submit``."""
        self.applications.append(application)
        request = application.folder / "request.json"
        self.requests.append(Request.from_json(request.read_text()))
        assert PASSWORD not in request.read_text() + repr(application)
        if len(application.arguments) == 3:
            _, logins, answer = map(Path, application.arguments)
            assert logins.stat().st_mode & 0o777 == 0o600
            assert logins.parent.parent.stat().st_mode & 0o777 == 0o700
            self.logins.append(endpoints_from_json(logins.read_text()))
            said = self.answer(self.requests[-1])
            if said is not None:
                answer.write_text(json.dumps(said))
        return self.output

    def end(self, name: str) -> bool:
        """See ``Submitter.end``."""
        self.ended.append(name)
        return False


def runner(tmp_path: Path, recorder: Recorder, master: str = "local[2]", **values: Any) -> SubmitRunner:
    """A runner in a folder of its own."""
    function = values.pop("transform", None)
    return SubmitRunner(
        Target(master=master, **values), recorder, ENDPOINTS, transform=function, root=tmp_path / "applications"
    )


def test_a_range_travels_by_files_and_leaves_none(tmp_path: Path) -> None:
    """Only the logins it needs, readable by this account alone; the tag is the application's name."""
    recorder = Recorder()
    given = runner(tmp_path, recorder)
    result = given.run(spec()).result(10)
    assert (result.rows, result.seq, result.attempt) == (5, 0, 1)
    (application,) = recorder.applications
    assert application.name == TAG
    assert Path(application.file).name == "range_job.py"
    assert Path(application.file).exists()
    assert recorder.requests[0].spec == spec()
    assert recorder.logins == [{"source": ENDPOINTS["source"], "sink": ENDPOINTS["sink"]}]
    assert list((tmp_path / "applications").iterdir()) == []
    assert given.session_id.startswith(f"submit:{socket.gethostname()}:")


def test_a_transforms_zone_is_that_of_its_plan_or_of_the_connection(tmp_path: Path) -> None:
    """A transform without one has the server's: so a plan of an earlier release had it. No transform: UTC."""
    recorder = Recorder(answer=lambda request: {"columns": [], "slices": [PIECE]})
    given, transform = runner(tmp_path, recorder), Transform(sql="SELECT 1", zone="UTC")
    given.describe(READ, transform)
    given.run(spec(transform=transform, path="frame")).result(10)
    given.run(spec(transform=replace(transform, zone=None), path="frame")).result(10)
    other = runner(tmp_path, recorder, conf={TIME_ZONE: "Europe/Berlin"})
    other.run(spec(transform=transform, path="frame")).result(10)
    given.run(spec()).result(10)
    zones = [application.conf.get(TIME_ZONE) for application in recorder.applications]
    assert zones == ["UTC", "UTC", None, "Europe/Berlin", "UTC"]


@pytest.mark.statement("X5")
@pytest.mark.parametrize(
    ("answer", "output", "kind", "sentence"),
    [
        (
            {"error": f"Py4JJavaError ... {to_text(PlanSuperseded('A newer plan has it.'))} at x", "type": "E"},
            "Error code is: 1.",
            PlanSuperseded,
            "A newer plan has it.",
        ),
        (
            {"error": "[PARSE_SYNTAX_ERROR] Syntax error at or near 'FORM'.", "type": "ParseException"},
            "Error code is: 1.",
            RunnerRefused,
            "Spark refused the transform: [PARSE_SYNTAX_ERROR] Syntax error at or near 'FORM'.",
        ),
        (
            {
                "error": "An error occurred while calling o61.collectToPython.\n"
                ": org.apache.spark.SparkException: Job aborted due to stage failure: executor 1 was lost\n\tat x",
                "type": "Py4JJavaError",
            },
            "Error code is: 1.",
            RangeFailed,
            "The Spark application failed: org.apache.spark.SparkException: Job aborted due to stage failure: "
            "executor 1 was lost",
        ),
        (
            None,
            "Cannot execute: spark-submit --master local[2]. Error code is: 1.\nLast spark-submit output:\n"
            "JAVA_HOME is not set",
            RunnerRefused,
            "spark-submit finds no Java on this host: install Java 17 or 21, or set JAVA_HOME.",
        ),
        (
            None,
            "Could not find valid SPARK_HOME while searching ['/venv/bin']\nspark-submit: line 27: /bin/spark-class",
            RunnerRefused,
            "spark-submit finds no Spark on this host: set SPARK_HOME to the installation that it belongs to.",
        ),
        (
            None,
            "Cannot execute. Error code is: 1.\nWARN x\n24/01/01 ERROR StandaloneSchedulerBackend: Application has been"
            " killed. Reason: All masters are unresponsive! Giving up.",
            RunnerUnavailable,
            "The Spark master local[2] does not answer: 24/01/01 ERROR StandaloneSchedulerBackend: Application has been"
            " killed. Reason: All masters are unresponsive! Giving up.",
        ),
        (
            None,
            'Cannot execute. Error code is: 1.\nException in thread "main" org.apache.spark.SparkException: no such jar'
            "\n\tat x",
            RangeFailed,
            "The Spark application failed: org.apache.spark.SparkException: no such jar",
        ),
        (None, None, RangeFailed, "The Spark application failed: it ended without an answer"),
    ],
)
def test_the_end_of_an_application_is_one_sentence(
    tmp_path: Path, answer: Any, output: str | None, kind: type[Exception], sentence: str
) -> None:
    """X5: an error of ours as it was raised, anything else in one line."""
    recorder = Recorder(answer=lambda request: answer, output=output)
    with pytest.raises(kind) as raised:
        runner(tmp_path, recorder).run(spec()).result(10)
    assert type(raised.value) is kind
    assert str(raised.value) == sentence
    assert list((tmp_path / "applications").iterdir()) == []


@pytest.mark.statement("X5")
def test_an_unreachable_master_is_one_sentence_at_once(tmp_path: Path) -> None:
    """X5: spark-submit itself would try for a minute."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        master = f"spark://127.0.0.1:{free.getsockname()[1]}"
    recorder = Recorder()
    with pytest.raises(RunnerUnavailable) as raised:
        runner(tmp_path, recorder, master).run(spec()).result(10)
    assert str(raised.value) == f"The Spark master at {master} cannot be reached: Connection refused."
    assert recorder.applications == []


@pytest.mark.statement("X5")
@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"master": "yarn", "deploy_mode": "cluster"}, "no way to pass a password to the driver"),
        ({"master": "k8s://https://k", "deploy_mode": "cluster"}, "no way to pass a password to the driver"),
        ({"master": "spark://m:7077", "deploy_mode": "cluster", "secrets_file": "/s"}, "no Python application in clu"),
        ({"master": "local", "deploy_mode": "cluster", "secrets_file": "/s"}, "no Python application in cluster mode"),
        ({"master": "yarn", "deploy_mode": "both"}, "must be client or cluster, not 'both'"),
        ({"master": "yarn", "conf": {"spark.executor.memory": "much"}}, "'much' is not a size"),
    ],
)
def test_what_could_only_fail_later_is_refused_at_once(values: dict[str, Any], sentence: str) -> None:
    """X5: cluster mode without a way to hand over a secret, above all."""
    with pytest.raises((RunnerRefused, InvalidDeclaration), match=sentence):
        Target(**values)


def test_in_cluster_mode_the_driver_reads_a_mounted_file_and_answers_nothing(tmp_path: Path) -> None:
    """No login leaves this host; the sink's marker tells alone."""
    recorder = Recorder()
    values = {"deploy_mode": "cluster", "secrets_file": "/run/secrets/logins.json"}
    given = runner(tmp_path, recorder, "yarn", **values)
    assert not given.returns_results
    assert given.run(spec()).result(10).slices == ()
    (application,) = recorder.applications
    assert application.arguments == ("request.json", "/run/secrets/logins.json")
    assert [Path(file).name for file in application.files] == ["request.json"]
    assert not application.here
    assert application.conf["spark.yarn.tags"] == TAG
    assert set(given.probe(["psycopg"]).modules.values()) == {"not looked at"}


def test_what_needs_an_answer_runs_on_this_host_in_cluster_mode(tmp_path: Path) -> None:
    """Checksums, and the columns that a transform makes."""
    recorder = Recorder(answer=lambda request: {"columns": [{"name": "n", "type": "bigint"}], "slices": [PIECE]})
    given = runner(tmp_path, recorder, "yarn", deploy_mode="cluster", secrets_file="/s")
    assert given.describe(READ, Transform(sql="SELECT 1 AS n")) == (Column(name="n", type="bigint"),)
    assert given.checksum(ChecksumSpec(kind="postgres", conn_id="sink", query="q")).result(10).rows == 5
    assert [
        (each.here, request.master) for each, request in zip(recorder.applications, recorder.requests, strict=True)
    ] == [
        (True, "local[1]"),
        (True, "local[*]"),
    ]


def test_checksums_asked_for_together_share_an_application(tmp_path: Path) -> None:
    """Each gets its own result, in its own order."""

    def answer(request: Request) -> Any:
        return {"slices": [{**PIECE, "rows": int(each.query)} for each in request.checksums]}

    recorder = Recorder(answer=answer)
    given = runner(tmp_path, recorder)
    asked = [given.checksum(ChecksumSpec(kind="postgres", conn_id="sink", query=str(n))) for n in range(20)]
    assert [each.result(10).rows for each in asked] == list(range(20))
    assert len(recorder.applications) == 1
    assert recorder.logins == [{"sink": ENDPOINTS["sink"]}]
    assert given.checksum(ChecksumSpec(kind="postgres", conn_id="other", query="7")).result(10).rows == 7
    recorder.answer = lambda request: {"error": "boom", "type": "E"}
    with pytest.raises(RangeFailed, match="boom"):
        given.checksum(ChecksumSpec(kind="postgres", conn_id="other", query="7")).result(10)


def test_an_application_only_for_what_cannot_be_known_without(tmp_path: Path) -> None:
    """On this host the executors' Python is this one; elsewhere a good answer is kept, a bad one is not."""
    found = {"python": "3.11", "modules": {"psycopg": "3", "pyarrow": "15", "xxhash": None}}
    recorder = Recorder(answer=lambda request: found)
    assert runner(tmp_path, recorder).probe(["pyarrow"]).modules["pyarrow"]
    assert recorder.applications == []
    elsewhere = {"master": "yarn"}
    for missing, applications in (("xxhash", 1), ("xxhash", 2), (None, 3), (None, 3)):
        found["modules"] = {"psycopg": "3", "xxhash": None if missing else "3"}
        assert runner(tmp_path, recorder, **elsewhere).probe(["pyarrow"]).modules == found["modules"]
        assert len(recorder.applications) == applications


def test_a_package_that_the_executors_lack_travels_with_a_range(tmp_path: Path) -> None:
    """As a file that any Python can import from, with nothing else installed."""
    recorder = Recorder()
    runner(tmp_path, recorder).run(spec()).result(10)
    lacking = replace(READ, substitutes=(SUBSTITUTE,))
    runner(tmp_path, recorder).run(spec(read=lacking)).result(10)
    own, both = (application.py_files for application in recorder.applications)
    assert both[:1] == own
    check = "import sys; sys.path.insert(0, sys.argv[1]); import kafka; print(kafka.KafkaConsumer.__module__)"
    done = subprocess.run([sys.executable, "-S", "-c", check, both[1]], capture_output=True, text=True, check=True)
    assert done.stdout == "kafka.consumer.group\n"


def in_a_module(frame: Any) -> Any:
    """A transform that another process can import."""
    return frame


@pytest.mark.statement("X5")
def test_a_function_travels_by_its_name_or_not_at_all(tmp_path: Path) -> None:
    """X5: what nobody else can import is refused before anything is submitted, when the plan is made."""
    recorder = Recorder(answer=lambda request: {"columns": [], "slices": [PIECE]})
    handed = Transform(python="")
    given = runner(tmp_path, recorder, transform=in_a_module)
    given.describe(READ, handed)
    given.run(spec(transform=handed, path="frame")).result(10)
    names = {recorder.requests[0].transform, recorder.requests[1].spec.transform}
    assert names == {Transform(python=f"{__name__}:in_a_module")}

    def local(frame: Any) -> Any:
        return frame

    foreign = type(in_a_module)(in_a_module.__code__, {}, "in_a_module")
    foreign.__module__ = "unusual_prefix_1234_dag"
    for function in (local, lambda frame: frame, foreign):
        with pytest.raises(RunnerRefused, match="cannot travel to an application: give a SELECT, or a function at"):
            runner(tmp_path, recorder, transform=function).describe(READ, handed)
    assert len(recorder.applications) == 2


def test_an_application_is_ended_before_it_began(tmp_path: Path) -> None:
    """What waits for its turn never starts; what runs is over when the interrupt returns."""
    begun, over = threading.Event(), threading.Event()

    class Slow(Recorder):
        def submit(self, application: Application) -> str | None:
            begun.set()
            assert over.wait(10)
            return "Error code is: 143."

        def end(self, name: str) -> bool:
            over.set()
            return True

    given = runner(tmp_path, Slow())
    job = given.run(spec())
    assert begun.wait(10)
    given.interrupt(given.session_id, TAG)
    with pytest.raises(RangeFailed, match=r"^The Spark application was ended\.$"):
        job.result(1)
    given.close()
    given.close()


def test_what_another_host_submitted_is_left_to_the_fence(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The log says so; on this host nothing found means that it is over."""
    given = runner(tmp_path, Recorder())
    given.interrupt(given.session_id, TAG)
    assert caplog.messages == []
    given.interrupt("submit:elsewhere:1", TAG)
    assert caplog.messages == [f"{TAG} was submitted elsewhere (submit:elsewhere:1): the sink's fence keeps it out."]


def test_each_range_has_memory_of_its_own(tmp_path: Path) -> None:
    """Heap and overhead by the connection's properties; nothing is in use before it runs."""
    reading = runner(tmp_path, Recorder(), "yarn", conf={"spark.executor.memory": "4g"}).memory()
    assert reading is not None
    assert (reading.isolated, reading.used_bytes, reading.age_seconds) == (True, 0, 0.0)
    assert reading.limit_bytes == int(4.4 * 2**30)


@pytest.mark.statement("X5")
def test_a_folder_that_others_can_read_is_refused(tmp_path: Path) -> None:
    """X5: no password is written there."""
    (tmp_path / "applications").mkdir(mode=0o755)
    recorder = Recorder()
    with pytest.raises(RunnerRefused, match="must be a folder of this account with mode 0700"):
        runner(tmp_path, recorder).run(spec()).result(10)
    assert recorder.applications == []
