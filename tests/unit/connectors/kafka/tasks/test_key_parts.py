"""Parts of keys: each record is of one part, the same in every release, and equal keys are of the same one."""

import random
import uuid
from collections import Counter
from itertools import chain
from typing import Any
from zlib import crc32

import pytest

from airflow_provider_backpressure.connectors.kafka.source.config import columns_of
from airflow_provider_backpressure.connectors.kafka.tasks.key_parts import (
    goes_by_bytes,
    select_records,
    select_rows,
)
from airflow_provider_backpressure.connectors.kafka.tasks.record_batches import to_batch, to_batch_with_bad
from airflow_provider_backpressure.core.snapshot.spark_messages import ReadSpec
from airflow_provider_backpressure.sources import KafkaSource
from tests.unit.connectors.kafka.tasks.test_record_batches import Sent

pytestmark = pytest.mark.statement("X1")

GOLDEN_BYTES = [[0, 2, 3], [5], [4], [1]]
GOLDEN_FIELDS = [[0], [1, 4], [2, 3], [5]]
FIELDS = {"small": "smallint", "whole": "integer", "id": "bigint", "day": "date"}


def reading(*row_key: str, keep_bad: bool = False, **declared: Any) -> ReadSpec:
    """Return how a topic is read that is upserted by these columns."""
    columns = columns_of(KafkaSource(conn_id="c", topic="orders", **declared))
    return ReadSpec(kind="kafka", conn_id="c", columns=columns, row_key=row_key, keep_bad=keep_bad)


def offsets_by_part(records: list[Sent], read: ReadSpec, parts: int) -> list[list[int]]:
    """Return for each part the offsets of its rows, as they are read."""
    make = to_batch_with_bad if read.keep_bad else to_batch
    found = []
    for number in range(parts):
        own = select_records(records, (number, parts)) if goes_by_bytes(read) else records
        batch = make(own, read.columns, "orders") if own else None
        if batch is not None and not goes_by_bytes(read):
            batch = select_rows(batch, read, (number, parts))
        found.append(batch["offset"].to_pylist() if batch is not None else [])
    return found


@pytest.mark.parametrize("key", ["bytes", "text"])
def test_keys_of_records_are_of_the_same_part_before_and_after_they_are_decoded(key: str) -> None:
    """X1: one without a key too, which a range then refuses."""
    keys = [None, b"", b"a", b"a  ", "é".encode(), *(str(number).encode() for number in range(200))]
    records = [Sent(b"1", keyed=each, at=at) for at, each in enumerate(keys)]
    read = reading("key", key=key)
    assert goes_by_bytes(read)
    found = offsets_by_part(records, read, 3)
    whole = to_batch(records, read.columns, "orders")
    assert found == [select_rows(whole, read, (number, 3))["offset"].to_pylist() for number in range(3)]
    assert sorted(chain.from_iterable(found)) == list(range(len(keys)))
    assert all(each == sorted(each) for each in found), "the order of the log stays"


def test_a_part_is_the_same_in_every_release() -> None:
    """X1: ranges of one plan may be read by workers of two releases."""
    records = [Sent(b"1", keyed=each.encode(), at=at) for at, each in enumerate(["", "a", "b", "42", "order-7", "é"])]
    assert offsets_by_part(records, reading("key"), 4) == GOLDEN_BYTES
    values = [b'{"small": 1, "whole": -5, "id": %d, "day": "2026-11-27"}' % number for number in range(6)]
    rows = [Sent(value, at=at) for at, value in enumerate(values)]
    assert offsets_by_part(rows, reading(*FIELDS, fields=FIELDS), 4) == GOLDEN_FIELDS


def test_values_that_the_target_takes_for_equal_are_of_one_part() -> None:
    """X1: a number however it is written, a UUID in any case, and a text that only ends in blanks."""
    draw = random.Random(5)
    records = []
    for number in range(100):
        code = uuid.UUID(int=draw.getrandbits(128))
        one = f'{{"id": {number}, "code": "{code}", "name": "n{number}"}}'
        other = f'{{"name":"n{number}   ", "code": "{{{str(code).upper()}}}" , "id":   {number}}}'
        records += [Sent(one.encode(), at=number), Sent(other.encode(), at=number)]
    fields = {"id": "bigint", "code": "uuid", "name": "character varying(9)"}
    for key in (["id"], ["code"], ["name"], ["id", "code", "name"]):
        found = offsets_by_part(records, reading(*key, fields=fields), 5)
        assert {number for each in found for number in Counter(each).values()} == {2}, key
        assert sorted(chain.from_iterable(found)) == sorted([*range(100)] * 2)


def test_a_record_that_cannot_be_taken_apart_is_of_one_part() -> None:
    """X1: it is kept aside once, although every part reads it."""
    values = [b'{"id": 1}', b"no JSON", *(b'{"id": %d}' % number for number in range(2, 40)), b'{"id": "x"}']
    records = [Sent(value, at=at) for at, value in enumerate(values)]
    found = offsets_by_part(records, reading("id", fields={"id": "bigint"}, keep_bad=True), 4)
    assert any({1, 40} <= set(each) for each in found)
    assert sorted(chain.from_iterable(found)) == list(range(41))


@pytest.mark.parametrize("partitions", [2, 3, 4, 8])
def test_the_keys_of_one_partition_are_spread_over_all_parts(partitions: int) -> None:
    """X1: librdkafka chooses the partition by the CRC of the key, so that alone would put all of them in one part."""
    keys = [str(number).encode() for number in range(40_000)]
    own = [Sent(b"1", keyed=key, at=at) for at, key in enumerate(keys) if crc32(key) % partitions == 0]
    sizes = [len(select_records(own, (number, 4))) for number in range(4)]
    assert sum(sizes) == len(own)
    assert max(sizes) < 1.1 * len(own) / 4


def test_keys_that_go_by_a_schema_are_decoded_first() -> None:
    """X1: their bytes name the schema, and two schemas write one key differently."""
    plain = reading("key")
    assert goes_by_bytes(plain)
    assert not goes_by_bytes(
        ReadSpec(kind="kafka", conn_id="c", columns=plain.columns, row_key=("key",), decoding={"key": {}})
    )
    assert not goes_by_bytes(reading("id", fields={"id": "bigint"}))
