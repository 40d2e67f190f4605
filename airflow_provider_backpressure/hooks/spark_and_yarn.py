"""Runners, by the type of the Airflow connection to Spark."""

import logging
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import requests
from airflow.providers.common.compat.sdk import AirflowException
from airflow.sdk import Connection

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.gate.signals import MemoryReading
from airflow_provider_backpressure.core.ports import Runner
from airflow_provider_backpressure.exceptions import InvalidDeclaration, RunnerRefused
from airflow_provider_backpressure.hooks.connection_types_and_fields import connection
from airflow_provider_backpressure.runners.driver_process_and_files import Application
from airflow_provider_backpressure.runners.executor_memory import CLIENT, Target, pod_name
from airflow_provider_backpressure.runners.submit_environment import make_environment


@dataclass(frozen=True, kw_only=True)
class RunnerRequest:
    """What a runner is opened with."""

    connection: Connection
    extra: Mapping[str, Any]
    endpoints: Mapping[str, Endpoint]
    """Databases that its jobs may reach, by connection id."""
    transform: Callable[..., Any] | None = None
    shares: bool = False
    """Whether small ranges share jobs, where the way to Spark allows that."""


def _connect(request: RunnerRequest) -> Runner:
    address = remote(request.connection, request.extra)
    from airflow_provider_backpressure.runners.connect_runner import ConnectRunner

    return ConnectRunner(
        address,
        request.endpoints,
        transform=request.transform,
        ui_url=_ui_url(request.extra),
        shares=request.shares,
    )


def _submit(request: RunnerRequest) -> Runner:
    from airflow_provider_backpressure.runners.submit_runner import SubmitRunner

    submitter = make_submitter(request.connection, request.extra)
    return SubmitRunner(submitter.target, submitter, request.endpoints, transform=request.transform)


RUNNERS: dict[str, Callable[[RunnerRequest], Runner]] = {"spark_connect": _connect, "spark": _submit}
"""How to open a runner, by connection type."""


def open_runner(
    conn_id: str,
    *,
    endpoints: Mapping[str, Endpoint],
    transform: Callable[..., Any] | None = None,
    shares: bool = False,
) -> Runner:
    """Open the runner of a connection; ``RunnerRefused`` where ranges cannot be run that way."""
    found = connection(conn_id, *RUNNERS)
    request = RunnerRequest(
        connection=found, extra=found.extra_dejson, endpoints=endpoints, transform=transform, shares=shares
    )
    return RUNNERS[str(found.conn_type)](request)


def memory_url(conn_id: str) -> str | None:
    """Return where Spark's monitoring page is, if the connection says so: there memory is read without a session.

    Applications have no page that is there between two of them.
    """
    found = connection(conn_id, *RUNNERS)
    return _ui_url(found.extra_dejson) if found.conn_type == "spark_connect" else None


def memory_reader(address: str) -> Callable[[], MemoryReading | None]:
    """Return a function that reads the fullest executor's memory from a monitoring page."""
    from airflow_provider_backpressure.runners.executor_memory import ExecutorMemory

    return ExecutorMemory(urls=[address]).read


def remote(found: Connection, extra: Mapping[str, Any]) -> str:
    """Return the address of a Spark Connect server, ``sc://host:port/;…``, with user, token, TLS and headers in it."""
    host = (found.host or "").removeprefix("sc://")
    if not host or "/" in host:
        raise InvalidDeclaration(f"The Airflow connection {found.conn_id!r} names no host of a Spark Connect server.")
    address = f"sc://{host}:{found.port}" if found.port else f"sc://{host}"
    parameters = {"user_id": found.login, "token": found.password}
    text = "".join(f";{name}={quote(value, safe='')}" for name, value in parameters.items() if value)
    if _truth(extra.get("use_ssl")):
        text += ";use_ssl=true"
    return f"{address}/{text}{_headers(found, extra)}"


RESERVED = frozenset({"user_id", "token", "use_ssl", "user_agent", "session_id", "grpc_max_message_size"})
"""Parameters of an address that Spark's client takes for itself; it sends every other one as a header."""


def _headers(found: Connection, extra: Mapping[str, Any]) -> str:
    headers = extra.get("headers") or {}
    if not isinstance(headers, Mapping):
        raise InvalidDeclaration(f"The extra headers of connection {found.conn_id!r} must be an object of texts.")
    for name in headers:
        if name in RESERVED or not re.fullmatch(r"[a-z0-9_.-]+", name):
            raise InvalidDeclaration(
                f"The extra headers of connection {found.conn_id!r} has {name!r}: a header's name has small letters, "
                f"digits, '_', '.' and '-', and is none of {', '.join(sorted(RESERVED))}."
            )
    return "".join(f";{name}={quote(str(value), safe='')}" for name, value in headers.items())


def _truth(value: object) -> bool:
    return str(value).lower() in ("true", "1", "yes") if value is not None else False


def _web_address(text: str | None) -> str | None:
    address = (text or "").strip().rstrip("/")
    return address if not address or "://" in address else f"http://{address}"


def _ui_url(extra: Mapping[str, Any]) -> str | None:
    return extra.get("ui_url") or None


