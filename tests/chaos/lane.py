"""A lane in a process of its own.

Importing PySpark takes seconds, so the processes are forked from one that has imported everything and opened nothing.
"""

import logging
import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

from airflow_provider_backpressure.core.execution.lane_submission import Outcome
from airflow_provider_backpressure.core.failpoints import ON
from tests.support.composed import Composed

UNARMED = 9
"""Exit code of a life that was started without failpoints."""


def live(config: str, log: str) -> None:
    """Drain the ranges of a planned hydration as its lane, as the operator does; exit code 0 when nothing is left."""
    if not ON:
        sys.exit(UNARMED)
    with Path(log).open("ab", buffering=0) as sink:
        os.dup2(sink.fileno(), 1)
        os.dup2(sink.fileno(), 2)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(name)s %(message)s")
    with Composed.read(Path(config)).open() as ports:
        result = ports.hydrator().run()
    sys.exit(0 if result.outcome is Outcome.DONE else 1)


def begun(config: Path, log: Path) -> Any:
    """Return the process of a lane that has just begun."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "pandas", "pyarrow", "airflow_provider_backpressure.spark.job"])
    process = context.Process(target=live, args=(str(config), str(log)))
    process.start()
    return process
