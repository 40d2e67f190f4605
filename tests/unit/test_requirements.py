"""What setup.cfg asks for is what the package imports, and holds the versions that the suite runs under."""

import ast
import configparser
import re
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions, requires, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "airflow_provider_backpressure"
WITH_AIRFLOW = {"fastapi", "httpx", "pydantic", "requests", "starlette"}
"""What Airflow's own distribution asks for by name: it comes with it, in the version that it can use."""
WITH_OTHERS = {
    "airflow": "apache-airflow",
    "botocore": "boto3",
    "grpc": "pyspark-client",
    "openlineage": "apache-airflow-providers-openlineage",
    "pyspark": "pyspark-client",
}
"""What belongs to a distribution that brings it along, or that several bring."""


def options() -> configparser.ConfigParser:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    return config


def requirements(section: str, name: str) -> dict[str, Requirement]:
    """Return what an option lists, by name."""
    lines = (line for line in options()[section][name].splitlines() if line)
    return {canonicalize_name(one.name): one for one in map(Requirement, lines)}


EXTRAS = [name for name in options()["options.extras_require"] if name not in ("dev", "all")]
RANGES = [
    pytest.param(requirement, id=str(requirement))
    for where in (("options", "install_requires"), *(("options.extras_require", name) for name in EXTRAS))
    for requirement in requirements(*where).values()
]


def imported() -> Iterator[str]:
    """Yield the modules of others that any file of the package imports, anywhere in it."""
    for path in (ROOT / PACKAGE).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level and node.module:
                names = [node.module]
            yield from (top for name in names if (top := name.partition(".")[0]) not in sys.stdlib_module_names)


def test_what_is_imported_is_asked_for():
    """By the package itself, by an extra, or by Airflow's core, which says so by name."""
    asked = {name for where in ("install_requires",) for name in requirements("options", where)}
    asked |= {name for extra in EXTRAS for name in requirements("options.extras_require", extra)}
    core = {canonicalize_name(Requirement(line).name) for line in requires("apache-airflow-core") or ()}
    assert core >= WITH_AIRFLOW
    distributions = packages_distributions()
    unasked = {
        module
        for module in set(imported()) - {PACKAGE} - WITH_AIRFLOW
        if not {canonicalize_name(name) for name in [WITH_OTHERS.get(module, ""), *distributions.get(module, ())]}
        & asked
    }
    assert unasked == set()


@pytest.mark.parametrize("requirement", RANGES)
def test_each_range_has_a_lower_bound_and_holds_the_locked_version(requirement: Requirement):
    operators = {one.operator for one in requirement.specifier}
    assert operators & {">=", "=="}, "what was never tried is not promised"
    found = re.search(rf"^{re.escape(requirement.name)}(?:\[[^]]*\])?==(\S+)", locked(), re.MULTILINE | re.IGNORECASE)
    assert found is not None
    assert requirement.specifier.contains(found[1])
    assert version(requirement.name) == found[1], "the suite runs under the lock"


def locked() -> str:
    return (ROOT / "requirements.lock").read_text()


def test_all_is_every_extra():
    together = {str(one) for extra in EXTRAS for one in requirements("options.extras_require", extra).values()}
    assert {str(one) for one in requirements("options.extras_require", "all").values()} == together


@pytest.mark.statement("V1")
def test_users_are_asked_for_the_light_client_and_for_ranges():
    """V1: Spark contains the same files as its client: of two versions the one installed last would silently win."""
    asked = requirements("options", "install_requires")
    assert "pyspark" not in asked
    assert not [name for name, one in asked.items() if any(each.operator == "==" for each in one.specifier)]
    ours = requirements("options.extras_require", "dev")
    assert ours["pyspark"].specifier == ours["pyspark-client"].specifier
