"""A run of a hydration under ``catch_up`` in a process of its own, which a test may kill."""

import logging
import os
import subprocess
import sys
from pathlib import Path

from airflow_provider_backpressure.core.planning.catch_up_windows import check_caught_up
from tests.support.composed import ROOT, Composed, close_runners


def follow(composed: Composed, folder: Path) -> "subprocess.Popen[bytes]":
    """Plan, drain what is planned and what follows it, and end the run, as its tasks do."""
    config = composed.write(folder)
    with (folder / f"{composed.lane}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", __name__, str(config)],
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ,
        )


def run(composed: Composed) -> None:
    """Do it here."""
    with composed.open() as ports:
        ports.planner().plan()
        ports.hydrator().run()
        while ports.planner().follow():
            ports.hydrator().run()
        check_caught_up(ports.plan, ports.sink)
        ports.ledger.finish(ports.hydration.id)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    try:
        run(Composed.read(Path(sys.argv[1])))
    finally:
        close_runners()
