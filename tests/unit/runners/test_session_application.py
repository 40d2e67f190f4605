"""The application that serves a session: who starts it, who shares it, and how it ends."""

import fcntl
import json
import multiprocessing
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_backpressure.core.snapshot.application_request import HELD, Request
from airflow_provider_backpressure.exceptions import BackpressureError, RunnerRefused, RunnerUnavailable
from airflow_provider_backpressure.runners.driver_process_and_files import Application
from airflow_provider_backpressure.runners.executor_memory import Target
from airflow_provider_backpressure.runners.session_application import TOKEN_VARIABLE, Use, hold, open_server
from airflow_provider_backpressure.spark.served_session import wait_until_free

TARGET = Target(master="spark://nowhere:7077", conf={"spark.sql.catalog.lake": "x"})


@dataclass(kw_only=True)
class Server:
    """A submitter whose application answers with a port, and ends when it is let go or told to."""

    answer: Callable[[], Any] = lambda: {"port": 4711}
    output: str | None = None
    applications: list[Application] = field(default_factory=list)
    dying: threading.Event = field(default_factory=threading.Event)
    ended: int = 0

    def submit(self, application: Application) -> str | None:
        """See ``Submitter.submit``. The lock of a process does not keep out its own threads, so a child waits."""
        self.applications.append(application)
        _, _, answer = map(Path, application.arguments)
        said = self.answer()
        part = answer.with_suffix(".part")
        part.write_text(json.dumps(said))
        if said:
            part.replace(answer)
        if "port" in said:
            child = _spawn(_wait, application.folder / HELD)
            while child.is_alive() and not self.dying.is_set():
                child.join(0.02)
            child.kill()
            child.join()
        self.ended += 1
        return self.output

    def end(self, name: str) -> bool:
        """See ``Submitter.end``."""
        return False


def _spawn(function: Callable[..., None], *arguments: Any) -> Any:
    child = multiprocessing.get_context("spawn").Process(target=function, args=arguments)
    child.start()
    return child


def _wait(path: Path) -> None:
    wait_until_free(path)


def _hold(path: Path, held: Any, over: Any) -> None:
    with hold(path):
        held.set()
        over.wait(60)


@pytest.mark.statement("X5")
def test_users_share_an_application_and_the_last_one_ends_it(tmp_path: Path) -> None:
    """X5: on this host whatever the master is, with a token that is in its environment alone."""
    server, root = Server(), tmp_path / "applications"
    first, second = open_server(TARGET, server, root), open_server(TARGET, server, root)
    assert server.applications == [], "nothing was asked yet"
    address = first.find_address()
    assert second.find_address() == address
    (application,) = server.applications
    token = application.environment[TOKEN_VARIABLE]
    assert address == f"sc://localhost:4711/;token={token}"
    assert len(token) > 30
    written = [path.read_text() for path in application.folder.iterdir() if path.is_file()]
    assert token not in repr(application) + repr((application.conf, application.arguments)) + "".join(written)
    request = Request.from_json((application.folder / "request.json").read_text())
    assert (request.kind, request.master, application.here) == ("session", "local[2]", True)
    first.close()
    first.close()
    assert server.ended == 0
    second.close()
    assert server.ended == 1
    assert list(root.iterdir()) == []


def test_an_application_that_is_gone_is_started_again(tmp_path: Path) -> None:
    """At the next question: what it had served is gone with it."""
    server = Server()
    use = open_server(TARGET, server, tmp_path / "applications")
    assert isinstance(use, Use)
    use.find_address()
    server.dying.set()
    run = use._application._running
    assert run is not None
    run.wait(20)
    server.dying.clear()
    use.find_address()
    assert len(server.applications) == 2
    assert len({each.environment[TOKEN_VARIABLE] for each in server.applications}) == 2
    use.close()
    assert server.ended == 2


@pytest.mark.statement("X5")
@pytest.mark.parametrize(
    ("answer", "output", "kind", "sentence"),
    [
        ({"error": "boom", "type": "E"}, None, RunnerUnavailable, "The Spark application failed: boom"),
        ({}, "JAVA_HOME is not set", RunnerRefused, "spark-submit finds no Java on this host: install Java 17 or 21"),
    ],
)
def test_a_start_that_fails_is_one_sentence(
    tmp_path: Path, answer: Any, output: str | None, kind: type[BackpressureError], sentence: str
) -> None:
    """X5: and leaves nothing."""
    server, root = Server(answer=lambda: answer, output=output), tmp_path / "applications"
    use = open_server(TARGET, server, root)
    with pytest.raises(kind, match=f"^{sentence}[^\n]*$"):
        use.find_address()
    assert list(root.iterdir()) == []
    use.close()


@pytest.mark.statement("X2")
@pytest.mark.fault(3)
def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    """X2: then the application ends by itself, though it is in a session of its own."""
    spawn, path = multiprocessing.get_context("spawn"), tmp_path / HELD
    held, over = spawn.Event(), spawn.Event()
    child = _spawn(_hold, path, held, over)
    assert held.wait(60)
    with path.open("r+") as file, pytest.raises(BlockingIOError):
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    child.kill()
    child.join()
    wait_until_free(path)
