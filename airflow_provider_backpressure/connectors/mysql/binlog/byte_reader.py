"""Integers and texts of varying length, as MySQL's protocol and its log have them."""

_WIDE = {0xFC: 2, 0xFD: 3, 0xFE: 8}
"""Bytes of a number behind its first byte, where that says that it is a long one."""


class Bytes:
    """Reads a block from its front to its end."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data, self.at = data, at

    @property
    def left(self) -> int:
        """Bytes that have not been read."""
        return len(self.data) - self.at

    def take(self, size: int) -> bytes:
        """Return the next so many bytes."""
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, size: int) -> int:
        """Return an unsigned number, its lowest byte first."""
        return int.from_bytes(self.take(size), "little")

    def read_packed_integer(self) -> int:
        """Return a number whose first byte says how long it is."""
        first = self.data[self.at]
        self.at += 1
        return first if first < 0xFB else self.number(_WIDE[first])

    def text(self) -> bytes:
        """Return a text behind its length."""
        return self.take(self.read_packed_integer())
