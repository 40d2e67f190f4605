"""Times of a reader, sent to the writer behind the transform: two Python workers of one Spark task, on one host.

The reader keeps its times in a few bytes of memory, and sends that memory to the writer through a
socket that has no place on disk. So a range of any length costs the same, the writer sees the reader as of now, and
a killed process leaves nothing behind. Where the two cannot meet (a shuffle lies between them, so they are of
different tasks; a system without such sockets), the writer knows that it does not know.
"""

import mmap
import os
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from types import TracebackType
from typing import TypeVar

from airflow_provider_backpressure.core.snapshot.messages import SliceResult
from airflow_provider_backpressure.core.stage_metrics import (
    AT_ONCE,
    Ahead,
    Meter,
    Stage,
    StageTime,
    State,
    TransformClock,
    times_of,
)

Item = TypeVar("Item")

_NUMBER, _TIMES = struct.Struct("<q"), struct.Struct("<ddddddq")
_SIZE = _NUMBER.size + 2 * _TIMES.size
_INDEX, _PEER = struct.Struct("<q"), struct.Struct("3i")
_STATES = (State.IDLE, State.BUSY, State.BACKPRESSURED)
_TRIES = 100
_MOST_WAITING = 1024
"""Readers that may have connected since the writer looked last."""


class ReaderTimings:
    """Times of one reader: busy until it yields a row, held back until the row is taken, idle once it has ended.

    Nothing here raises: figures are not worth a range.
    """

    def __init__(self, name: str | None, index: int) -> None:
        """Begin for the slice of this index. ``name``: where the writer listens; ``None``: nowhere."""
        self._name, self._index = name, index
        self._spent = dict.fromkeys(_STATES, 0.0)
        self._lately = self._blocked = 0.0
        self._state, self._begun, self._since = State.BUSY, time.monotonic(), time.monotonic()
        self._number = 0
        self._file: int | None = None
        self._memory: mmap.mmap | None = None
        if name is not None:
            with suppress(Exception):
                self._file = os.memfd_create("backpressure")
                os.ftruncate(self._file, _SIZE)
                self._memory = mmap.mmap(self._file, _SIZE)
                self.to(State.BUSY)

    def to(self, state: State) -> None:
        """Enter a state."""
        if self._memory is None:
            return
        with suppress(Exception):
            now = time.monotonic()
            spent = now - self._since
            self._spent[self._state] += spent
            if self._state is State.BACKPRESSURED:
                self._blocked += self._lately * (spent > AT_ONCE * self._lately)
            # Before the first rows there was nothing that could fill the room.
            self._lately = spent if self._state is State.BUSY and self._spent[State.BACKPRESSURED] else 0.0
            self._state, self._since = state, now
            self._write(self._memory)
            if self._file is not None:
                self._offer(self._file)

    def end(self) -> None:
        """Say that there is no more."""
        self.to(State.IDLE)
        with suppress(Exception):
            if self._memory is not None:
                self._memory.close()
            if self._file is not None:
                os.close(self._file)
        self._memory = self._file = None

    def _write(self, memory: mmap.mmap) -> None:
        """Write beside the current value, and then point at it: a reader at any moment finds a whole value."""
        number = self._number + 1
        busy, held = self._spent[State.BUSY], self._spent[State.BACKPRESSURED]
        times = (self._begun, busy, held, self._blocked, self._lately, self._since, _STATES.index(self._state))
        _TIMES.pack_into(memory, _place(number), *times)
        _NUMBER.pack_into(memory, 0, number)
        self._number = number

    def _offer(self, file: int) -> None:
        """Send the memory to the writer, if it is there already."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line, suppress(OSError):
            line.setblocking(False)
            line.connect(f"\0{self._name}")
            socket.send_fds(line, [_INDEX.pack(self._index)], [file])
            self._file = None
            os.close(file)


def time_items(items: Iterable[Item], slate: ReaderTimings) -> Iterator[Item]:
    """Yield the items of a reader, clocked before and after each one."""
    try:
        for item in items:
            slate.to(State.BACKPRESSURED)
            yield item
            slate.to(State.BUSY)
    finally:
        slate.end()


class Slates:
    """All slates of a range, held by its writer. A context manager; nothing here raises."""

    def __init__(self, name: str | None, expected: int) -> None:
        """Listen under a name for the readers of so many slices; ``None``: for nobody."""
        self._expected, self._broken = expected, name is None
        self._line: socket.socket | None = None
        self._waiting: list[socket.socket] = []
        self._maps: list[mmap.mmap] = []
        self._ended = Ahead()
        self._seen: set[int] = set()
        with self._careful():
            if name is not None:
                self._line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                self._line.setblocking(False)
                self._line.bind(f"\0{name}")
                self._line.listen(_MOST_WAITING)

    def __enter__(self) -> "Slates":
        """Listen already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go of everything."""
        for one in (self._line, *self._waiting, *self._maps):
            with suppress(Exception):
                if one is not None:
                    one.close()

    @property
    def complete(self) -> bool:
        """Whether the readers of all slices were seen: if not, what they did is not known."""
        return not self._broken and self._seen == set(range(self._expected))

    def look(self, at: float) -> Ahead:
        """Return what the readers have done up to a moment of ``time.monotonic``."""
        total = self._ended
        with self._careful():
            self._accept()
            for memory in list(self._maps):
                read, over = _read(memory, at)
                total = _sum(total, read)
                if over:
                    self._ended = _sum(self._ended, read)
                    self._maps.remove(memory)
                    memory.close()
        return total

    def _accept(self) -> None:
        """Take the memory of readers that have connected."""
        while self._line is not None:
            try:
                line, _ = self._line.accept()
            except BlockingIOError:
                break
            line.setblocking(False)
            self._waiting.append(line)
        for line in list(self._waiting):
            try:
                taken = _taken(line)
            except BlockingIOError:
                continue
            self._waiting.remove(line)
            line.close()
            if taken is not None:
                index, memory = taken
                self._seen.add(index)
                self._maps.append(memory)

    def _careful(self) -> "_Careful":
        return _Careful(self)


class _Careful:
    """Lets an error end the accounting of a range, and nothing else."""

    def __init__(self, slates: Slates) -> None:
        self._slates = slates

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, Exception):
            self._slates._broken = True
            return True
        return False


def _place(number: int) -> int:
    return _NUMBER.size + number % 2 * _TIMES.size


def _read(memory: mmap.mmap, at: float) -> tuple[Ahead, bool]:
    """Return what a reader has done up to a moment, and whether it has ended."""
    for _ in range(_TRIES):
        (number,) = _NUMBER.unpack_from(memory, 0)
        begun, busy, held, blocked, lately, since, code = _TIMES.unpack_from(memory, _place(number))
        if _NUMBER.unpack_from(memory, 0) != (number,):
            continue
        state, spent = _STATES[code], max(0.0, at - since)
        if state is State.IDLE:
            return Ahead(busy=busy, held=held, begun=begun, blocked=blocked), True
        if state is State.BUSY:
            now = Ahead(busy=busy + spent, held=held, begun=begun, blocked=blocked, busy_since=since, open=spent)
        elif spent > AT_ONCE * lately:
            now = Ahead(busy=busy, held=held + spent, begun=begun, blocked=blocked + lately)
        else:
            now = Ahead(busy=busy, held=held + spent, begun=begun, blocked=blocked, open=lately)
        return now, False
    raise ValueError("The reader writes faster than it can be read.")


def _sum(one: Ahead, other: Ahead) -> Ahead:
    """Return what two readers have done together."""
    begun = [each.begun for each in (one, other) if each.begun is not None]
    since = [each.busy_since for each in (one, other) if each.busy_since is not None]
    return Ahead(
        busy=one.busy + other.busy,
        held=one.held + other.held,
        begun=min(begun, default=None),
        busy_since=max(since, default=None),
        blocked=one.blocked + other.blocked,
        open=one.open + other.open,
    )


def _taken(line: socket.socket) -> tuple[int, mmap.mmap] | None:
    """Return the memory that a reader has sent; ``None`` where it was somebody else, or died before it sent any."""
    _, user, _ = _PEER.unpack(line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    if user != os.getuid():
        return None
    message, files, _, _ = socket.recv_fds(line, _INDEX.size, 1)
    if not files:
        return None
    try:
        return _INDEX.unpack(message)[0], mmap.mmap(files[0], _SIZE, prot=mmap.PROT_READ)
    finally:
        os.close(files[0])


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
