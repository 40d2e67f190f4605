"""Records of a topic as columns: what Kafka says of each, and its value as bytes, as JSON text, or field by field."""

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy
import pyarrow

from airflow_provider_backpressure.connectors.kafka.change_events import ENVELOPE, Placeholder
from airflow_provider_backpressure.connectors.kafka.tasks.avro_events import MARK
from airflow_provider_backpressure.connectors.kafka.tasks.debezium import ChangeEvents
from airflow_provider_backpressure.connectors.kafka.tasks.json_values import (
    FIRST_MILLIS,
    LAST_MILLIS,
    OUTSIDE,
    Records,
    Unreadable,
    each_part,
    json_columns,
    json_texts,
    read_bytes,
    read_text,
    refuse,
)
from airflow_provider_backpressure.connectors.kafka.tasks.wire_format import HEAD, Decoder
from airflow_provider_backpressure.core.snapshot.messages import Column, ReadSpec
from airflow_provider_backpressure.core.snapshot.offsets import TOMBSTONE
from airflow_provider_backpressure.spark import arrow_buffers as buffers
from airflow_provider_backpressure.spark.stream_end import BAD, bad
from airflow_provider_backpressure.spark.types import carrier

if TYPE_CHECKING:
    from confluent_kafka import Message

Decoders = Mapping[str, Decoder]
"""What takes keys and values apart that go by schemas of a registry, by ``key`` and ``value``."""
NO_DECODERS: Decoders = {}


def to_decoders(read: ReadSpec) -> Decoders:
    """Return what takes keys and values apart, as a plan has it."""
    hidden = (MARK,) if ENVELOPE in read.decoding else ()
    columns = {"key": read.columns[GIVEN - 2 : GIVEN - 1], "value": (*read.columns[GIVEN:], *hidden)}
    return {
        part: Decoder(decoding=read.decoding[part], columns=columns[part], part=part)
        for part in columns
        if part in read.decoding
    }


def to_events(read: ReadSpec) -> ChangeEvents | None:
    """Return what reads the values of a topic of change events; ``None`` where they are plain values."""
    envelope = read.decoding.get(ENVELOPE)
    if envelope is None:
        return None
    decoders = to_decoders(read)
    columns = read.columns[GIVEN:]
    fields = decoders["value"].fields() if "value" in decoders else columns
    # A key has the names of the fields, also where columns are named otherwise.
    names = {column.name: each.name for column, each in zip(columns, fields, strict=False)}
    key = frozenset(names[name] for name in read.row_key) if names.keys() >= set(read.row_key) else frozenset[str]()
    placeholder = Placeholder(text=envelope["placeholder"])
    return ChangeEvents(**{**envelope, "placeholder": placeholder}, row_key=key)


GIVEN = 6
"""Columns that come with every record, before the value or its fields."""
_UNTIMED, _NO_TIMESTAMP = 0, -1
"""Kind of time that says that there is none."""
_NULL_TIMES = 'Set bad_timestamps="null" on the source to read it as NULL. '


def to_batch(
    records: Records,
    columns: Sequence[Column],
    topic: str,
    *,
    trusts: bool = False,
    null_times: bool = False,
    decoders: Decoders = NO_DECODERS,
    events: ChangeEvents | None = None,
    marks: bool = False,
) -> pyarrow.RecordBatch:
    """Return records as a batch of these columns; ``SourceRefused`` names the first that is not what they say.

    ``trusts``: whether a value that is one JSON text need not be looked at here. ``null_times``: whether a record's
    timestamp that no reader holds becomes NULL. ``events``: what reads values that are change events. ``marks``:
    whether :data:`TOMBSTONE` comes behind the columns.
    """
    keys = _keys(records, columns[GIVEN - 2], decoders.get("key"))
    values = columns[GIVEN:]
    if events is not None:
        found, deletes = _read_events(records, keys[0], values, decoders, events)
    else:
        found = _values(records, values, decoders.get("value"), trusts=trusts)
        deletes = [value is None for value in each_part(records, "value")] if marks else []
    arrays = [
        pyarrow.repeat(buffers.text(topic), len(records)),
        _numbers(records, "partition", pyarrow.int32()),
        _numbers(records, "offset", pyarrow.int64()),
        _times(records, null_times=null_times),
        *keys,
        _headers(records),
        *found,
        *([pyarrow.array(deletes, pyarrow.bool_())] if marks else []),
    ]
    return pyarrow.record_batch(arrays, names=_names(columns, marks=marks))


