"""Runners, by the type of the Airflow connection to Spark."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from airflow.sdk import Connection

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.gate.signals import MemoryReading
from airflow_provider_backpressure.core.ports import Runner
from airflow_provider_backpressure.exceptions import InvalidDeclaration
from airflow_provider_backpressure.hooks.endpoints.connection import connection


@dataclass(frozen=True, kw_only=True)
class RunnerRequest:
    """What a runner is opened with."""

    connection: Connection
    extra: Mapping[str, Any]
    endpoints: Mapping[str, Endpoint]
    """Databases that its jobs may reach, by connection id."""
    transform: Callable[..., Any] | None = None


def _connect(request: RunnerRequest) -> Runner:
    address = remote(request.connection, request.extra)
    from airflow_provider_backpressure.runners.connect import ConnectRunner

    return ConnectRunner(
        address,
        request.endpoints,
        transform=request.transform,
        ui_url=_ui_url(request.extra),
    )


def _submit(request: RunnerRequest) -> Runner:
    from airflow_provider_backpressure.hooks.spark_submit import HookSubmitter, target
    from airflow_provider_backpressure.runners.submit import SubmitRunner

    place = target(request.connection, request.extra)
    submitter = HookSubmitter(
        conn_id=request.connection.conn_id,
        target=place,
        binary=request.extra.get("spark-binary") or "spark-submit",
        yarn_address=_web_address(request.extra.get("yarn_resourcemanager_webapp_address")),
    )
    return SubmitRunner(place, submitter, request.endpoints, transform=request.transform)


RUNNERS: dict[str, Callable[[RunnerRequest], Runner]] = {"spark_connect": _connect, "spark": _submit}
"""How to open a runner, by connection type."""


def open_runner(
    conn_id: str, *, endpoints: Mapping[str, Endpoint], transform: Callable[..., Any] | None = None
) -> Runner:
    """Open the runner of a connection; ``RunnerRefused`` where ranges cannot be run that way."""
    found = connection(conn_id, *RUNNERS)
    request = RunnerRequest(connection=found, extra=found.extra_dejson, endpoints=endpoints, transform=transform)
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
    """Return the address of a Spark Connect server, ``sc://host:port/;…``, with user, token and TLS as parameters."""
    host = (found.host or "").removeprefix("sc://")
    if not host or "/" in host:
        raise InvalidDeclaration(f"The Airflow connection {found.conn_id!r} names no host of a Spark Connect server.")
    address = f"sc://{host}:{found.port}" if found.port else f"sc://{host}"
    parameters = {"user_id": found.login, "token": found.password}
    text = "".join(f";{name}={quote(value, safe='')}" for name, value in parameters.items() if value)
    if _truth(extra.get("use_ssl")):
        text += ";use_ssl=true"
    return f"{address}/{text}"


def _truth(value: object) -> bool:
    return str(value).lower() in ("true", "1", "yes") if value is not None else False


def _web_address(text: str | None) -> str | None:
    address = (text or "").strip().rstrip("/")
    return address if not address or "://" in address else f"http://{address}"


def _ui_url(extra: Mapping[str, Any]) -> str | None:
    return extra.get("ui_url") or None
