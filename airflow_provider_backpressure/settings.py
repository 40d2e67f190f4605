"""The ``[backpressure]`` section of Airflow's configuration."""

import re

from airflow.sdk import conf

from airflow_provider_backpressure.core.polling import PollPolicy
from airflow_provider_backpressure.exceptions import InvalidDeclaration

SECTION = "backpressure"


def environment() -> str:
    """Return the name of this Airflow; :class:`InvalidDeclaration` where it could not stand in an asset's URI."""
    name = conf.get(SECTION, "environment", fallback="default")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise InvalidDeclaration(
            f"[backpressure] environment must consist of letters, digits, dots, dashes and underscores, not {name!r}."
        )
    return name


def inline_wait() -> float:
    """Return how many seconds a lane waits at a closed gate before it defers."""
    return conf.getfloat(SECTION, "inline_wait", fallback=30.0)


def poll_policy() -> PollPolicy:
    """Return how lanes, triggers and sensors wait between two looks at the gate."""
    longest = conf.getfloat(SECTION, "poll_interval", fallback=1.0)
    return PollPolicy(initial=min(0.2, longest), maximum=longest)
