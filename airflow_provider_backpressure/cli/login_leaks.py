"""Whether Spark's own pages show logins: a canary is sent with a job, as ranges send theirs, and is looked for there.

The pages are made of the events that Spark writes to its event log. That is on the cluster's disks and not looked at.
"""

import json
import re
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import TimeoutError as TooLate
from contextlib import closing
from http.client import HTTPException

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.poll_policy import PollPolicy, SystemClock
from airflow_provider_backpressure.core.snapshot.spark_messages import ChecksumSpec
from airflow_provider_backpressure.exceptions import BackpressureError, RunnerRefused, RunnerUnavailable
from airflow_provider_backpressure.hooks.spark_and_yarn import open_runner
from airflow_provider_backpressure.runners.executor_memory import fetch_text

NAME = "backpressure-canary"
"""Connection, user and database of the login."""
JOB_SECONDS = 60.0
SHOWN_SECONDS = 30.0
"""Longest wait until the pages show the job: Spark's listeners are behind by moments."""
PAGE_SECONDS = 30.0
"""Longest wait for one page: a server that ran for weeks has many statements."""
ENVIRONMENT = "environment"
REST = (
    ENVIRONMENT,
    "executors",
    "jobs",
    "stages?details=true",
    "sql?details=true&planDescription=true&length=100000",
)
PAGES = ("connect/", "SQL/", "jobs/", "stages/", "environment/")
_REDACTED = "(redacted)"
_CLUSTERS = ("spark.sql.catalog.", "spark.hadoop.")
"""Beginnings of the settings that hold the cluster's own logins."""
_SECRET = re.compile(
    r"(password|passwd|pwd|secret|token|credential|secret[._-]?(access[._-]?)?key|account\.key\..*)$", re.IGNORECASE
)
_IN_ADDRESS = re.compile(r"//[^/@\s:]*:[^/@\s]+@|[?&;](password|passwd|pwd|token)=[^&;]", re.IGNORECASE)


def check_pages(cluster: str) -> Iterator[str]:
    """Yield what was found well; ``RunnerRefused`` names the pages, and the settings of catalogs, that show a login.

    Nothing is looked at over spark-submit, where each application takes its page with it.
    """
    from airflow_provider_backpressure.runners.connect_runner import ConnectRunner

    secret = make_secret()
    login = Endpoint(conn_id=NAME, host="127.0.0.1", port=1, database=NAME, user=NAME, password=secret)
    with closing(open_runner(cluster, endpoints={NAME: login})) as runner:
        if not isinstance(runner, ConnectRunner):
            return
        job = runner.checksum(ChecksumSpec(kind="postgres", conn_id=NAME, query="SELECT 1 AS one"))
        try:
            job.result(timeout=JOB_SECONDS)
        except (RunnerRefused, RunnerUnavailable):
            raise
        except TooLate:
            raise RunnerUnavailable(f"No task of {cluster} ran within {JOB_SECONDS:.0f} s.") from None
        except BackpressureError:
            pass  # Nothing listens there: the login has reached a task all the same.
        page = runner.find_page()
        if page is None:
            raise RunnerUnavailable(f"Spark's pages cannot be read: set the extra ui_url of {cluster!r} to them.")
        seen = PollPolicy().until(
            lambda: pages if _has(pages := read_pages(page), runner.session_id) else None,
            timeout=SHOWN_SECONDS,
            clock=SystemClock(),
        )
    if seen is None:
        raise RunnerUnavailable(f"The pages at {page} do not show this session: set the extra ui_url of {cluster!r}.")
    yield from judge_pages(seen, secret)


def judge_pages(pages: Mapping[str, str], secret: str) -> Iterator[str]:
    """Yield what was found well of pages that show the canary's job; raises as :func:`check_pages`."""
    leaks = [path for path, text in pages.items() if secret in text]
    if leaks:
        raise RunnerRefused(
            f"Spark shows the logins that jobs carry, on its pages {', '.join(leaks)}: close pages and event log to "
            "others, change the passwords that were used, and report it with the version of Spark."
        )
    yield f"A login that was sent with a job is on none of Spark's {len(pages)} pages."
    properties = dict(json.loads(pages[ENVIRONMENT])["sparkProperties"])
    shown = find_shown_logins(properties)
    if shown:
        raise RunnerRefused(
            f"Spark's pages show logins of the cluster, in the settings {', '.join(shown)}: let the server's "
            "spark.redaction.regex cover their names, keep logins out of addresses, and change these."
        )
    catalogs = find_catalogs(properties)
    if catalogs:
        yield f"They show no login of the catalogs {', '.join(catalogs)}."


def find_catalogs(properties: Mapping[str, str]) -> list[str]:
    """Return the names of the catalogs of a server's settings."""
    names = (name.removeprefix(_CLUSTERS[0]) for name in properties if name.startswith(_CLUSTERS[0]))
    return sorted(name for name in names if "." not in name)


def find_shown_logins(properties: Mapping[str, str]) -> list[str]:
    """Return the names of the settings that hold a login of the cluster's and are shown as they are."""
    own = ((name, value) for name, value in properties.items() if name.startswith(_CLUSTERS))
    return sorted(name for name, value in own if _shows_login(name, value))


def _shows_login(name: str, value: str) -> bool:
    if not value or _REDACTED in value:
        return False
    return bool(_SECRET.search(name) or _IN_ADDRESS.search(value))


def read_pages(page: str) -> dict[str, str]:
    """Return what Spark shows, by path. ``page``: of the application, below the REST interface.

    ``RunnerUnavailable`` where one does not answer.
    """
    root = page.partition("/api/v1/")[0]
    addresses = {**{path: f"{page}/{path}" for path in REST}, **{path: f"{root}/{path}" for path in PAGES}}
    try:
        return {path: fetch_text(address, seconds=PAGE_SECONDS) for path, address in addresses.items()}
    except (OSError, ValueError, HTTPException) as error:
        raise RunnerUnavailable(f"A page of Spark at {root} cannot be read: {error}") from error


def make_secret() -> str:
    """Return a password that nobody has, of letters and digits alone: no page writes it otherwise."""
    return f"canary{uuid.uuid4().hex}"


def _has(pages: Mapping[str, str], text: str) -> bool:
    return any(text in each for each in pages.values())
