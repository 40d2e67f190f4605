"""Times of a slice, clocked by its writer where it asks for rows and where it has them.

Behind a transform the reader is another process, maybe on another host. The writer then times both as one stage.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import TypeVar

from airflow_provider_backpressure.core.snapshot.spark_messages import SliceResult
from airflow_provider_backpressure.core.stage_metrics import Flow, Meter, Stage, times_of

Item = TypeVar("Item")

_meter = Meter()


def time_slice(work: Callable[[], SliceResult], before: Stage = Stage.READ) -> SliceResult:
    """Return the result with the times of the sink and of the stage ``before`` it.

    The sink is at work until it asks for rows.
    """
    global _meter
    _meter = Meter(before=before)
    _meter.start_end()
    result = work()
    return replace(result, times=times_of(_meter.take()))


def peek() -> Flow:
    """Return the times of the slice that this process is at work on, up to now: for another thread."""
    return _meter.peek()


@contextmanager
def time_open(reader: AbstractContextManager[Item]) -> Iterator[Item]:
    """Enter a reader on its own clock: a database may have to look for its first row for long before it answers."""
    _meter.start_read()
    with reader as rows:
        _meter.start_end()
        yield rows


def time_handovers(items: Iterable[Item]) -> Iterator[Item]:
    """Yield what a reader gives, clocked at each handing over."""
    iterator = iter(items)
    while True:
        _meter.start_read()
        try:
            item = next(iterator)
        except StopIteration:
            _meter.start_end()
            return
        _meter.start_write()
        yield item
