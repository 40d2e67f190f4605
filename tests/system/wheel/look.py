"""Look at the installed package as a new user's Airflow does; prints what was found as JSON."""

import json
import sys
from importlib import import_module
from importlib.metadata import entry_points, metadata
from importlib.resources import files
from pathlib import Path

from airflow.cli.cli_parser import get_parser
from airflow.dag_processing.dagbag import DagBag
from airflow.plugins_manager import get_fastapi_plugins

PACKAGE, NAME = "airflow_provider_backpressure", "airflow-provider-backpressure"
GROUPS = ("airflow.plugins", "apache_airflow_provider")


def page() -> list[str]:
    """Return the paths that the plugin's app serves."""
    (mounted,) = [one["app"] for one in get_fastapi_plugins()[0] if one["url_prefix"] == "/backpressure"]
    return sorted({route.path for route in mounted.routes})


def commands() -> list[str]:
    """Return the commands, each of which is imported, as calling it would."""
    from airflow_provider_backpressure.cli.definition import get_commands

    (group,) = get_commands()
    get_parser().parse_args(["backpressure", "status"])
    for module in sorted(Path(str(files(PACKAGE) / "cli")).glob("[a-z]*.py")):
        import_module(f"{PACKAGE}.cli.{module.stem}")
    return [each.name for each in group.subcommands]


def parsed(folder: str) -> tuple[list[str], dict[str, str]]:
    """Return the ids of the DAGs in a folder, and what hindered others."""
    bag = DagBag(folder, bundle_path=Path(folder), bundle_name="examples")
    return sorted(bag.dags), bag.import_errors


def main(folder: str) -> None:
    """Print it."""
    root = files(PACKAGE)
    dags, errors = parsed(folder)
    found = {
        "at": str(root),
        "version": metadata(NAME)["Version"],
        "entry_points": [group for group in GROUPS for one in entry_points(group=group) if one.dist.name == NAME],
        "files": sorted(str(one.relative_to(str(root))) for one in Path(str(root)).rglob("*") if one.is_file()),
        "page": page(),
        "commands": commands(),
        "dags": dags,
        "errors": errors,
    }
    print("FOUND" + json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
