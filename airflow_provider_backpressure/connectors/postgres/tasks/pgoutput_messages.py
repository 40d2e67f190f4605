"""Messages of a log as they arrived: their bytes in one piece, and where each of them is."""

from collections.abc import Iterator, Sequence

import numpy

from airflow_provider_backpressure.spark import arrow_buffers as buffers

_INSERT, _UPDATE, _DELETE, _NEW = b"IUDN"
_TABLE, _ROW = 1, 5
"""Where a message has the number of its table, and where it says which row follows."""
_PADDING = bytes(8)
"""Behind the last message, so that a number may be looked at wherever a message ends."""


class Messages:
    """Some messages. An object is made of each only when they are iterated."""

    def __init__(self, data: bytes, sizes: numpy.ndarray, *, before: int = 0) -> None:
        """``sizes``: bytes of each in ``data``; ``before``: how many of these come before the message itself.

        Where there are no more bytes, there is no message.
        """
        self.data = data + _PADDING
        self.ends = numpy.cumsum(sizes)
        self.starts = self.ends - sizes + before
        if (empty := sizes <= before).any():
            self.starts, self.ends = self.starts[~empty], self.ends[~empty]

    @classmethod
    def join(cls, messages: Sequence[bytes]) -> "Messages":
        """Return messages that are already objects."""
        return cls(b"".join(messages), measure(messages))

    def find_common_table(self) -> int | None:
        """Return the number of the table where each message changes one row, all of one table; otherwise ``None``.

        An update that has old values is no such message. There has to be at least one message.
        """
        kinds = numpy.frombuffer(self.data, "u1")
        tables, kind = buffers.view_numbers(self.data, ">u4")[self.starts + _TABLE], kinds[self.starts]
        updated = (kind == _UPDATE) & (kinds[self.starts + _ROW] == _NEW)
        same = ((kind == _INSERT) | (kind == _DELETE) | updated).all() and (tables == tables[0]).all()
        return int(tables[0]) if same else None

    def __len__(self) -> int:
        """Return how many they are."""
        return len(self.starts)

    def __iter__(self) -> Iterator[bytes]:
        """Yield each of them."""
        for start, end in zip(self.starts.tolist(), self.ends.tolist(), strict=True):
            yield self.data[start:end]


def measure(messages: Sequence[bytes | memoryview]) -> numpy.ndarray:
    """Return the bytes of each message."""
    return numpy.fromiter(map(len, messages), "i8", len(messages))
