"""A real Airflow on loopback, for the demo and the system tests: `airflow standalone` with its own home."""

import json
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dev import processes
from dev.servers.process import kill_all, working_below

USER = "admin"
PID_FILE = "standalone.pid"
HELPERS = r"<idle>|serve-logs"
"""What a scheduler's own processes without a task have on their command line."""
PARTS = ("metadatabase", "scheduler", "triggerer")


class AirflowError(Exception):
    """Airflow did not come up or refused a request; the sentence says where its log is."""


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(kw_only=True)
class Airflow:
    """One Airflow with its home folder; everything about it is found again from the folder."""

    home: Path
    dags: Path
    metadata_url: str
    """SQLAlchemy URL; kept in a file that only the owner can read, never in an argument or a variable."""
    connections: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Connections by id, as the local filesystem secrets backend reads them."""
    settings: dict[str, str] = field(default_factory=dict)
    """Further ``AIRFLOW__SECTION__KEY`` variables."""
    users: dict[str, str] = field(default_factory=lambda: {USER: "admin"})
    """Roles by name; all have the same password."""
    python: str = sys.executable
    """Interpreter of its environment."""
    port: int = 0
    password: str = ""
    _tokens: dict[str, str] = field(default_factory=dict)
    _processes: "dict[str, subprocess.Popen[bytes]]" = field(default_factory=dict)
    """What this object has started, by name: its end has to be taken note of."""

    def __post_init__(self) -> None:
        """Write the home's files, or take port and password from those that are there."""
        self.home.mkdir(parents=True, exist_ok=True)
        state = self.home / "state.json"
        if state.exists():
            kept = json.loads(state.read_text())
            self.port, self.password = kept["port"], kept["password"]
        else:
            self.port, self.password = free_port(), secrets.token_urlsafe(9)
            _private(state, json.dumps({"port": self.port, "password": self.password, "jwt": secrets.token_hex(32)}))
        self._jwt = json.loads(state.read_text())["jwt"]
        _private(self.home / "metadata.url", self.metadata_url)
        _private(self.home / "connections.json", json.dumps(self.connections))
        _private(self.home / "passwords.json", json.dumps(dict.fromkeys(self.users, self.password)))
        _private(self.home / "jwt.secret", self._jwt)

    @property
    def url(self) -> str:
        """Address of the page."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def _programs(self) -> Path:
        return Path(self.python).parent

    @property
    def environment(self) -> dict[str, str]:
        """Environment of every Airflow process of this home."""
        return {**os.environ, "PATH": f"{self._programs}{os.pathsep}{os.environ['PATH']}", **self._own_environment()}

    def write_environment(self, file: Path) -> None:
        """Write a file for a shell to `source`: its `airflow` is the one of this home. It holds no secret."""
        own = (f"export {name}={shlex.quote(value)}" for name, value in self._own_environment().items())
        file.write_text("\n".join([f'export PATH={shlex.quote(str(self._programs))}:"$PATH"', *own, ""]))

    def _own_environment(self) -> dict[str, str]:
        return {
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__PARALLELISM": "8",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{name}:{role}" for name, role in self.users.items()),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self.home / "passwords.json"),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_CMD": f"cat {self.home / 'metadata.url'}",
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API_AUTH__JWT_SECRET_CMD": f"cat {self.home / 'jwt.secret'}",
            "AIRFLOW__SECRETS__BACKEND": "airflow.secrets.local_filesystem.LocalFilesystemBackend",
            "AIRFLOW__SECRETS__BACKEND_KWARGS": json.dumps(
                {"connections_file_path": str(self.home / "connections.json")}
            ),
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "30",
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
            "PYTHONWARNINGS": "ignore",
            **self.settings,
        }

    def command(self, *words: str, check: bool = True) -> str:
        """Run `airflow …` to its end and return what it printed."""
        done = subprocess.run(
            [self.python, "-m", "airflow", *words],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if check and done.returncode != 0:
            raise AirflowError(f"`airflow {' '.join(words)}` failed:\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}")
        return done.stdout

    def running(self, parts: tuple[str, ...] = PARTS) -> bool:
        """Whether the page answers, and these parts are well."""
        try:
            health = self.request("GET", "/api/v2/monitor/health")
        except (OSError, AirflowError, ValueError):
            return False
        return all(health[part]["status"] == "healthy" for part in parts)

    def start(self, *, timeout: float = 180.0) -> None:
        """Start `airflow standalone` and wait until page, scheduler and triggerer are healthy."""
        if not self.running():
            self._start("standalone", PARTS, timeout)

    def start_page(self, *, timeout: float = 180.0) -> None:
        """Make the tables and start the API server alone: nothing is scheduled."""
        self.command("db", "migrate")
        self._start("api-server", PARTS[:1], timeout)

    def _start(self, command: str, parts: tuple[str, ...], timeout: float) -> None:
        log = self.home / "standalone.log"
        process = processes.start(
            [self.python, "-m", "airflow", command],
            pid_file=self.home / PID_FILE,
            log=log,
            environment=self.environment,
            cwd=self.home,
        )
        self._processes[command] = process
        deadline = time.monotonic() + timeout
        while not self.running(parts):
            if process.poll() is not None or time.monotonic() > deadline:
                raise AirflowError(f"Airflow did not come up; the end of {log}:\n{log.read_text()[-2000:]}")
            time.sleep(0.5)

    def kill(self, part: str, *, with_tasks: bool = False) -> None:
        """Kill ``scheduler`` or ``triggerer`` and what helps it, and its tasks only if asked for.

        Workers and the server of logs share the scheduler's connections, and while one of them lives the database keeps
        the locks that the scheduler held. So a worker that has a task may keep the next scheduler from its work.
        """
        own = self.home / f"{part}.pid"
        (pid,) = processes.leader(own) or processes.children(self.home / PID_FILE, part)
        helping = processes.children_of(pid, "" if with_tasks else HELPERS)
        for ended in (pid, *helping):
            os.kill(ended, signal.SIGKILL)
        if part in self._processes:
            self._processes.pop(part).wait(timeout=10)

    def restart(self, part: str) -> None:
        """Start a killed part again. What it takes over, and when, is Airflow's own affair."""
        self._processes[part] = processes.start(
            [self.python, "-m", "airflow", part, "--skip-serve-logs"],
            pid_file=self.home / f"{part}.pid",
            log=self.home / "standalone.log",
            environment=self.environment,
            cwd=self.home,
        )

    def stop(self) -> None:
        """End every process of this home."""
        for file in self.home.glob("*.pid"):
            processes.end(file)
        kill_all(lambda: working_below(self.home))
        while self._processes:
            self._processes.popitem()[1].wait(timeout=10)

    def request(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Ask the REST API as the administrator and return its JSON."""
        headers = {"Content-Type": "application/json"}
        if path.startswith(("/api/", "/backpressure/")) and "/monitor/" not in path:
            headers["Authorization"] = f"Bearer {self.token()}"
        request = urllib.request.Request(
            self.url + path,
            method=method,
            headers=headers,
            data=json.dumps(body).encode() if body is not None else None,
        )
        # On a busy machine the server may not answer in time; what only asks may ask again.
        for left in reversed(range(3 if method == "GET" else 1)):
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    return json.loads(answer.read() or b"null")
            except urllib.error.HTTPError as error:
                raise AirflowError(f"{method} {path} -> {error.code}: {error.read()[:500]!r}") from error
            except TimeoutError:
                if not left:
                    raise
        raise AssertionError("the last try returns or raises")

    def pause(self, dag_id: str, *, paused: bool = True) -> None:
        """Pause a DAG, or take its pause off."""
        self.request("PATCH", f"/api/v2/dags/{dag_id}", {"is_paused": paused})

    def token(self, user: str = USER) -> str:
        """Return what a user's requests carry."""
        if user not in self._tokens:
            answer = self.request("POST", "/auth/token", {"username": user, "password": self.password})
            self._tokens[user] = answer["access_token"]
        return self._tokens[user]

    def parse(self, dag_id: str) -> None:
        """Have a DAG's file parsed at once."""
        token = self.request("GET", f"/api/v2/dags/{dag_id}")["file_token"]
        self.request("PUT", f"/api/v2/parseDagFile/{token}")

    def wait_for_dag(self, dag_id: str, *, timeout: float = 120.0) -> None:
        """Wait until the DAG has been parsed, and take its pause off."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                self.pause(dag_id, paused=False)
                return
            except AirflowError:
                if time.monotonic() > deadline:
                    errors = self.request("GET", "/api/v2/importErrors")["import_errors"]
                    raise AirflowError(f"The DAG {dag_id} did not appear: {errors or 'no import error'}") from None
                time.sleep(0.5)

    def trigger(self, dag_id: str, conf: dict[str, Any] | None = None) -> str:
        """Trigger a DAG and return the run's id."""
        run = self.request("POST", f"/api/v2/dags/{dag_id}/dagRuns", {"logical_date": None, "conf": conf or {}})
        return str(run["dag_run_id"])

    def run_state(self, dag_id: str, run_id: str) -> str:
        """Return a run's state."""
        return str(self.request("GET", f"/api/v2/dags/{dag_id}/dagRuns/{run_id}")["state"])

    def task_states(self, dag_id: str, run_id: str) -> dict[str, str | None]:
        """Return the state of each task instance of a run, mapped ones as ``task[index]``."""
        instances = self.request("GET", f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances?limit=1000")
        return {
            one["task_id"] + (f"[{one['map_index']}]" if one["map_index"] >= 0 else ""): one["state"]
            for one in instances["task_instances"]
        }


def _private(path: Path, text: str) -> None:
    """Write a file that only the owner can read, from its first byte on."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
