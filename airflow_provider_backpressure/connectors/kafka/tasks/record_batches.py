"""Records of a topic as columns: what Kafka says of each, and its value as bytes, as JSON text, or field by field."""

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy
import pyarrow

from airflow_provider_backpressure.connectors.kafka.debezium_envelope import ENVELOPE, Placeholder
from airflow_provider_backpressure.connectors.kafka.headers import NO_UTF8, UNREADABLE, list_headers
from airflow_provider_backpressure.connectors.kafka.record_columns import KEY, VALUE, find_key, find_values
from airflow_provider_backpressure.connectors.kafka.tasks.debezium_avro import MARK
from airflow_provider_backpressure.connectors.kafka.tasks.debezium_json import ChangeEvents
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
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, ReadSpec
from airflow_provider_backpressure.core.snapshot.topic_offsets import HIDDEN_PLACE, PLACE, TOMBSTONE, list_marks
from airflow_provider_backpressure.spark import arrow_buffers as buffers
from airflow_provider_backpressure.spark.column_types import carrier
from airflow_provider_backpressure.spark.stream_end import BAD, bad

if TYPE_CHECKING:
    from confluent_kafka import Message

Decoders = Mapping[str, Decoder]
"""What takes keys and values apart that go by schemas of a registry, by ``key`` and ``value``."""
NO_DECODERS: Decoders = {}


def to_decoders(read: ReadSpec) -> Decoders:
    """Return what takes keys and values apart, as a plan has it."""
    events = ENVELOPE in read.decoding
    # Change events are deleted by their keys, also where these do not arrive.
    key = find_key(read.columns) or (Column(name=KEY, type="text") if events else None)
    values = (*find_values(read.columns), *((MARK,) if events else ()))
    columns = {KEY: () if key is None else (key,), VALUE: values}
    return {
        part: Decoder(
            decoding=read.decoding[part], columns=found, part=part, by_latest=part == KEY and _goes_by_text(read)
        )
        for part, found in columns.items()
        if found and part in read.decoding
    }


def _goes_by_text(read: ReadSpec) -> bool:
    """Whether rows are upserted by the text of a key, or may be: a transform can make a row's key of it.

    Change events go by the fields of their keys. A plan of an earlier release has all texts by the records' schemas.
    """
    upserted = KEY in read.row_key or (bool(read.row_key) and ENVELOPE not in read.decoding)
    return upserted and "other_keys" in read.decoding[KEY]


def to_events(read: ReadSpec) -> ChangeEvents | None:
    """Return what reads the values of a topic of change events; ``None`` where they are plain values."""
    envelope = read.decoding.get(ENVELOPE)
    if envelope is None:
        return None
    decoders = to_decoders(read)
    columns = find_values(read.columns)
    fields = decoders["value"].fields() if "value" in decoders else columns
    # A key has the names of the fields, also where columns are named otherwise.
    names = {column.name: each.name for column, each in zip(columns, fields, strict=False)}
    key = frozenset(names[name] for name in read.row_key) if names.keys() >= set(read.row_key) else frozenset[str]()
    placeholder = Placeholder(text=envelope["placeholder"])
    return ChangeEvents(**{**envelope, "placeholder": placeholder}, row_key=key)


_UNTIMED, _NO_TIMESTAMP = 0, -1
"""Kind of time that says that there is none."""
_NULL_TIMES = 'Set bad_timestamps="null" on the source to read it as NULL. '
_NO_HEADERS = "Leave headers out with columns= on the source to read it without them. "


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
    by_field: bool = False,
) -> pyarrow.RecordBatch:
    """Return records as a batch of these columns; ``SourceRefused`` names the first that is not what they say.

    ``trusts``: whether a value that is one JSON text need not be looked at here. ``null_times``: whether a record's
    timestamp that no reader holds becomes NULL. ``events``: what reads values that are change events. ``marks``:
    whether those of :func:`.list_marks` come behind the columns. ``by_field``: whether a lone column ``value`` is a
    field too, and not the whole value.
    """
    key, values = find_key(columns), find_values(columns)
    keys = [] if key is None and KEY not in decoders else _keys(records, key, decoders.get(KEY))
    found: list[pyarrow.Array] = []
    if events is not None:
        found, deletes = _read_events(records, keys, values, decoders, events)
    else:
        if values:
            found = _values(records, values, decoders.get(VALUE), trusts=trusts, by_field=by_field)
        deletes = [value is None for value in each_part(records, "value")] if marks else []
    made = dict(zip((column.name for column in values), found, strict=True))
    if key is not None:
        made[KEY] = keys[0]
    if marks:
        made[TOMBSTONE] = pyarrow.array(deletes, pyarrow.bool_())
    return _make_batch(records, columns, topic, made, marks=marks, null_times=null_times, null_headers=False)


