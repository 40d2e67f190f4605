"""The ``[backpressure]`` section of Airflow's configuration."""

import re
from functools import cache
from urllib.parse import urlsplit

from airflow_provider_backpressure.airflow_compat import conf
from airflow_provider_backpressure.core import default_limits
from airflow_provider_backpressure.core.monitoring.source_observer import Kept
from airflow_provider_backpressure.core.poll_policy import PollPolicy
from airflow_provider_backpressure.core.ports.ledger import History
from airflow_provider_backpressure.core.push.hub import Paces
from airflow_provider_backpressure.exceptions import InvalidDeclaration

SECTION = "backpressure"
PAGE = "/backpressure"
"""The page's path within Airflow."""
VIEW, DAG_VIEW = "backpressure", "backpressure-of-dag"
"""What Airflow's own pages with the page in them are called: under the navigation, and the tab of a DAG."""


@cache
def environment() -> str:
    """Return the name of this Airflow; :class:`InvalidDeclaration` where an asset's URI could not hold it.

    It is looked up once in a process: a DAG of many tables asks for it with each of them.
    """
    name = conf.get(SECTION, "environment", fallback="default")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise InvalidDeclaration(
            f"[backpressure] environment must consist of letters, digits, dots, dashes and underscores, not {name!r}."
        )
    return name


def airflow_path() -> str:
    """Return the path under which Airflow is served, without a slash at its end; mostly empty."""
    return urlsplit(conf.get("api", "base_url", fallback="/")).path.rstrip("/")


def page_path() -> str:
    """Return the page's path, ``/backpressure/``; Airflow itself may be served under one."""
    return airflow_path() + PAGE + "/"


def inline_wait() -> float:
    """Return how many seconds a lane waits at a closed gate before it defers."""
    return conf.getfloat(SECTION, "inline_wait", fallback=default_limits.INLINE_WAIT_SECONDS)


def poll_policy() -> PollPolicy:
    """Return how lanes, triggers and sensors wait between two looks at the gate."""
    longest = conf.getfloat(SECTION, "poll_interval", fallback=default_limits.POLL_SECONDS)
    return PollPolicy(initial=min(0.2, longest), maximum=longest)


def samples_kept() -> Kept:
    """Return for how long samples are kept, and how many of a hydration; ``InvalidDeclaration`` for less than one."""
    days = conf.getfloat(SECTION, "sample_days", fallback=default_limits.SAMPLE_DAYS)
    rows = conf.getint(SECTION, "sample_rows", fallback=default_limits.SAMPLE_ROWS)
    if not days > 0 or rows < 1:
        raise InvalidDeclaration(f"[backpressure] sample_days and sample_rows must be above 0, not {days} and {rows}.")
    return Kept(seconds=days * 86400.0, rows=rows)


def history() -> History:
    """Return for how long plans that no run needs any more are kept, and how many; ``InvalidDeclaration`` below 0."""
    days = conf.getfloat(SECTION, "history_days", fallback=default_limits.HISTORY_DAYS)
    plans = conf.getint(SECTION, "history_plans", fallback=default_limits.HISTORY_PLANS)
    if not days >= 0 or plans < 0:
        raise InvalidDeclaration(
            f"[backpressure] history_days and history_plans must be at least 0, not {days} and {plans}."
        )
    return History(seconds=days * 86400.0, plans=plans)


def gate_closed_seconds() -> float:
    """Return for how long a gate may be closed before an event says so; ``InvalidDeclaration`` below 0."""
    seconds = conf.getfloat(SECTION, "gate_closed_seconds", fallback=default_limits.GATE_CLOSED_SECONDS)
    if not seconds >= 0:
        raise InvalidDeclaration(f"[backpressure] gate_closed_seconds must be at least 0, not {seconds}.")
    return seconds


def push() -> str:
    """Return how changes of a gate are pushed to waiting tasks, where the ledger's connection does not say."""
    return conf.get(SECTION, "push", fallback="auto")


def paces() -> Paces:
    """Return how often a process reads a gate that stays closed."""
    return Paces(normal=poll_policy().maximum)
