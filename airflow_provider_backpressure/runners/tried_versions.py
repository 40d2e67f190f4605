"""Which versions of Airflow, of Spark's client and of Spark itself run together."""

import logging
import re

from airflow_provider_backpressure.airflow_compat import AIRFLOW
from airflow_provider_backpressure.exceptions import RunnerRefused

log = logging.getLogger(__name__)

OVER_CONNECT = frozenset(
    {
        ("3.1", "4.0", "4.0"),
        ("3.1", "4.1", "4.1"),
        ("3.1", "4.2", "4.3"),
        ("3.2", "4.0", "4.1"),
        ("3.2", "4.1", "4.3"),
        ("3.2", "4.2", "4.0"),
        ("3.3", "4.0", "4.3"),
        ("3.3", "4.1", "4.0"),
        ("3.3", "4.1", "4.1"),
        ("3.3", "4.2", "4.1"),
        ("3.3", "4.2", "4.3"),
    }
)
"""Minor versions of Airflow, Spark's client and the Spark Connect server, as docs/reference/versions.md shows them."""
SUBMITTED = frozenset({(airflow, spark) for airflow in ("3.1", "3.2", "3.3") for spark in ("3.5", "4.0", "4.3")}) | {
    ("3.3", "4.1")
}
"""Minor versions of Airflow and of Spark under spark-submit, also from there."""
_MINOR = re.compile(r"(\d+)\.(\d+)")


def check_server(server: str, *, client: str, where: str) -> None:
    """Raise ``RunnerRefused`` where no client of this package can work with a Spark Connect server of this version."""
    if server.partition(".")[0] in ("1", "2", "3"):
        raise RunnerRefused(
            f"Spark Connect at {where} runs Spark {server}, and the client in Airflow is PySpark {client}, which needs "
            "Spark 4 there: run ranges on this cluster by spark-submit (a connection of the type spark), or upgrade it."
        )


def warn_untried(server: str, *, client: str, where: str) -> None:
    """Log a warning where nobody has tried this server with this client and this Airflow."""
    if (_airflow(), minor(client), minor(server)) not in OVER_CONNECT:
        log.warning(
            "Spark %s on Spark Connect at %s was not tried with PySpark %s under Airflow %s: "
            "docs/reference/versions.md lists the versions that were.",
            *(server, where, client, _airflow()),
        )


def warn_untried_submit(spark: str, *, where: str) -> None:
    """Log a warning where nobody has tried spark-submit of this version under this Airflow."""
    if (_airflow(), minor(spark)) not in SUBMITTED:
        log.warning(
            "spark-submit of Spark %s to %s was not tried under Airflow %s: docs/reference/versions.md lists the "
            "versions that were.",
            *(spark, where, _airflow()),
        )


def minor(version: str) -> str:
    """Return ``4.1`` of ``4.1.3`` or ``4.1.0-preview2``; the whole text where it is no version."""
    found = _MINOR.match(version)
    return found[0] if found else version


def _airflow() -> str:
    return ".".join(map(str, AIRFLOW))
