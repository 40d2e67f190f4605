"""What CI runs is there, and a release's version, changelog and tag fit together."""

import configparser
import re
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_backpressure import __version__
from dev.matrix.environments import AIRFLOWS, CLIENTS, SERVERS, SUBMITS
from dev.release import problems
from dev.servers import registry

ROOT = Path(__file__).resolve().parents[2]
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[bf]*.yml"))
CHANGELOG = "## [Unreleased]\n\n## [1.2.0] - 2026-11-25\n"


@pytest.fixture(scope="module")
def jobs() -> dict[str, Any]:
    """The jobs of the workflow."""
    return dict(yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"])


def test_the_workflow_runs_what_is_there(jobs: dict[str, Any]) -> None:
    """Targets of the Makefile, scripts that can be run, modules; its jobs wait for jobs that exist."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    lines = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    for line in lines:
        match line.split():
            case ["make", target]:
                assert target in targets
            case [".ci/run"]:
                assert (ROOT / line).stat().st_mode & 0o100
            case [".venv/bin/python", "-m", "dev.release", '"$GITHUB_REF_NAME"']:
                pass
            case [".venv/bin/python", "-m", "dev.matrix.additions"]:
                pass
            case _:
                pytest.fail(f"The workflow runs a line that no test knows: {line}")
    assert {"make check", "make matrix", "make wheel", ".ci/run"} <= set(lines)
    assert {job.get("needs", "check") for job in jobs.values()} <= jobs.keys()


def test_the_workflow_runs_the_corners_of_the_matrix(jobs: dict[str, Any]) -> None:
    """Oldest and newest of each; every cell exists, else none would run."""
    cells = [tuple(cell.split("/")) for cell in jobs["matrix"]["strategy"]["matrix"]["cell"]]
    submits = [f"submit-{version}" for version in SUBMITS]
    assert set(cells) <= set(product(AIRFLOWS, CLIENTS, [*SERVERS, *submits]))
    for position, versions in enumerate((AIRFLOWS, CLIENTS, SERVERS)):
        assert {cell[position] for cell in cells} >= {min(versions), max(versions)}
    assert {server for *_, server in cells} >= {min(submits), max(submits)}


def test_an_unknown_cell_is_refused() -> None:
    """It would run nothing, and pass."""
    done = subprocess.run(
        [sys.executable, "-m", "dev.matrix"],
        cwd=ROOT,
        env={"MATRIX_ONLY": "9.9/4.0/4.0", "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "There is no cell 9.9/4.0/4.0" in done.stderr


def test_the_workflow_and_the_classifiers_name_the_tested_python() -> None:
    """No version of Python is claimed that the suite does not run under."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    claimed = re.findall(r"Python :: (3\.\d+)", setup["metadata"]["classifiers"])
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    assert claimed == workflow["jobs"]["check"]["strategy"]["matrix"]["python"]
    assert claimed[0] == workflow["env"]["PYTHON"]


def test_continuous_integration_has_a_java_that_runs_the_schema_registry() -> None:
    """Otherwise what R1 to R4 say of a registry would be shown nowhere; the last Java is the one that Spark takes."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    steps = workflow["jobs"]["test"]["steps"]
    (java,) = (step["with"]["java-version"] for step in steps if "setup-java" in step.get("uses", ""))
    first, last = java.split("\n")[:2]
    assert int(first) >= registry.NEEDED
    assert last == "${{ env.JAVA }}"
    (run,) = (step for step in steps if step.get("run") == ".ci/run")
    assert run["env"] == {"REGISTRY_TESTS": "required"}


def test_a_java_is_found_by_the_variable_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the one that Spark takes, and only where it is new enough."""
    for version in (17, 21):
        java = tmp_path / str(version) / "bin" / "java"
        java.parent.mkdir(parents=True)
        java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}.0.1\"' >&2\n")
        java.chmod(0o755)
    monkeypatch.setattr(registry, "INSTALLED", tmp_path / "none")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "17"))
    monkeypatch.setenv("JAVA_HOME_17_X64", str(tmp_path / "17"))
    assert registry.find_java.__wrapped__() is None
    monkeypatch.setenv("JAVA_HOME_21_X64", str(tmp_path / "21"))
    assert registry.find_java.__wrapped__() == str(tmp_path / "21" / "bin" / "java")


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_forms_have_what_their_server_asks_for(path: Path) -> None:
    form = yaml.safe_load(path.read_text())
    assert form["name"]
    assert form["description"]
    ids = [part["id"] for part in form["body"] if part["type"] != "markdown"]
    assert len(ids) == len(set(ids)) > 0
    assert all(part["attributes"].get("label") for part in form["body"] if part["type"] != "markdown")


@pytest.mark.parametrize(
    ("version", "tag", "said"),
    [
        ("1.2.0", "v1.2.0", []),
        ("1.2.0", None, []),
        ("1.3.0.dev0", None, []),
        ("1.2.0", "v1.2.1", ["The tag is v1.2.1"]),
        ("1.3.0.dev0", "v1.3.0.dev0", ["under development"]),
        ("1.3.0", "v1.3.0", [r"no heading `## \[1\.3\.0\]"]),
        ("one", None, ["none that pip knows"]),
    ],
)
def test_a_release_fits_together(version: str, tag: str | None, said: list[str]) -> None:
    found = problems(version, CHANGELOG, tag)
    assert len(found) == len(said)
    assert all(re.search(pattern, problem) for pattern, problem in zip(said, found, strict=True))


def test_the_version_of_now_fits() -> None:
    assert problems(__version__, (ROOT / "CHANGELOG.md").read_text()) == []
