"""What is installed with this package: by hashes, and under licences that go with Apache-2.0."""

import configparser
import re
from collections.abc import Iterator
from importlib.metadata import PackageMetadata, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.unit.test_requirements import requirements

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "airflow_provider_backpressure"
PERMISSIVE = re.compile(
    r"apache|\bmit\b|bsd|\bisc\b|iscl|psf|python software foundation|unlicense|zlib|cc0|0bsd|mit-0", re.IGNORECASE
)
OTHERS = {
    # Imported as it is, and replaceable by whoever installs it: what the LGPL asks of a program in Python.
    "psycopg": "LGPL-3.0-only",
    "psycopg-binary": "LGPL-3.0-only",
    # Files under the MPL stay so; nothing here changes them.
    "certifi": "Mozilla Public License 2.0 (MPL 2.0)",
    "pathspec": "Mozilla Public License 2.0 (MPL 2.0)",
    # Airflow's own, under either of two licences; nothing of this package imports it.
    "text-unidecode": "Artistic License",
    # Says nothing in its metadata; of the OpenLineage project, under Apache-2.0 as all of it.
    "openlineage-sql": "",
}
"""What is neither permissive nor silent, each with why it may be here."""


def licence(metadata: PackageMetadata) -> str:
    """Return what a distribution says of its licence."""
    if metadata.get("License-Expression"):
        return str(metadata["License-Expression"])
    told = [
        line.rpartition("::")[2].strip() for line in metadata.get_all("Classifier", []) if line.startswith("License")
    ]
    return "; ".join(told) or str(metadata.get("License") or "").partition("\n")[0]


def installed() -> Iterator[tuple[str, str]]:
    """Yield every distribution that the package and its extras bring along, with its licence."""
    waiting = [*requirements("options", "install_requires").values()]
    waiting += requirements("options.extras_require", "all").values()
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        wanted = waiting.pop()
        name, extras = canonicalize_name(wanted.name), frozenset(wanted.extras)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        found = distribution(name)
        yield name, licence(found.metadata)
        for one in map(Requirement, found.requires or ()):
            if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in (*extras, "")):
                waiting.append(one)


def test_every_licence_goes_with_ours() -> None:
    """Permissive ones by their words; every other one is named here with its reason."""
    found = dict(installed())
    assert len(found) > 100, "the packages were found"
    odd = {name: told for name, told in found.items() if not (told and all(map(PERMISSIVE.search, told.split(";"))))}
    assert odd.keys() == OTHERS.keys() & found.keys(), odd
    for name, told in odd.items():
        assert told.startswith(OTHERS[name]), name


def test_the_lock_takes_nothing_without_its_hash() -> None:
    """One version of each, from no other place, with at least one hash; `make` installs with --require-hashes."""
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    entries = "\n".join(line for line in lines if not line.lstrip().startswith("#")).replace("\\\n", " ").splitlines()
    assert len(entries) > 100
    for entry in entries:
        assert re.fullmatch(
            r"[a-z0-9._-]+(\[[a-z,._-]+\])?==\S+( ; [^@]+?)?(\s+--hash=sha256:[0-9a-f]{64})+\s*", entry
        ), entry
    assert "--require-hashes -r requirements.lock" in (ROOT / "Makefile").read_text()


def test_every_folder_of_the_package_is_packaged() -> None:
    """setup.cfg lists packages by name, so that nothing gets in by accident; none may be forgotten for that."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    listed = set(config["options"]["packages"].split())
    there = {".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / PACKAGE).rglob("__init__.py")}
    assert listed == there | {f"{PACKAGE}.spark_jobs"}
