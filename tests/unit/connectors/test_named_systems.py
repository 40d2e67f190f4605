"""A connector is one folder and one line: nothing that all connectors share asks for the name of one."""

import ast
from collections.abc import Iterator
from pathlib import Path

import airflow_provider_backpressure
from airflow_provider_backpressure.spark.readers_and_writers import CONNECTORS

PACKAGE = Path(airflow_provider_backpressure.__file__).parent
SYSTEMS = {*CONNECTORS, *CONNECTORS.values()}
FOLDERS = ("channels", "connectors", "hooks", "ledger")
REGISTRIES = {
    "core/connector_kinds.py",
    "core/snapshot/plan.py",
    "openlineage.py",
    "provider_info.py",
    "sinks/__init__.py",
    "sources/__init__.py",
    "spark/readers_and_writers.py",
    # Commands that look into a database itself, and those that set up a ledger in one.
    "cli/arguments.py",
    "cli/login_leaks.py",
    "cli/doctor.py",
    "cli/maintenance.py",
    "cli/setup.py",
    "cli/uninstall.py",
    # Shows the kind of a target unless it is the usual one.
    "cli/render/overview.py",
    # The ledger's own channel.
    "triggers/shared_ledger.py",
    # Patterns are quoted, and connections kept, as PostgreSQL does it.
    "operators/several_tables.py",
}


def named(path: Path) -> Iterator[str]:
    """Yield the systems that a module compares with, or imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and node.value in SYSTEMS:
            yield str(node.value)
        if isinstance(node, ast.ImportFrom) and ".connectors." in (node.module or ""):
            yield from SYSTEMS & {str(node.module).split(".connectors.")[1].split(".")[0]}


def test_only_registries_and_folders_of_systems_name_one():
    """A new case of ``if kind == …`` anywhere else would be another edit for each new connector."""
    modules = (path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))
    found = {path.as_posix() for path in modules if path.parts[0] not in FOLDERS and any(named(PACKAGE / path))}
    assert found == REGISTRIES
