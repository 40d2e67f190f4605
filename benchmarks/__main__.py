"""Every benchmark, one after the other: ``python -m benchmarks --rows 10000000``; this is what ``make bench`` runs."""

import argparse
import shlex
import subprocess
import sys
import time

from rich.console import Console

from benchmarks.command import MISSED
from benchmarks.suites import ROWS, SUITES

console = Console()

ENDS = {0: "well", MISSED: "a goal was missed"}


def main(words: list[str] | None = None) -> int:
    """Run them; 0 where all of them ended well. One that fails is reported, and the next one starts."""
    names = [suite.name for suite in SUITES]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--rows", type=int, default=ROWS, help="of the largest comparison; the others are derived of it"
    )
    parser.add_argument("--only", default=",".join(names), help=f"of {','.join(names)}")
    parser.add_argument("--list", action="store_true", help="only say what would be run")
    parser.add_argument("--write-docs", action="store_true", help="write the page and its plots")
    wanted = parser.parse_args(words)
    only = wanted.only.split(",")
    if unknown := [name for name in only if name not in names]:
        parser.error(f"there is no suite {', '.join(unknown)}: there are {', '.join(names)}")
    if wanted.rows < 1:
        parser.error(f"--rows is {wanted.rows} and has to be at least 1")
    chosen = [suite for suite in SUITES if suite.name in only]
    for suite in chosen:
        told = f"about {suite.minutes:g} min at {ROWS:,} rows"
        command = shlex.join(suite.words(wanted.rows, write_docs=wanted.write_docs))
        console.print(f"python -m {command}  # {told}", highlight=False, soft_wrap=True)
    if wanted.list:
        return 0
    ended: dict[str, tuple[int, float]] = {}
    for suite in chosen:
        console.rule(suite.name)
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", *suite.words(wanted.rows, write_docs=wanted.write_docs)], check=False
        )
        ended[suite.name] = done.returncode, time.monotonic() - began
    console.rule("all")
    for name, (code, seconds) in ended.items():
        console.print(f"{name:14} {seconds / 60:6.1f} min  {ENDS.get(code, f'ended with {code}')}")
    return max((code for code, _ in ended.values()), default=0)


if __name__ == "__main__":
    raise SystemExit(main())
