"""Records of one Protobuf schema as columns, by the schema that they were written with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy
import pyarrow

from airflow_provider_backpressure.connectors.kafka.protobuf_schema import Message, Schema, load
from airflow_provider_backpressure.connectors.kafka.tasks.avro_to_json import Malformed
from airflow_provider_backpressure.connectors.kafka.tasks.message_buffer import Messages
from airflow_provider_backpressure.connectors.kafka.tasks.protobuf_batch_decoder import Scan, default_column
from airflow_provider_backpressure.connectors.kafka.tasks.protobuf_to_json import (
    put_in_order,
    read_message,
    read_varint,
    unfold_sign,
    write_varint,
)
from airflow_provider_backpressure.core.snapshot.spark_messages import Column
from airflow_provider_backpressure.spark.arrow_buffers import of_bytes, of_numbers
from airflow_provider_backpressure.spark.column_types import carrier

_HEAD = 5
"""Bytes before the place of the message in its schema."""
_DEEPEST = 100


@dataclass(frozen=True, kw_only=True)
class ProtobufSchema:
    """A schema that records were written with, and the latest one, by which they are read."""

    schema: Schema
    writer: Message
    reader: Message
    whole: str
    """Name of the column of a value that is one text."""
    as_text: bool
    """Whether a record is one text rather than a column for each field, as a key is."""
    raw: Sequence[str]
    names: Mapping[str, str]
    by_latest: bool = False
    """Whether a record that is one text is written as the latest schema has it."""
    _defaults: dict[str, pyarrow.Array] = field(default_factory=dict)

    @classmethod
    def load(cls, decoding: Mapping[str, Any], schema_id: int, part: str, *, by_latest: bool = False) -> Self:
        """Return a schema that a plan has pinned."""
        schema, latest = (_load(decoding, each) for each in (schema_id, decoding["latest"]))
        name = decoding["message"]
        return cls(
            schema=schema,
            writer=schema.messages[name],
            reader=latest.messages[name],
            whole=part,
            as_text=part == "key",
            raw=decoding["raw"],
            names=decoding["names"],
            by_latest=by_latest,
        )

    def decode(
        self, payloads: Sequence[bytes], columns: Sequence[Column]
    ) -> tuple[list[pyarrow.Array], dict[int, str]]:
        """Return the columns of records, each behind its frame, and why some cannot be taken, by their number."""
        messages = Messages(payloads=payloads, skip=_HEAD)
        self._pass_places(messages)
        if self.as_text:
            return [self._read_texts(messages)], messages.problems
        found, doubtful = self._read(messages, columns, ordered=False)
        if len(doubtful):
            again = self._put_in_order(messages, doubtful)
            others, _ = self._read(again, columns, ordered=True)
            messages.problems.update({int(doubtful[row]): reason for row, reason in again.problems.items()})
            places = numpy.arange(len(payloads))
            places[doubtful] = numpy.arange(len(payloads), len(payloads) + len(doubtful))
            at = of_numbers(places, pyarrow.int64())
            found = [pyarrow.concat_arrays(both).take(at) for both in zip(found, others, strict=True)]
        return found, messages.problems

    def _pass_places(self, messages: Messages) -> None:
        """Pass the place of each message in its schema, and refuse those of other messages than the one that is read.

        A place is the count of its numbers and these; that of the first message is a single zero.
        """
        path = self.schema.paths[self.writer.name]
        place = numpy.frombuffer(_write_path(path), "u1")
        rows = messages.all()
        fits = messages.at + len(place) <= messages.end
        for index, byte in enumerate(place.tolist()):
            fits &= messages.data[numpy.minimum(messages.at + index, messages.end)] == byte
        messages.at[fits] += len(place)
        for row in rows[~fits].tolist():
            base, end = int(messages.base[row]), len(messages.payloads[row])
            try:
                found, behind = _read_path(messages.payloads[row], _HEAD, end)
                if found != path:
                    raise Malformed(self._describe_other(found))
            except Malformed as error:
                messages.refuse(numpy.array([row]), str(error))
            else:
                messages.at[row] = base + behind

    def _describe_other(self, path: tuple[int, ...]) -> str:
        names = [name for name, each in self.schema.paths.items() if each == path]
        if not names:
            return f"its schema has no message at {list(path)}"
        return f"it is the message {names[0]}, and message {self.writer.name} is read"

    def _read(
        self, messages: Messages, columns: Sequence[Column], *, ordered: bool
    ) -> tuple[list[pyarrow.Array], numpy.ndarray]:
        """Return the columns, and which messages have to be put in order first."""
        scan = Scan(messages=messages, message=self.writer, raw=self.raw, ordered=ordered)
        doubtful = scan.read(messages.all()[~messages.refused])
        good = ~messages.refused
        good[doubtful] = False
        scan.check_required(messages.all()[good])
        fields = {self.names.get(each.name, each.name): each for each in self.writer.fields}
        found = []
        for column in columns:
            each, type_ = fields.get(column.name), carrier(column.type)[0]
            values = self._default(column, len(messages.payloads)) if each is None else scan.column(each)
            found.append(values if values.type == type_ else values.cast(type_))
        return found, doubtful

    def _put_in_order(self, messages: Messages, rows: numpy.ndarray) -> Messages:
        """Return these messages with their fields in order, each once."""
        bodies, reasons = [], {}
        for index, row in enumerate(rows.tolist()):
            payload = messages.payloads[row]
            _, start = _read_path(payload, _HEAD, len(payload))
            try:
                bodies.append(put_in_order(self.writer, payload, start, len(payload)))
            except Malformed as error:
                bodies.append(b"")
                reasons[index] = str(error)
        found = Messages(payloads=bodies, skip=0)
        for index, reason in reasons.items():
            found.refuse(numpy.array([index]), reason)
        return found

    def _read_texts(self, messages: Messages) -> pyarrow.Array:
        texts: list[bytes | None] = []
        for row in messages.all().tolist():
            payload, base = messages.payloads[row], int(messages.base[row])
            try:
                text = "" if messages.refused[row] else self._read_text(payload, int(messages.at[row]) - base)
            except Malformed as error:
                messages.refuse(numpy.array([row]), str(error))
                text = ""
            texts.append(text.encode())
        return of_bytes(texts, pyarrow.string())

    def _read_text(self, payload: bytes, at: int) -> str:
        return read_message(self.reader if self.by_latest else self.writer, payload, at, len(payload))

    def _default(self, column: Column, count: int) -> pyarrow.Array:
        """Return what records have that were written before a field was there: what it is where it is not set."""
        if column.name not in self._defaults:
            later = [each for each in self.reader.fields if self.names.get(each.name, each.name) == column.name]
            type_ = carrier(column.type)[0]
            found = default_column(later[0], raw=later[0].name in self.raw) if later else pyarrow.nulls(1, type_)
            self._defaults[column.name] = found
        return self._defaults[column.name].take(of_numbers(numpy.zeros(count, "i8"), pyarrow.int64()))


def _load(decoding: Mapping[str, Any], schema_id: int) -> Schema:
    known = decoding["schemas"][str(schema_id)]
    return load(known["schema"], [(name, text) for name, text in known["references"]])


def _write_path(path: tuple[int, ...]) -> bytes:
    """Return the place of a message as Confluent's serializers write it."""
    if path == (0,):
        return b"\0"
    return b"".join(write_varint(each << 1) for each in (len(path), *path))


def _read_path(data: bytes, at: int, end: int) -> tuple[tuple[int, ...], int]:
    """Return the place of a message and the position behind it."""
    count, at = read_varint(data, at, end)
    count = unfold_sign(count)
    if not 0 <= count <= _DEEPEST:
        raise Malformed("it does not begin with the place of its message in the schema")
    path = []
    for _ in range(count):
        each, at = read_varint(data, at, end)
        path.append(unfold_sign(each))
    return tuple(path) or (0,), at
