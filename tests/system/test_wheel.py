"""Wheel and sdist, built, and installed where there is nothing but Airflow; then the next release over them.

One environment for all of it, of the locked versions: what uv has in its cache is linked, and nothing is downloaded.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_backpressure import __version__
from airflow_provider_backpressure.ledger.revision import REVISION

pytestmark = pytest.mark.system
ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).parent / "wheel"
PACKAGE = "airflow_provider_backpressure"
NEXT, NEXT_REVISION = "0.9.0", f"{int(REVISION) + 1:04d}"
MIGRATION = f'''"""A column of the next release."""

import sqlalchemy as sa
from alembic import op

revision, down_revision, branch_labels, depends_on = "{NEXT_REVISION}", "{REVISION}", None, None


def upgrade() -> None:
    op.add_column("backpressure_hydration", sa.Column("next", sa.Text))


def downgrade() -> None:
    op.drop_column("backpressure_hydration", "next")
'''


def checkout(folder: Path) -> Path:
    """Copy what a build needs, without what this checkout has built, and return where it is."""
    folder.mkdir()
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    for name in (PACKAGE, "spark_jobs"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def build(source: Path, *what: str) -> Path:
    """Build in a copy and return the folder of what was made."""
    command = [sys.executable, "-m", "build", "--no-isolation", *what, "--outdir", str(source / "dist"), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return source / "dist"


def install(python: Path | str, *what: str) -> None:
    """Install as uv does, by this session's own uv."""
    command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(python), *what]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def constraints(folder: Path) -> Path:
    """Write the locked versions without their hashes."""
    found = re.findall(r"^([\w.-]+)(?:\[[^]]*\])?(==\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    path = folder / "constraints.txt"
    path.write_text("\n".join(name + version for name, version in found))
    return path


@dataclass(frozen=True, kw_only=True)
class Clean:
    """An environment with Airflow and our wheel, and a home outside of the checkout."""

    home: Path
    wheel: Path
    sdist: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.home / "env" / "bin" / "python"

    def run(self, *words: str, code: int = 0, output: str = "stdout") -> str:
        """Run something there, where the checkout is not, and return what it prints."""
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "AIRFLOW_HOME": str(self.home / "airflow"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "false",
            "_AIRFLOW_PROCESS_CONTEXT": "server",
        }
        done = subprocess.run(
            [str(self.python), *words], cwd=self.home, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stdout + done.stderr
        return str(getattr(done, output))

    def airflow(self, *words: str) -> str:
        """Run `airflow …`."""
        return self.run("-m", "airflow", *words)

    def script(self, name: str, *words: str) -> dict[str, Any]:
        """Run one of the scripts of ``wheel/`` outside of the checkout and return what it found."""
        copy = shutil.copy(SCRIPTS / f"{name}.py", self.home)
        return json.loads(self.run(str(copy), *words).rpartition("FOUND")[2])  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Clean:
    """Airflow with the wheel, its database migrated and the ledger's connection made."""
    home = tmp_path_factory.mktemp("wheel")
    dist = build(checkout(home / "checkout"))
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    made = Clean(home=home, wheel=wheel, sdist=sdist)
    subprocess.run(
        [sys.executable, "-m", "uv", "venv", "--quiet", "--python", sys.executable, home / "env"], check=True
    )
    install(made.python, "--constraint", str(constraints(home)), "apache-airflow", str(wheel))
    made.airflow("db", "migrate")
    made.airflow("backpressure", "setup")
    return made


@pytest.fixture(scope="module")
def from_sdist(clean: Clean) -> Path:
    """A folder with what the sdist installs, and nothing else."""
    target = clean.home / "from_sdist"
    install(sys.executable, "--no-deps", "--no-build-isolation", "--target", str(target), str(clean.sdist))
    return target


def shipped() -> set[str]:
    """Return every file that the package has to have, by its path within it."""
    ours = [path for path in (ROOT / PACKAGE).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    jobs = (ROOT / "spark_jobs").glob("*.py")
    return {str(path.relative_to(ROOT / PACKAGE)) for path in ours} | {f"spark_jobs/{path.name}" for path in jobs}


def test_wheel_and_sdist_hold_every_file_of_the_package(clean: Clean, from_sdist: Path) -> None:
    """The page, migrations, types and jobs; no tests, and nothing that was built."""
    with zipfile.ZipFile(clean.wheel) as wheel:
        named = {name.removeprefix(f"{PACKAGE}/") for name in wheel.namelist() if name.startswith(f"{PACKAGE}/")}
        other = {name.partition("/")[0] for name in wheel.namelist() if not name.startswith(f"{PACKAGE}/")}
    assert named == shipped()
    assert other == {f"{PACKAGE}-{__version__}.dist-info"}
    installed = {
        str(path.relative_to(from_sdist / PACKAGE))
        for path in (from_sdist / PACKAGE).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert installed == shipped()
    with tarfile.open(clean.sdist) as sdist:
        assert not [name for name in sdist.getnames() if "/tests/" in name or "__pycache__" in name]


def test_the_core_needs_nothing_but_python(from_sdist: Path) -> None:
    """Without site-packages there is no Airflow, no Spark, no database driver: every module of the core is imported."""
    core = from_sdist / PACKAGE / "core"
    modules = sorted(".".join(path.relative_to(core).with_suffix("").parts) for path in core.rglob("[a-z]*.py"))
    assert len(modules) > 50
    script = (
        f"import sys; sys.path.insert(0, {str(from_sdist)!r})\n"
        "from importlib import import_module\n"
        f"for name in {modules!r}: import_module({PACKAGE!r} + '.core.' + name)\n"
        f"import {PACKAGE}.provider_info, {PACKAGE}.exceptions"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_bare_airflow_knows_the_provider(clean: Clean, tmp_path: Path) -> None:
    """Its metadata, commands, plugin and tables; an example DAG of each kind parses without any extra."""
    listed = clean.airflow("providers", "get", "airflow-provider-backpressure", "--output", "json")
    assert json.loads(listed)[0]["Version"] == __version__
    dags = shutil.copytree(ROOT / "dags", tmp_path / "dags", ignore=shutil.ignore_patterns("__pycache__"))
    found = clean.script("look", str(dags))
    assert Path(found["at"]).is_relative_to(clean.home / "env")
    assert {"airflow.plugins", "apache_airflow_provider"} <= set(found["entry_points"])
    assert found["errors"] == {}
    assert set(found["dags"]) >= {"postgres_hydrate", "mysql_hydrate", "kafka_hydrate", "lake_hydrate"}
    assert {"/", "/static/{name}", "/api/hydrations"} <= set(found["page"])
    assert {"status", "setup", "doctor", "uninstall"} <= set(found["commands"])
    assert shipped() <= set(found["files"])


@pytest.fixture
def upgraded(clean: Clean) -> Iterator[Clean]:
    """The next release, which has a migration more; the one before is back in the end."""
    source = checkout(clean.home / "next")
    (source / PACKAGE / "__init__.py").write_text(f'__version__ = "{NEXT}"\n')
    ledger = source / PACKAGE / "ledger"
    (ledger / "migrations" / "versions" / f"{NEXT_REVISION}_next.py").write_text(MIGRATION)
    index = '    sa.Index("ix_backpressure_hydration_cluster"'
    for module, before, after in (
        ("revision.py", f'REVISION = "{REVISION}"', f'REVISION = "{NEXT_REVISION}"'),
        ("models.py", index, f'    sa.Column("next", sa.Text),\n{index}'),
    ):
        text = (ledger / module).read_text()
        assert text.count(before) == 1
        (ledger / module).write_text(text.replace(before, after))
    (wheel,) = build(source, "--wheel").glob("*.whl")
    install(clean.python, "--no-deps", str(wheel))
    yield clean
    install(clean.python, "--no-deps", "--reinstall", str(clean.wheel))


def test_the_next_release_goes_on_with_what_this_one_has_begun(clean: Clean, request: pytest.FixtureRequest) -> None:
    """X2, X6: killed with a range in flight, upgraded, migrated: no range that is committed is read again.

    Before the migration the next release refuses the ledger, and says what to do.
    """
    target = clean.home / "target.json"
    shutil.copy(ROOT / "tests" / "support" / "half_done.py", clean.home)
    hydrate = shutil.copy(SCRIPTS / "hydrate.py", clean.home)
    clean.run(str(hydrate), str(target), "half", code=-signal.SIGINT)
    half = json.loads(target.read_text())
    assert (len(half["markers"]), len(half["rows"])) == (4, 40)

    request.getfixturevalue("upgraded")
    refused = clean.run("-m", "airflow", "backpressure", "status", code=1, output="stderr")
    assert f"is of version {REVISION}, and this release needs {NEXT_REVISION}: run `airflow db migrate`" in refused
    clean.airflow("db", "migrate")
    found = clean.script("hydrate", str(target), "whole")
    assert found["verdict"] == "resumed"
    assert (found["submitted"], found["rows"]) == ([4, 5, 6, 7, 8, 9], list(range(100)))
    assert found["phase"] == "steady_state"
    assert json.loads(json.loads(target.read_text())["plan"])["plan_id"] == json.loads(half["plan"])["plan_id"]