def _names(columns: Sequence[Column], *, marks: bool) -> list[str]:
    return [*(column.name for column in columns), *([TOMBSTONE] if marks else [])]


def _read_events(
    records: Records, keys: pyarrow.Array, columns: Sequence[Column], decoders: Decoders, events: ChangeEvents
) -> tuple[list[pyarrow.Array], list[bool]]:
    """Return the columns of change events, and which records delete their row."""
    words = list(_key_words(records, keys, decoders))
    if "value" not in decoders:
        return events.read(records, words, columns)
    *found, marks = _decode(records, decoders["value"])
    for record, key in zip(records, words, strict=True):
        events.check_key(record, key)
    # A record without a value is a tombstone.
    deletes = [mark is not False for mark in marks.to_pylist()]
    if any(deletes):
        # A key has the names of the fields, also where columns are named otherwise.
        found = events.fill_from_keys(records, words, decoders["value"].fields()[: len(found)], found, deletes)
    return found, deletes


def _key_words(records: Records, column: pyarrow.Array, decoders: Decoders) -> Iterable[bytes | str | None]:
    """Return keys as JSON: as they were sent, or as a registry's schema has made it of them."""
    return column.to_pylist() if "key" in decoders else each_part(records, "key")


def to_batch_with_bad(
    records: Records, columns: Sequence[Column], topic: str, *, marks: bool = False, **settings: Any
) -> pyarrow.RecordBatch:
    """Return records as a batch of these columns and :data:`BAD`, which names those that are not what they say.

    ``settings``: of :func:`to_batch`.
    """
    make = partial(to_batch, columns=columns, topic=topic, marks=marks, **settings)
    empty = partial(_empty, columns=columns, topic=topic, marks=marks)
    pieces = list(_isolate(records, make, empty))
    return pieces[0] if len(pieces) == 1 else pyarrow.Table.from_batches(pieces).combine_chunks().to_batches()[0]


def _isolate(
    records: Records,
    make: Callable[[Records], pyarrow.RecordBatch],
    empty: Callable[["Message"], pyarrow.RecordBatch],
) -> Iterator[pyarrow.RecordBatch]:
    """Yield the records in pieces: those that are not what they say alone, what is between them together.

    What follows such a record is halved, so that a batch of many of them does not begin again for each.
    """
    if not records:
        return
    try:
        batch = make(records)
    except Unreadable as error:
        at = next(index for index, record in enumerate(records) if record is error.record)
        half = (at + 1 + len(records)) // 2
        yield from _isolate(records[:at], make, empty)
        yield _mark_rows(empty(records[at]), bad(error.reason, records[at].value()))
        yield from _isolate(records[at + 1 : half], make, empty)
        yield from _isolate(records[half:], make, empty)
        return
    yield _mark_rows(batch, None)


def _mark_rows(batch: pyarrow.RecordBatch, mark: str | None) -> pyarrow.RecordBatch:
    return batch.append_column(BAD, pyarrow.array([mark] * batch.num_rows, pyarrow.string()))


def _empty(record: "Message", columns: Sequence[Column], topic: str, *, marks: bool) -> pyarrow.RecordBatch:
    """Return what Kafka says of a record, without key and value."""
    arrays = [
        pyarrow.repeat(buffers.text(topic), 1),
        _numbers([record], "partition", pyarrow.int32()),
        _numbers([record], "offset", pyarrow.int64()),
        _times([record], null_times=True),
        *(pyarrow.nulls(1, carrier(column.type)[0]) for column in columns[GIVEN - 2 :]),
        *([pyarrow.repeat(buffers.FALSE, 1)] if marks else []),
    ]
    return pyarrow.record_batch(arrays, names=_names(columns, marks=marks))


