"""Python packages without which no task can work, and those that travel with the jobs where the executors lack them."""

import logging
from collections.abc import Iterable

from airflow_provider_backpressure.core.ports import ExecutorEnvironment
from airflow_provider_backpressure.core.snapshot.spark_messages import ReadSpec, Substitute
from airflow_provider_backpressure.exceptions import RunnerRefused

log = logging.getLogger(__name__)

NEEDED_MODULES = ("numpy", "pyarrow", "xxhash")
"""What every task imports on the executors."""


def find_substitutes(found: ExecutorEnvironment, read: ReadSpec, cluster: str) -> tuple[Substitute, ...]:
    """Return what has to travel with the jobs, and warn of what it costs."""
    needed = tuple(each for each in read.substitutes if each.module in find_missing(found))
    for each in needed:
        log.warning(
            "The executors of %s lack %s: %s travels with each job and reads instead, %s.",
            *(cluster, each.module, each.package, each.cost),
        )
    return needed


def find_missing(found: ExecutorEnvironment) -> list[str]:
    """Return the modules that the executors cannot import."""
    return [name for name, version in found.modules.items() if version is None]


def check_modules(found: ExecutorEnvironment, cluster: str, substitutes: Iterable[Substitute] = ()) -> None:
    """Raise ``RunnerRefused`` where the executors lack a module that a task imports and nothing takes its place."""
    replaced = {each.module for each in substitutes}
    missing = [name for name in find_missing(found) if name not in replaced]
    if missing:
        raise RunnerRefused(
            f"The executors of {cluster} lack the Python package{'s' * (len(missing) > 1)} "
            f"{', '.join(missing)}: install on every executor what `pip install {' '.join(missing)}` brings."
        )
