"""Times of the stages of a range into files, written down beside the table while it runs: no server shows them."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from airflow_provider_backpressure.connectors.lake.base_table import LakeTable
from airflow_provider_backpressure.connectors.lake.markers import Attempt
from airflow_provider_backpressure.core.snapshot.ranges import FIRST_ATTEMPT
from airflow_provider_backpressure.core.stage_metrics import times_of
from airflow_provider_backpressure.spark.reader_timings import peek

REPORT_SECONDS = 2.0
"""Seconds between two reports. A range that ends sooner writes none."""


@contextmanager
def report_times(table: LakeTable, attempt: Attempt) -> Iterator[None]:
    """Write the times down every :data:`REPORT_SECONDS` meanwhile, and delete them in the end.

    Nothing that fails here ends the range.
    """
    ended, written = threading.Event(), threading.Event()
    if attempt.attempt > FIRST_ATTEMPT:
        # Those of an attempt that was killed would be taken for this one's.
        with suppress(Exception):
            table.notes().drop_times(attempt.plan_id, attempt.slice_id)

    def report() -> None:
        while not ended.wait(REPORT_SECONDS):
            with suppress(Exception):
                written.set()
                table.notes().write_times(attempt.plan_id, attempt.slice_id, json.dumps(times_of(peek())))

    thread = threading.Thread(target=report, name=f"times of {attempt.tag}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        if written.is_set():
            # A storage that does not answer must not hold up a range that is done.
            thread.join(REPORT_SECONDS)
            with suppress(Exception):
                table.notes().drop_times(attempt.plan_id, attempt.slice_id)
