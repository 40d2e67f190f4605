"""The clocks of the task that runs in this process: reader and writer of a slice take turns in one thread."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import TypeVar

from airflow_provider_backpressure.core.flow import Meter, times_of
from airflow_provider_backpressure.core.messages import SliceResult

Item = TypeVar("Item")

_meter = Meter()


def clocked(work: Callable[[], SliceResult]) -> SliceResult:
    """Return the result with what reader and sink did meanwhile: until rows are asked for, the sink is at work."""
    global _meter
    _meter = Meter()
    _meter.ending()
    result = work()
    return replace(result, times=times_of(_meter.take()))


@contextmanager
def opened(reader: AbstractContextManager[Item]) -> Iterator[Item]:
    """Enter a reader on its own clock: a database may have to look for its first row for long before it answers."""
    _meter.reading()
    with reader as rows:
        _meter.ending()
        yield rows


def handed(items: Iterable[Item]) -> Iterator[Item]:
    """Yield what a reader gives, clocked at each handing over."""
    iterator = iter(items)
    while True:
        _meter.reading()
        try:
            item = next(iterator)
        except StopIteration:
            _meter.ending()
            return
        _meter.writing()
        yield item
