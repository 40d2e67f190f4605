"""The clocks of the task that runs in this process: reader and writer of a slice take turns in one thread.

With a transform the reader is another process, and this one is the writer: see :class:`Across`.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import TypeVar

from airflow_provider_backpressure.core.snapshot.messages import SliceResult
from airflow_provider_backpressure.core.stage_metrics import Meter, Stage, StageTime, times_of
from airflow_provider_backpressure.core.transform_stage import TransformClock
from airflow_provider_backpressure.spark.reader_timings import Slates

Item = TypeVar("Item")


class Across(Meter):
    """Clocks the writer of a range, and by its readers' slates what lies ahead: the reader, and the transform."""

    def __init__(self, slates: Slates) -> None:
        """Begin with slates that are kept open until :meth:`take`."""
        super().__init__()
        self._slates, self._between = slates, TransformClock(look=slates.look)

    def start_write(self) -> None:
        """The sink is at work."""
        super().start_write()
        self._between.start_write()

    def start_read(self) -> None:
        """The sink waits for rows."""
        super().start_read()
        self._between.start_read()

    def start_end(self) -> None:
        """There are no rows yet, or no more."""
        super().start_end()
        self._between.start_end()

    def take(self) -> dict[Stage, StageTime]:
        """Return the times up to now: of reader and transform each, or where that is not known of both together."""
        flow, ahead = super().take(), self._between.take()
        both = flow.pop(Stage.READ)
        return {**(ahead if self._slates.complete else {Stage.READ_AND_TRANSFORM: both}), **flow}


_meter = Meter()


def time_slice(work: Callable[[], SliceResult], across: Across | None = None) -> SliceResult:
    """Return the result with what reader and sink did meanwhile: until rows are asked for, the sink is at work.

    ``across``: the reader is another process, behind a transform.
    """
    global _meter
    _meter = Meter() if across is None else across
    _meter.start_end()
    result = work()
    return replace(result, times=times_of(_meter.take()))


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
