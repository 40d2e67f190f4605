"""``python -m tests.soak`` (``make soak``): half an hour of hydrations and steady state under faults, and its figures.

Exit code 0 where every target equals its source in the end and every figure is flat.
"""

import argparse
import json
import os
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks import machine
from dev.services import Services
from tests.soak.faults import Faults
from tests.soak.lane import TURNS
from tests.soak.page import IMAGES, PAGE, plot, table
from tests.soak.sampling import Samples
from tests.soak.stage import KEPT, KILLED, Stage
from tests.soak.stream import NAME
from tests.soak.verdict import LEAST_SECONDS, WARM

LAST_SECONDS = 600.0
"""Longest time for what is left when nothing happens any more."""
LONG_MINUTES = 30.0
PICTURES = {
    "memory": "Memory of whole process trees, without mapped files",
    "connections": "Connections of the product",
    "slots": "Replication slots of the source",
    "handles": "Threads, file handles and Python workers",
}


def main() -> int:
    """Soak."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tables", type=int, default=20, help="that share a log beside the other hydrations")
    parser.add_argument("--keep", type=Path, help="folder for logs and pictures; by default nothing is kept")
    parser.add_argument("--write-docs", action="store_true", help="write docs/reference/soak.md and its pictures")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="backpressure-soak-") as temporary:
        folder = wanted.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        services = Services(Path(temporary) / "services", owner_pid=os.getpid())
        stage = Stage(services=services, folder=folder, seed=wanted.seed, tables=wanted.tables)
        try:
            return soak(stage, wanted)
        finally:
            for lane in stage.lanes.values():
                if lane.pid:
                    lane.kill()
            services.down(remove=True)


def soak(stage: Stage, wanted: argparse.Namespace) -> int:
    """Do it, tell of it, and return the exit code."""
    described = machine.describe(jars=())
    stage.prepare()
    seconds = wanted.minutes * 60
    samples = Samples(stage=stage)
    faults = Faults(stage=stage, seed=wanted.seed, seconds=seconds)
    with stage.changing(), samples.taken(), faults.happening():
        print(f"Soaking for {wanted.minutes:g} minutes, seed {wanted.seed} …", flush=True)
        end = time.monotonic() + seconds
        while time.monotonic() < end and stage.lanes[KEPT].pid:
            time.sleep(1.0)
    codes = {name: lane.end(LAST_SECONDS) for name, lane in stage.lanes.items()}
    unequal = {title: told for title, told in stage.differences().items() if told}
    turns = {name: value for lane in stage.lanes.values() for name, value in _turns(lane.folder).items()}
    text = "\n".join(
        [
            _happened(faults),
            "",
            _runs(stage, turns),
            "",
            _equality(unequal),
            "",
            table(samples.every),
        ]
    )
    print(text)
    pictures = {name: plot(title, getattr(samples, name), faults=faults.done) for name, title in PICTURES.items()}
    for place in (wanted.keep, IMAGES if wanted.write_docs else None):
        if place is not None:
            for name, picture in pictures.items():
                (place / f"soak-{name}.svg").write_text(picture)
    if wanted.write_docs:
        PAGE.write_text(_page(text, described, wanted))
    # A short soak is too short to say anything of some; a long one has to.
    wrong = (False, None) if wanted.minutes >= LONG_MINUTES else (False,)
    growing = [one.name for one in samples.every if one.verdict().flat in wrong]
    print(f"Exit codes of the lanes: {codes}. Not flat: {', '.join(growing) or 'nothing'}.")
    return 1 if growing or unequal or any(codes.values()) else 0


def _turns(folder: Path) -> dict[str, dict[str, list[str]]]:
    told: dict[str, dict[str, list[str]]] = json.loads((folder / TURNS).read_text())
    return told


def _happened(faults: Faults) -> str:
    counted = Counter(name for _, name in faults.done)
    lines = [f"| {name} | {number} |" for name, number in sorted(counted.items())]
    return "\n".join([f"{len(faults.done)} faults:", "", "| Fault | Times |", "|---|---|", *lines])


def _runs(stage: Stage, turns: dict[str, dict[str, list[str]]]) -> str:
    lines = []
    lanes = {title: composed.lane for title, composed in stage.hydrations.items()}
    if stage.shared is not None:
        lanes[stage.shared_title] = NAME
    for title, name in lanes.items():
        told = turns[name]
        errors = ", ".join(f"{kind} {number}" for kind, number in sorted(Counter(told["errors"]).items()))
        lines.append(f"| {title} | {told['runs']} | {errors or '-'} |")
    since = f"since the last of its {stage.lanes[KILLED].starts} starts"
    head = "| Hydration | Runs that ended well | Errors that a retry cured |\n|---|---|---|"
    return "\n".join([head, *lines, "", f"Of a lane that is killed: {since}."])


def _equality(unequal: dict[str, str]) -> str:
    if not unequal:
        return "In the end every target equals its source, row by row."
    return "\n".join(f"- **{title} is not equal**: {told}" for title, told in unequal.items())


def _page(text: str, described: dict[str, str], wanted: argparse.Namespace) -> str:
    command = f"python -m tests.soak --minutes {wanted.minutes:g} --seed {wanted.seed} --tables {wanted.tables}"
    told = "\n".join(f"- {name}: {value}" for name, value in described.items())
    shown = "\n\n".join(f"![{title}](../images/soak-{name}.svg)" for name, title in PICTURES.items())
    return f"""# Soak

Hydrations and steady state from a topic, a table of PostgreSQL and one of MySQL into PostgreSQL, and from PostgreSQL
into Parquet, in two lanes, and beside them {wanted.tables} tables of PostgreSQL that share a log, while everything
changes and faults happen at random, by a seed. `make soak` does it for half an hour; this page was written by

```sh
{command} --write-docs
```

A figure is **flat** if its growth is at most twice its noise, or what is allowed for it. The first {WARM:.0%} of the
time is warm-up and not judged; of a process that was restarted, the same share of its last life. Growth is the typical
slope (the median of the slopes between all pairs of samples) times the time; noise is the typical distance from that
line. Of less than {LEAST_SECONDS:g} seconds nothing is said.

{text}

{shown}

Dashes are faults, the shaded part is warm-up.

## Machine

{told}
"""


if __name__ == "__main__":
    raise SystemExit(main())
