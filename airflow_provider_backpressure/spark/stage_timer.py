"""The clocks of the task that runs in this process: reader and writer of a slice take turns in one thread.

With a transform the reader is another process, and this one is the writer: see :class:`Across`.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import TypeVar

from airflow_provider_backpressure.core.snapshot.messages import SliceResult
from airflow_provider_backpressure.core.stage_metrics import Meter, Stage, StageTime, times_of
from airflow_provider_backpressure.core.transform_stage import Between
from airflow_provider_backpressure.spark.reader_timings import Slates

Item = TypeVar("Item")


class Across(Meter):
    """Clocks the writer of a range, and by its readers' slates what lies ahead: the reader, and the transform."""

    def __init__(self, slates: Slates) -> None:
        """Begin with slates that are kept open until :meth:`take`."""
        super().__init__()
        self._slates, self._between = slates, Between(look=slates.look)

    def writing(self) -> None:
        """The sink is at work."""
        super().writing()
        self._between.writing()

    def reading(self) -> None:
        """The sink waits for rows."""
        super().reading()
        self._between.reading()

    def ending(self) -> None:
        """There are no rows yet, or no more."""
        super().ending()
        self._between.ending()

    def take(self) -> dict[Stage, StageTime]:
        """Return the times up to now: of reader and transform each, or where that is not known of both together."""
        flow, ahead = super().take(), self._between.take()
        both = flow.pop(Stage.READ)
        return {**(ahead if self._slates.complete else {Stage.READ_AND_TRANSFORM: both}), **flow}


_meter = Meter()


def clocked(work: Callable[[], SliceResult], across: Across | None = None) -> SliceResult:
    """Return the result with what reader and sink did meanwhile: until rows are asked for, the sink is at work.

    ``across``: the reader is another process, behind a transform.
    """
    global _meter
    _meter = Meter() if across is None else across
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
