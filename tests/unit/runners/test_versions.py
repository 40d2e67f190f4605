"""Which versions count as tried: those that the documentation shows, and the suite's own."""

import logging
from pathlib import Path

import pytest
from pyspark import __version__ as pyspark

from airflow_provider_backpressure.airflow_compat import AIRFLOW
from airflow_provider_backpressure.exceptions import RunnerRefused
from airflow_provider_backpressure.runners.versions import (
    OVER_CONNECT,
    SUBMITTED,
    check_server,
    minor,
    warn_untried_submit,
)

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "versions.md"
HERE = (".".join(map(str, AIRFLOW)), minor(pyspark))


def shown() -> set[tuple[str, str, str]]:
    """Return the cells of the page's first table that were equal, by minor versions."""
    lines = (line for line in PAGE.read_text().splitlines() if line.startswith("| "))
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    servers = [head.split()[-1] for head in rows[0][2:]]
    return {
        (minor(row[0]), minor(row[1]), minor(server))
        for row in rows[1:]
        for server, found in zip(servers, row[2:], strict=False)
        if found == "equal"
    }


def test_what_counts_as_tried_is_what_was_seen():
    assert shown() | {(*HERE, HERE[1])} == OVER_CONNECT
    assert {HERE} == SUBMITTED


@pytest.mark.parametrize("version", ["4.0.0", "4.1.0-preview2", "5.0.0", "dev", ""])
def test_what_may_work_is_not_refused(version):
    check_server(version, client="4.1.3", where="sc://spark:15002")
    with pytest.raises(RunnerRefused):
        check_server("3.5.9", client="4.1.3", where="sc://spark:15002")


def test_spark_submit_of_another_version_is_a_warning(caplog):
    caplog.set_level(logging.WARNING)
    warn_untried_submit(pyspark, where="yarn")
    assert caplog.messages == []
    warn_untried_submit("3.5.9", where="yarn")
    assert caplog.messages == [
        f"spark-submit of Spark 3.5.9 to yarn was not tried under Airflow {HERE[0]}: docs/reference/versions.md lists "
        "the versions that were."
    ]
