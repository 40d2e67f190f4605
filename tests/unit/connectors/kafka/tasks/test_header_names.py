"""Batches of records in which a header's name is no UTF-8, taken apart by kafka-python's own classes."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import TopicPartition
from kafka.consumer.fetcher import Fetcher
from kafka.errors import CorruptRecordError
from kafka.record import MemoryRecords, MemoryRecordsBuilder

from airflow_provider_backpressure.connectors.kafka.headers import UNREADABLE, list_headers
from airflow_provider_backpressure.connectors.kafka.tasks.header_names import OddName, accept_odd_names
from airflow_provider_backpressure.connectors.kafka.tasks.kafka_python_client import Message

pytestmark = pytest.mark.statement("R4")


class Raw(str):
    """A name that is written in other bytes than its own."""

    __slots__ = ("sent",)

    def encode(self, *_: str) -> bytes:
        """Return the bytes."""
        return bytes.fromhex(self)


def write_batch(names: Sequence[str], compression: int = 0) -> bytes:
    """Return a batch of a record for each name of a header."""
    builder = MemoryRecordsBuilder(magic=2, compression_type=compression, batch_size=65536)
    for at, name in enumerate(names):
        builder.append(at, b"k", b"%d" % at, [("first", b"1"), (name, b"2"), ("last", None)])
    builder.close()
    return bytes(builder.buffer())


def read_batch(records: bytes, start: int = 0) -> list[Any]:
    """Return the records of a consumer that accepts odd names."""
    client = SimpleNamespace(_fetcher=SimpleNamespace(PartitionRecords=Fetcher.PartitionRecords))
    accept_odd_names(client)
    found = client._fetcher.PartitionRecords(start, TopicPartition("t", 0), MemoryRecords(records))
    return list(found.record_iterator)


@pytest.mark.parametrize("compression", [0, 1], ids=["plain", "gzip"])
def test_odd_names_are_marked_and_all_else_is_read(compression: int) -> None:
    """R4: also where the odd name is of a record before the first that is wanted."""
    names = ["a", Raw("ff"), "\u00e4", Raw("61c3"), Raw("ff"), "\ufffd"]
    for start in (0, 2):
        found = read_batch(write_batch(names, compression), start)
        assert [(each.offset, each.timestamp, each.key, each.value) for each in found] == [
            (at, at, b"k", b"%d" % at) for at in range(start, 6)
        ]
        assert [isinstance(each.headers[1][0], OddName) for each in found] == [False, True, False, True, True, False][
            start:
        ]
        headers = list_headers([Message(each) for each in found])
        good = {at: [("first", b"1"), (names[at], b"2"), ("last", None)] for at in (0, 2, 5)}
        assert headers == [good.get(at, UNREADABLE) for at in range(start, 6)]


def test_without_it_the_batch_counts_as_corrupt() -> None:
    """R4: what the class is for; if kafka-python reads such names one day, it is not needed any more."""
    found = Fetcher.PartitionRecords(0, TopicPartition("t", 0), MemoryRecords(write_batch(["a", Raw("ff")])))
    with pytest.raises(CorruptRecordError, match="UnicodeDecodeError"):
        list(found.record_iterator)


def test_a_batch_that_is_corrupt_stays_so() -> None:
    """R4: a record that is shorter than it says, behind one with an odd name."""
    records = bytearray(write_batch([Raw("ff"), "a"]))
    records[-1] += 2
    with pytest.raises(CorruptRecordError):
        read_batch(bytes(records))