log = logging.getLogger(__name__)

RUNNING = "NEW,NEW_SAVING,SUBMITTED,ACCEPTED,RUNNING"
HTTP_SECONDS = 10.0
KILL_SECONDS = 60.0


def target(found: Connection, extra: Mapping[str, Any]) -> Target:
    """Return where a connection of type ``spark`` leads to, its master read as the Spark provider reads it."""
    conf = extra.get("conf") or {}
    if not isinstance(conf, Mapping):
        raise InvalidDeclaration(f"The extra conf of connection {found.conn_id!r} must be an object of properties.")
    host = found.host or ""
    if not host:
        raise InvalidDeclaration(f"The Airflow connection {found.conn_id!r} names no Spark master in its host.")
    master = host if "://" in host or not found.port else f"spark://{host}"
    properties = {name: _text(value) for name, value in conf.items()}
    return Target(
        master=f"{master}:{found.port}" if found.port else master,
        deploy_mode=extra.get("deploy-mode") or CLIENT,
        conf=properties,
        namespace=properties.get("spark.kubernetes.namespace") or extra.get("namespace") or "default",
        secrets_file=extra.get("secrets_file") or None,
    )


@dataclass(frozen=True, kw_only=True)
class HookSubmitter:
    """The runner's way to spark-submit."""

    conn_id: str
    target: Target
    binary: str = "spark-submit"
    yarn_address: str | None = None
    """Of the ResourceManager's web service."""

    def submit(self, application: Application) -> str | None:
        """See :meth:`Submitter.submit`. ``RunnerRefused`` where there is no spark-submit."""
        hook = self._hook(application)
        try:
            # A session of its own: what ends the task does not end the application in passing.
            hook.submit(
                application.file,
                env={**make_environment(self.target), **application.environment},
                cwd=str(application.folder),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        except FileNotFoundError as error:
            raise RunnerRefused(
                f"There is no {self.binary} on this host's PATH: install Spark where Airflow's tasks run."
            ) from error
        except (AirflowException, RuntimeError) as error:
            return str(error)
        finally:
            # The hook leaves the pipe open until it is collected; a lane has many of them.
            if hook._submit_sp is not None:
                hook._submit_sp.stdout.close()
        return None

    def end(self, name: str) -> bool:
        """See :meth:`Submitter.end`. Where the cluster does not let us, the sink's fence has to do."""
        if not self.target.cluster:
            return False
        try:
            return self._end_on_yarn(name) if self.target.yarn else self._end_on_kubernetes(name)
        except (OSError, ValueError, LookupError, requests.RequestException, subprocess.TimeoutExpired) as error:
            log.warning("%s could not be ended (%s): the sink's fence keeps it out.", name, type(error).__name__)
            return False

    def _hook(self, application: Application) -> Any:
        from airflow.providers.apache.spark.hooks import spark_submit

        if self.target.kubernetes and getattr(spark_submit, "kube_client", None) is None:
            raise RunnerRefused(
                f"The connection {self.conn_id!r} leads to Kubernetes: install "
                "apache-airflow-providers-cncf-kubernetes for the Spark provider."
            )
        try:
            return spark_submit.SparkSubmitHook(
                conn_id=self.conn_id,
                name=application.name,
                conf=dict(application.conf),
                files=",".join(application.files) or None,
                py_files=",".join(application.py_files),
                application_args=list(application.arguments),
                deploy_mode=CLIENT if application.here else self.target.deploy_mode,
            )
        except ValueError as error:
            raise InvalidDeclaration(f"The Spark provider refuses connection {self.conn_id!r}: {error}") from error

    def _end_on_yarn(self, name: str) -> bool:
        if not self.yarn_address:
            log.warning("Extra yarn_resourcemanager_webapp_address is not set: the sink's fence keeps %s out.", name)
            return False
        apps = f"{self.yarn_address}/ws/v1/cluster/apps"
        answer = requests.get(apps, params={"applicationTags": name, "states": RUNNING}, timeout=HTTP_SECONDS)
        answer.raise_for_status()
        found = ((answer.json().get("apps") or {}).get("app")) or []
        for app in found:
            ended = requests.put(f"{apps}/{app['id']}/state", json={"state": "KILLED"}, timeout=HTTP_SECONDS)
            ended.raise_for_status()
        return bool(found)

    def _end_on_kubernetes(self, name: str) -> bool:
        place = f"{self.target.namespace}:{pod_name(name)}"
        done = subprocess.run(
            [self.binary, "--master", self.target.master, "--kill", place],
            env=make_environment(self.target),
            capture_output=True,
            timeout=KILL_SECONDS,
            check=False,
        )
        return done.returncode == 0


def make_submitter(found: Connection, extra: Mapping[str, Any]) -> HookSubmitter:
    """Return the way to spark-submit by a connection of type ``spark``."""
    return HookSubmitter(
        conn_id=found.conn_id,
        target=target(found, extra),
        binary=extra.get("spark-binary") or "spark-submit",
        yarn_address=_web_address(extra.get("yarn_resourcemanager_webapp_address")),
    )


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