def _make_batch(
    records: Records,
    columns: Sequence[Column],
    topic: str,
    made: Mapping[str, pyarrow.Array],
    *,
    marks: bool,
    null_times: bool,
    null_headers: bool,
) -> pyarrow.RecordBatch:
    """Return the columns that are made already with those that Kafka says of records.

    ``null_headers``: whether headers that no client can give are NULL.
    """
    given: dict[str, Callable[[], pyarrow.Array]] = {
        "topic": lambda: pyarrow.repeat(buffers.text(topic), len(records)),
        "partition": lambda: _numbers(records, "partition", pyarrow.int32()),
        "offset": lambda: _numbers(records, "offset", pyarrow.int64()),
        "timestamp": lambda: _times(records, null_times=null_times),
        "headers": lambda: _headers(records, null_headers=null_headers),
    }
    given |= {HIDDEN_PLACE[name].name: given[name] for name in PLACE}
    names = [*(column.name for column in columns), *(each.name for each in (list_marks(columns) if marks else ()))]
    # Kafka's own columns first: no field has the name of one.
    return pyarrow.record_batch([given[name]() if name in given else made[name] for name in names], names=names)


def _read_events(
    records: Records,
    keys: Sequence[pyarrow.Array],
    columns: Sequence[Column],
    decoders: Decoders,
    events: ChangeEvents,
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


def _key_words(records: Records, keys: Sequence[pyarrow.Array], decoders: Decoders) -> Iterable[bytes | str | None]:
    """Return keys as JSON: as they were sent, or as a registry's schema has made it of them."""
    return keys[0].to_pylist() if KEY in decoders else each_part(records, "key")


def to_batch_with_bad(
    records: Records, columns: Sequence[Column], topic: str, *, marks: bool = False, **settings: Any
) -> pyarrow.RecordBatch:
    """Return records as a batch of these columns and :data:`BAD`, which names those that are not what they say.

    ``settings``: of :func:`to_batch`.
    """
    make = partial(to_batch, columns=columns, topic=topic, marks=marks, **settings)
    put_aside = partial(_put_aside, columns=columns, topic=topic, marks=marks)
    pieces = list(_isolate(records, make, put_aside))
    return pieces[0] if len(pieces) == 1 else pyarrow.Table.from_batches(pieces).combine_chunks().to_batches()[0]


def _isolate(
    records: Records,
    make: Callable[[Records], pyarrow.RecordBatch],
    put_aside: Callable[["Message", str], pyarrow.RecordBatch],
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
        yield from _isolate(records[:at], make, put_aside)
        yield put_aside(records[at], error.reason)
        yield from _isolate(records[at + 1 : half], make, put_aside)
        yield from _isolate(records[half:], make, put_aside)
        return
    yield _mark_rows(batch, None)


def _mark_rows(batch: pyarrow.RecordBatch, mark: str | None) -> pyarrow.RecordBatch:
    return batch.append_column(BAD, pyarrow.array([mark] * batch.num_rows, pyarrow.string()))


def _put_aside(
    record: "Message", reason: str, columns: Sequence[Column], topic: str, *, marks: bool
) -> pyarrow.RecordBatch:
    """Return what Kafka says of a record, without key and value, with the reason and its position."""
    nothing = {column.name: pyarrow.nulls(1, carrier(column.type)[0]) for column in columns}
    made = {**nothing, TOMBSTONE: pyarrow.repeat(buffers.FALSE, 1)}
    row = _make_batch([record], columns, topic, made, marks=marks, null_times=True, null_headers=True)
    place = {"partition": record.partition(), "offset": record.offset()}
    return _mark_rows(row, bad(reason, record.value(), place))


def _keys(records: Records, column: Column | None, decoder: Decoder | None) -> list[pyarrow.Array]:
    if decoder is not None:
        return _decode(records, decoder)
    return [read_bytes(records, "key") if column and column.type == "bytea" else _key_texts(records)]


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
    records: Records, columns: Sequence[Column], decoder: Decoder | None, *, trusts: bool, by_field: bool
) -> list[pyarrow.Array]:
    if decoder is not None:
        return _decode(records, decoder)
    whole = len(columns) == 1 and columns[0].name == VALUE and not by_field
    if whole and columns[0].type == "bytea":
        return [read_bytes(records, "value")]
    if whole and columns[0].type == "json":
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


def _headers(records: Records, *, null_headers: bool) -> pyarrow.Array:
    """Return lists of objects, as headers have an order and may repeat; bytes that are no text are in base64."""
    every = list_headers(records)
    if not any(every):
        return pyarrow.nulls(len(every), pyarrow.string())
    unreadable = [record for record, found in zip(records, every, strict=True) if found is UNREADABLE]
    if unreadable and not null_headers:
        refuse(unreadable[0], NO_UTF8, _NO_HEADERS)
    every = [None if found is UNREADABLE else found for found in every]
    texts = [json.dumps([_header(key, value) for key, value in found]) if found else None for found in every]
    return pyarrow.array(texts, pyarrow.string())


def _header(key: str, value: bytes | None) -> dict[str, str | None]:
    try:
        return {"key": key, "value": None if value is None else value.decode()}
    except UnicodeDecodeError:
        return {"key": key, "base64": base64.b64encode(value or b"").decode()}
