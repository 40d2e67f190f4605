"""A submitted application: request and logins come as files, the answer goes into one.

Only the driver reads the logins; to its tasks they travel as in any job, inside the pickled function.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_backpressure.core.endpoints import Endpoint, endpoints_from_json
from airflow_provider_backpressure.core.snapshot.application_request import (
    CHECKSUMS,
    DESCRIBE,
    PROBE,
    RANGE,
    SESSION,
    Request,
)
from airflow_provider_backpressure.spark.job import describe, run_checksums, run_range
from airflow_provider_backpressure.spark.served_session import serve_session
from airflow_provider_backpressure.spark.task import probe_job, report_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Endpoints = Mapping[str, Endpoint]


def main(arguments: Sequence[str]) -> None:
    """Do what the request says. ``arguments``: request, logins, and where to put the answer if anyone reads it.

    With an answer the logins' file was written for this application alone, and is gone before the first task runs.
    An error is put there too, and then raised, so that the application fails.
    """
    request, logins, *answer = (Path(argument) for argument in arguments)
    text = logins.read_text()
    if answer:
        logins.unlink()
    try:
        with report_errors():
            asked = Request.from_json(request.read_text())
            if asked.kind == SESSION:
                serve_session(asked, answer[0].parent, partial(_write, answer))
                return
            found = answer_request(asked, endpoints_from_json(text))
    except Exception as error:
        _write(answer, {"error": str(error), "type": type(error).__name__})
        raise
    _write(answer, found)


def answer_request(request: Request, endpoints: Endpoints) -> dict[str, Any]:
    """Return the answer to a request, on a session that lives as long as it takes."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(request.master) if request.master else SparkSession.builder
    session = builder.getOrCreate()
    try:
        return ANSWERS[request.kind](session, request, endpoints)
    finally:
        session.stop()


def _range(session: "SparkSession", request: Request, endpoints: Endpoints) -> dict[str, Any]:
    assert request.spec is not None
    return {"slices": [asdict(piece) for piece in run_range(session, request.spec, endpoints).slices]}


def _checksums(session: "SparkSession", request: Request, endpoints: Endpoints) -> dict[str, Any]:
    return {"slices": [asdict(piece) for piece in run_checksums(session, request.checksums, endpoints)]}


def _describe(session: "SparkSession", request: Request, endpoints: Endpoints) -> dict[str, Any]:
    assert request.read is not None
    assert request.transform is not None
    return {"columns": [asdict(column) for column in describe(session, request.read, request.transform)]}


def _probe(session: "SparkSession", request: Request, endpoints: Endpoints) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(probe_job(session, request.modules).collect()[0].result)
    return {**found, "spark": session.version}


ANSWERS: Mapping[str, Callable[["SparkSession", Request, Endpoints], dict[str, Any]]] = {
    RANGE: _range,
    CHECKSUMS: _checksums,
    DESCRIBE: _describe,
    PROBE: _probe,
}


def _write(answer: Sequence[Path], value: Mapping[str, Any]) -> None:
    """Put the answer into its file in one step: who finds it finds it whole."""
    for path in answer:
        part = path.with_suffix(".part")
        part.write_text(json.dumps(value))
        os.replace(part, path)
