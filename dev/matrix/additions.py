"""What an installation of this package changes in an environment that has Airflow: it must only add packages.

`make matrix` asks the resolver before it runs the cells; `python -m dev.matrix.additions` asks it alone. Nothing is
installed. The environments are Airflow alone, as on the day of its release and as of today, and Airflow with
the providers that many images have. In each, every package keeps its version while this package is resolved.
"""

import configparser
import re
import subprocess
import sys
from dataclasses import dataclass

from dev.matrix.environments import AIRFLOWS, PYTHON, ROOT

PACKAGE = "airflow-provider-backpressure"
RELEASED = {"3.1": "2026-03-13", "3.2": "2026-06-01", "3.3": "2026-09-20"}
"""A day, within two weeks of the release, on which all its packages were in the index."""
PROVIDERS = "amazon,celery,cncf-kubernetes,fab,google,mysql,postgres,redis"
PINNED = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^\s;]+)", re.MULTILINE)

CAUSE = re.compile(r"you require ([\w.-]+==[^\s,]+)")
"""In the last sentence of the resolver's explanation, which may have thousands."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """An environment that has Airflow and not this package."""

    airflow: str
    name: str
    requirement: str
    until: str | None = None
    """Day up to which packages are taken; None for today."""


class Unresolved(Exception):
    """The resolver found no set of versions; the text names the package that has to keep its version."""


def environments() -> list[Environment]:
    """Return the environments, three for each Airflow."""
    found = []
    for version, (airflow, *_) in AIRFLOWS.items():
        day, several = RELEASED[version], airflow.replace("==", f"[{PROVIDERS}]==")
        found += [
            Environment(airflow=airflow, name="alone, as released", requirement=airflow, until=day),
            Environment(airflow=airflow, name="alone, as of today", requirement=airflow),
            Environment(airflow=airflow, name="with providers, as released", requirement=several, until=day),
        ]
    return found


def compare(before: dict[str, str], after: dict[str, str]) -> tuple[list[str], list[str]]:
    """Return the packages that were added, and those that were changed or removed."""
    changed = [f"{name} {old} → {after.get(name, 'none')}" for name, old in before.items() if after.get(name) != old]
    return sorted(after.keys() - before.keys()), sorted(changed)


def check(before: dict[str, str], package: str) -> tuple[list[str], str]:
    """Return the names of the packages that are added, and what is wrong, empty if nothing is."""
    try:
        after = resolve([*(f"{name}=={version}" for name, version in before.items()), package])
    except Unresolved as error:
        return [], f"does not go with {error}"
    added, changed = compare(before, after)
    return added, ", ".join(changed)


def resolve(requirements: list[str], *, until: str | None = None) -> dict[str, str]:
    """Return the version of each package that the requirements lead to; ``Unresolved`` if there are none."""
    options = ["--quiet", "--no-header", "--no-annotate", "--python", PYTHON]
    options += ["--exclude-newer", until] if until else []
    done = subprocess.run(
        [sys.executable, "-m", "uv", "pip", "compile", *options, "-"],
        input="\n".join(requirements),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        said = " ".join(done.stderr.split())
        raise Unresolved(", ".join(CAUSE.findall(said)[-1:]) or said[-300:])
    return dict(PINNED.findall(done.stdout))


def run() -> bool:
    """Print a line for each environment; whether each keeps every package that it has, without an extra.

    An extra is its user's choice, and brings libraries of others: the line names those that change something.
    """
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras = [name for name in setup["options.extras_require"] if name not in ("all", "dev")]
    good = True
    print("| Airflow | Environment | Packages | Added | Changed | Changed by an extra |\n|---|---|---|---|---|---|")
    for environment in environments():
        try:
            before = resolve([environment.requirement], until=environment.until)
        except Unresolved as error:
            raise SystemExit(f"{environment.airflow} {environment.name} cannot be resolved: {error}") from None
        added, wrong = check(before, f"{PACKAGE} @ file://{ROOT}")
        by_extra = {extra: check(before, f"{PACKAGE}[{extra}] @ file://{ROOT}")[1] for extra in extras}
        cells = [environment.airflow, environment.name, str(len(before)), str(len(added)), wrong or "none"]
        cells.append("; ".join(f"{extra} {why}" for extra, why in by_extra.items() if why) or "none")
        print(f"| {' | '.join(cells)} |", flush=True)
        good = good and not wrong
    return good


if __name__ == "__main__":
    sys.exit(not run())
