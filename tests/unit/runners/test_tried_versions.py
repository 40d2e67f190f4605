"""Which versions count as tried: those that the documentation shows, and the suite's own."""

import logging
import re
from pathlib import Path

import pytest
from pyspark import __version__ as pyspark

from airflow_provider_backpressure.airflow_compat import AIRFLOW
from airflow_provider_backpressure.exceptions import RunnerRefused
from airflow_provider_backpressure.runners.tried_versions import (
    OVER_CONNECT,
    SUBMITTED,
    check_server,
    minor,
    warn_untried_submit,
)

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "versions.md"
HERE = (".".join(map(str, AIRFLOW)), minor(pyspark))


def shown() -> tuple[set[tuple[str, ...]], set[tuple[str, ...]]]:
    """Return the cells that were equal, by minor versions: over Spark Connect with the client, and by spark-submit."""
    parts = PAGE.read_text().split("\n\n")
    connect, submit = (_cells(part) for part in parts if re.match(r"\| Airflow \| (Spark Connect|spark-submit)", part))
    clients = {
        (airflow, minor(client), server)
        for (airflow, server), found in connect.items()
        if found.startswith("equal")
        for client in re.findall(r"\d[.\d]+", found)
    }
    return clients, {cell for cell, found in submit.items() if found.startswith("equal")}


def _cells(table: str) -> dict[tuple[str, str], str]:
    """Return what a table says of each Airflow (rows) and Spark (columns)."""
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines())
    servers = [minor(name.split()[-1]) for name in head[1:]]
    return {
        (minor(airflow), server): cell for airflow, *found in rows for server, cell in zip(servers, found, strict=True)
    }


@pytest.mark.statement("V2")
def test_what_counts_as_tried_is_what_was_seen():
    connect, submit = shown()
    assert connect | {(*HERE, HERE[1])} == OVER_CONNECT
    assert submit | {HERE} == SUBMITTED


@pytest.mark.parametrize("version", ["4.0.0", "4.1.0-preview2", "5.0.0", "dev", ""])
def test_what_may_work_is_not_refused(version):
    check_server(version, client="4.1.3", where="sc://spark:15002")
    with pytest.raises(RunnerRefused):
        check_server("3.5.9", client="4.1.3", where="sc://spark:15002")


def test_spark_submit_of_another_version_is_a_warning(caplog):
    caplog.set_level(logging.WARNING)
    warn_untried_submit(pyspark, where="yarn")
    assert caplog.messages == []
    warn_untried_submit("3.4.9", where="yarn")
    assert caplog.messages == [
        f"spark-submit of Spark 3.4.9 to yarn was not tried under Airflow {HERE[0]}: docs/reference/versions.md lists "
        "the versions that were."
    ]
