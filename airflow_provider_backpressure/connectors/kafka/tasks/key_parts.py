"""Parts of a topic's keys: which records and rows are of one part, by the key of their rows in the target.

Several ranges read the same offsets, and each keeps its own part of them. So a record must be of the same part for
every reader, and so must two records of one row. What is hashed here is a contract with plans that began under another
release.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING
from zlib import crc32

import numpy
import pyarrow
import pyarrow.compute as pc

from airflow_provider_backpressure.connectors.kafka.record_columns import KEY
from airflow_provider_backpressure.connectors.kafka.tasks.json_values import Records, each_part
from airflow_provider_backpressure.core.snapshot.bounds import Part
from airflow_provider_backpressure.core.snapshot.spark_messages import ReadSpec

if TYPE_CHECKING:
    from confluent_kafka import Message


def goes_by_bytes(read: ReadSpec) -> bool:
    """Whether rows go by the key of their records as Kafka carries it, so that records need not be decoded first."""
    return read.row_key == (KEY,) and KEY not in read.decoding


def select_records(records: Records, part: Part) -> "list[Message]":
    """Return the records whose key is of a part."""
    chosen = _find_parts([_trim(key or b"") for key in each_part(records, "key")], part[1]) == part[0]
    return [record for record, own in zip(records, chosen, strict=True) if own]


def select_rows(batch: pyarrow.RecordBatch, read: ReadSpec, part: Part) -> pyarrow.RecordBatch:
    """Return the rows of a part. A record that could not be taken apart has no key, and so is of one part too."""
    types = {column.name: column.type for column in read.columns}
    columns = [_write(batch.column(name), types[name]) for name in read.row_key]
    found = _find_parts([b"\0".join(values) for values in zip(*columns, strict=True)], part[1])
    return batch.filter(pyarrow.array(found == part[0]))


def _write(values: pyarrow.Array, type_: str) -> list[bytes]:
    """Return values in the one way in which each of them can be written; NULL as nothing."""
    if pyarrow.types.is_date32(values.type):
        values = values.cast(pyarrow.int32())
    if type_ == "uuid":
        values = pc.replace_substring_regex(pc.ascii_lower(values), "[{}-]", "")
    if not pyarrow.types.is_binary(values.type):
        values = values.cast(pyarrow.string()).cast(pyarrow.binary())
    return [_trim(value or b"") for value in values.to_pylist()]


def _trim(text: bytes) -> bytes:
    """Return a text without the blanks at its end, which some types of PostgreSQL drop."""
    return text.rstrip(b" ")


def _find_parts(keys: Sequence[bytes], parts: int) -> "numpy.ndarray[tuple[int], numpy.dtype[numpy.uint32]]":
    """Return the part of each key.

    Clients of Kafka choose partitions by the same CRC, or by Murmur's hash: so what it leaves is mixed once more, or
    all keys of a partition would be of one part.
    """
    found = numpy.fromiter(map(crc32, keys), numpy.uint32, len(keys))
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        found ^= found >> numpy.uint32(shift)
        found *= numpy.uint32(factor)
    found ^= found >> numpy.uint32(16)
    return found % numpy.uint32(parts)
