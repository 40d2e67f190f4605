"""Maintenance of a table that windows of changes are merged into, after every so many of them.

It runs behind the commit of a window and within its attempt, so that the gate which admitted the window holds for it.
Whether it is due is counted by the marks in the table: where a lane dies in the middle, the next window does it.
"""

import logging
import time
from collections.abc import Mapping

from airflow_provider_backpressure.connectors.lake.spark.commit_notes import COMPACTED, MAINTAIN_EVERY, LogState
from airflow_provider_backpressure.connectors.lake.spark.connect_or_classic_session import SPARK_ERRORS
from airflow_provider_backpressure.connectors.lake.spark.table import SparkTable, first_line
from airflow_provider_backpressure.core.failpoints import Step, reach
from airflow_provider_backpressure.core.stage_metrics import Stage, StageTime, times_of
from airflow_provider_backpressure.exceptions import BackpressureError

log = logging.getLogger(__name__)

MAINTENANCE_ERRORS: tuple[type[Exception], ...] = (*SPARK_ERRORS, BackpressureError)


def maintain(table: SparkTable, state: LogState, tag: str, *, began: float) -> Mapping[str, tuple[float, float, float]]:
    """Maintain the table if it is due, and return how long that took of the attempt; nothing where it is switched off.

    ``state``: what the table said behind the commit; ``began``: when the attempt began, by the clock for durations.
    What goes wrong fails no window, since the window is in: it is logged. The next window tries a compaction again; old
    versions are removed behind the next one.
    """
    before = time.perf_counter()
    try:
        every = int(state.holder.about.get(MAINTAIN_EVERY, 0)) if state.holder is not None else 0
        if not every:
            return {}
        _maintain(table, state, every, tag)
    except MAINTENANCE_ERRORS as error:
        log.warning("%s was not maintained to the end, a later window tries again: %s", table.name, first_line(error))
    busy = time.perf_counter() - before
    return times_of({Stage.MAINTENANCE: StageTime(busy=busy, idle=before - began)})


def _maintain(table: SparkTable, state: LogState, every: int, tag: str) -> None:
    windows = state.list_uncompacted()
    if len(windows) < every:
        return
    log.info("The files of %s are compacted after %s windows.", table.name, len(windows))
    table.compact()
    reach(Step.AFTER_SINK_COMMIT, tag)
    # Old versions can wait: where they cannot be removed, the next window does not compact the table again.
    table.keep({COMPACTED: windows[-1]})
    table.remove_old_versions()
