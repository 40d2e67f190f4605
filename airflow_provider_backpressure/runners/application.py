"""An application as spark-submit is handed it, with its files in a folder of its own."""

import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Protocol

from airflow_provider_backpressure.core.endpoints import Endpoint, endpoints_to_json
from airflow_provider_backpressure.core.snapshot.application_request import Request
from airflow_provider_backpressure.exceptions import RunnerRefused
from airflow_provider_backpressure.runners import code_shipping as shipment
from airflow_provider_backpressure.runners import driver_processes as processes
from airflow_provider_backpressure.runners.spark_master import DRIVER_PYTHON, PYTHON, Target
from airflow_provider_backpressure.runners.work_folders import ANSWER, LOGINS, REQUEST, private

JOBS = "airflow_provider_backpressure.spark_jobs"
DEFAULTS = {
    **shipment.SETTINGS,
    "spark.log.level": "WARN",
    "spark.port.maxRetries": "64",
    "spark.ui.showConsoleProgress": "false",
}
"""Properties of every application, where the connection sets none. Several run on a host, each with a page."""


@dataclass(frozen=True, kw_only=True)
class Application:
    """What is handed to spark-submit. None of it is secret."""

    name: str
    file: str
    arguments: tuple[str, ...]
    py_files: tuple[str, ...]
    files: tuple[str, ...] = ()
    conf: Mapping[str, str] = field(default_factory=dict)
    folder: Path
    """Where it runs."""
    here: bool = False
    """The driver stays on this host, whatever the deploy mode."""


class Submitter(Protocol):
    """The way to spark-submit. May be shared by threads."""

    def submit(self, application: Application) -> str | None:
        """Run an application to its end. Return what was said where it failed, ``None`` where it ended well."""
        ...

    def end(self, name: str) -> bool:
        """End an application whose driver runs on the cluster, by its name; whether there was one."""
        ...


def prepare_application(
    name: str, request: Request, folder: Path, *, target: Target, endpoints: Mapping[str, Endpoint], here: bool
) -> Application:
    """Write an application's files and return it. ``here``: its driver runs on this host and answers."""
    sent = private(folder / REQUEST, request.to_json())
    if here:
        logins = endpoints_to_json({conn_id: endpoints[conn_id] for conn_id in request.conn_ids})
        arguments = [str(sent), str(private(folder / LOGINS, logins)), str(folder / ANSWER)]
    else:
        arguments = [REQUEST, str(target.secrets_file)]
    return Application(
        name=name,
        file=application_file(),
        arguments=tuple(arguments),
        py_files=(str(shipment.shipment()), *_split_list(target.conf.get("spark.submit.pyFiles"))),
        files=() if here else (str(sent), *_split_list(target.conf.get("spark.files"))),
        conf={**DEFAULTS, **_own(target, folder, here=here), **target.conf, **target.marks(name)},
        folder=folder,
        here=here,
    )


def _own(target: Target, folder: Path, *, here: bool) -> dict[str, str]:
    own = {DRIVER_PYTHON: sys.executable} if here and target.own_python else {}
    if target.local:
        # Whatever becomes of it, nothing of it stays.
        own |= {PYTHON: sys.executable, "spark.local.dir": str(folder)}
    return own


@cache
def application_file() -> str:
    """Return the path of the application, wherever the package is installed."""
    found = importlib.util.find_spec(JOBS)
    if found is None or found.origin is None:
        raise RunnerRefused("The application for spark-submit is missing from this installation. Reinstall it.")
    return str(Path(found.origin).parent / processes.APPLICATION)


def _split_list(text: str | None) -> list[str]:
    return [part for part in (text or "").split(",") if part]
