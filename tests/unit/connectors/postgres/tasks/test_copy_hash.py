"""The checksum of a binary COPY stream, however it is cut into messages."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from airflow_provider_backpressure.connectors.postgres.tasks.staging_table import (
    END,
    HEADER,
    SIGNATURE,
    RowSum,
    split_rows,
)
from airflow_provider_backpressure.exceptions import RangeFailed

TRAILER = struct.pack("!h", END)


def row(values: list[bytes | None]) -> bytes:
    """A row as PostgreSQL encodes it."""
    fields = (struct.pack("!i", -1) if value is None else struct.pack("!i", len(value)) + value for value in values)
    return struct.pack("!h", len(values)) + b"".join(fields)


def header(extension: bytes = b"") -> bytes:
    """The beginning of a stream."""
    return HEADER.pack(SIGNATURE, 0, len(extension)) + extension


rows = st.lists(st.lists(st.none() | st.binary(max_size=20), min_size=1, max_size=4).map(row), max_size=12)


def messages(of: list[bytes], *, header_alone: bool, end_alone: bool, extension: bytes) -> list[bytes]:
    """The stream in messages of one row, header and end by themselves or with their neighbours."""
    parts = [header(extension), *of, TRAILER]
    if not header_alone:
        parts = [parts[0] + parts[1], *parts[2:]]
    if not end_alone and len(parts) > 1:
        parts = [*parts[:-2], parts[-2] + parts[-1]]
    return parts


@given(rows, st.booleans(), st.booleans(), st.binary(max_size=5), st.data())
def test_every_cut_gives_the_same_sum(
    of: list[bytes], header_alone: bool, end_alone: bool, extension: bytes, data: st.DataObject
) -> None:
    """Header and end are never hashed, every row once, in whatever messages and batches they come."""
    stream = messages(of, header_alone=header_alone, end_alone=end_alone, extension=extension)
    total = RowSum()
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        total.update([memoryview(message) for message in stream[:size]])
        stream = stream[size:]
    expected = sum(map(xxh3_64_intdigest, of)) % 2**64
    assert total.finish(len(of)) == f"pgcopy-xxh3:{expected:016x}"
    assert (total.rows, total.bytes) == (len(of), sum(map(len, of)))


@given(rows, st.randoms())
def test_order_does_not_matter_and_doubles_count(of: list[bytes], random: object) -> None:
    """The sum is the multiset's."""
    shuffled = list(of)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert _sum(of) == _sum(shuffled)
    if of:
        assert _sum([*of, of[0]]) != _sum(of)


def test_rows_packed_into_one_message_are_noticed() -> None:
    """A server that does not send one row in each message is refused, never hashed wrongly."""
    total = RowSum()
    total.update([header() + row([b"a"]), row([b"b"]) + row([b"c"]), row([b"d"]), TRAILER])
    with pytest.raises(RangeFailed, match="3 rows where the server counted 4"):
        total.finish(4)


def test_another_format_is_refused() -> None:
    """The signature is looked at."""
    with pytest.raises(RangeFailed, match="does not begin"):
        RowSum().update([b"1,2,3\n" * 10])


def test_rows_are_split_up_to_the_end() -> None:
    """What stands behind the end mark is not a row."""
    one, other = row([b"x", None]), row([b""])
    assert list(split_rows(one + other + TRAILER)) == [one, other]


def _sum(of: list[bytes]) -> str:
    total = RowSum()
    total.update([header(), *of, TRAILER])
    return total.finish(len(of))