def _keys(records: Records, column: Column, decoder: Decoder | None) -> list[pyarrow.Array]:
    if decoder is not None:
        return _decode(records, decoder)
    return [read_bytes(records, "key") if column.type == "bytea" else _key_texts(records)]


def _decode(records: Records, decoder: Decoder) -> list[pyarrow.Array]:
    """Return the columns of keys or values that go by schemas of a registry."""
    payloads = list(each_part(records, decoder.part))
    arrays: list[pyarrow.Array] = []
    if decoder.is_json:
        problems = decoder.check(payloads)
    else:
        arrays, problems = decoder.decode(payloads)
    if problems:
        first = min(problems)
        refuse(records[first], problems[first])
    return _decode_json(records, payloads, decoder) if decoder.is_json else arrays


def _decode_json(records: Records, payloads: Sequence[bytes | None], decoder: Decoder) -> list[pyarrow.Array]:
    """Return the columns of JSON behind the ids of its schemas."""
    if decoder.part == "key":
        texts = [
            read_text(record, "key", None if payload is None else payload[HEAD:])
            for record, payload in zip(records, payloads, strict=True)
        ]
        return [pyarrow.array(texts, pyarrow.string())]
    values = [None if payload is None else payload[HEAD:] for payload in payloads]
    if decoder.is_whole:
        return [json_texts(records, values, trusts=False)]
    return json_columns(records, values, decoder.fields())


def _values(
    records: Records, columns: Sequence[Column], decoder: Decoder | None, *, trusts: bool
) -> list[pyarrow.Array]:
    if decoder is not None:
        return _decode(records, decoder)
    if len(columns) == 1 and columns[0].name == "value" and columns[0].type == "bytea":
        return [read_bytes(records, "value")]
    if len(columns) == 1 and columns[0].name == "value" and columns[0].type == "json":
        return [json_texts(records, list(each_part(records, "value")), trusts=trusts)]
    return json_columns(records, list(each_part(records, "value")), columns)


def _numbers(records: Records, part: str, type_: pyarrow.DataType) -> pyarrow.Array:
    numbers = numpy.fromiter(each_part(records, part), type_.to_pandas_dtype(), len(records))
    return buffers.of_numbers(numbers, type_)


def _times(records: Records, *, null_times: bool) -> pyarrow.Array:
    found = numpy.fromiter(chain.from_iterable(each_part(records, "timestamp")), "i8", 2 * len(records))
    kinds, millis = found[::2], numpy.ascontiguousarray(found[1::2])
    # Kafka's own sign for none may come with either kind.
    untimed = (kinds == _UNTIMED) | (millis == _NO_TIMESTAMP)
    beyond = ~untimed & ((millis < FIRST_MILLIS) | (millis > LAST_MILLIS))
    if beyond.any() and not null_times:
        refuse(records[int(beyond.argmax())], f"its timestamp {OUTSIDE}", _NULL_TIMES)
    millis[beyond] = 0
    return buffers.of_numbers(millis, pyarrow.timestamp("ms", tz="UTC"), untimed | beyond).cast(
        pyarrow.timestamp("us", tz="UTC")
    )


def _key_texts(records: Records) -> pyarrow.Array:
    return pyarrow.array([read_text(record, "key", record.key()) for record in records], pyarrow.string())


def _headers(records: Records) -> pyarrow.Array:
    """Return lists of objects, as headers have an order and may repeat; bytes that are no text are in base64."""
    every = list(each_part(records, "headers"))
    if not any(every):
        return pyarrow.nulls(len(every), pyarrow.string())
    texts = [json.dumps([_header(key, value) for key, value in found]) if found else None for found in every]
    return pyarrow.array(texts, pyarrow.string())


def _header(key: str, value: bytes | None) -> dict[str, str | None]:
    try:
        return {"key": key, "value": None if value is None else value.decode()}
    except UnicodeDecodeError:
        return {"key": key, "base64": base64.b64encode(value or b"").decode()}
