"""Records of one Avro schema as columns, by the schema that they were written with."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from typing import Any, Self

import pyarrow

from airflow_provider_backpressure.connectors.kafka import avro_schema
from airflow_provider_backpressure.connectors.kafka.avro_schema import Field, Node
from airflow_provider_backpressure.connectors.kafka.tasks.avro_batch_decoder import (
    read,
    read_branches,
    read_texts,
    skip,
)
from airflow_provider_backpressure.connectors.kafka.tasks.avro_to_json import read_as, write_default
from airflow_provider_backpressure.connectors.kafka.tasks.message_buffer import Messages, spread
from airflow_provider_backpressure.core.snapshot.spark_messages import Column
from airflow_provider_backpressure.spark.column_types import carrier

_HEAD = 5
"""Bytes before each value."""
_FRAME = bytes(_HEAD)
_SCALE = re.compile(r"numeric\(\d+,(\d+)\)")
"""Digits behind the point of a column of decimals."""


@dataclass(frozen=True, kw_only=True)
class AvroSchema:
    """A schema that records were written with, and the latest one, by which they are read."""

    writer: Node
    reader: Node
    whole: str
    """Name of the column of a value that is no record."""
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
        return cls(
            writer=parse_pinned(decoding, schema_id),
            reader=parse_pinned(decoding, decoding["latest"]),
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
        wanted = {column.name: column for column in columns}
        found = self._read(messages, wanted)
        behind = messages.at != messages.end
        if behind.any():
            messages.refuse(messages.all()[behind], "bytes follow its end")
        return [found[column.name] for column in columns], messages.problems

    def _read(self, messages: Messages, wanted: Mapping[str, Column]) -> dict[str, pyarrow.Array]:
        rows = messages.all()
        if self.as_text and avro_schema.record_of(self.writer) is not None:
            return {self.whole: self._read_texts(messages)}
        record = avro_schema.record_of(self.writer)
        if record is not None and record is not self.writer:
            return self._optional(messages, record, wanted)
        return self._fields(messages, rows, avro_schema.fields_of(self.writer, self.whole), wanted)

    def _read_texts(self, messages: Messages) -> pyarrow.Array:
        latest = avro_schema.record_of(self.reader)
        if not self.by_latest or latest is None:
            return read(messages, self.writer, messages.all(), "json")
        return read_texts(messages, messages.all(), partial(read_as, self.writer, latest))

    def _optional(self, messages: Messages, record: Node, wanted: Mapping[str, Column]) -> dict[str, pyarrow.Array]:
        """Read records of which some are null: all of their columns are NULL."""
        rows = messages.all()
        there = read_branches(messages, self.writer, rows) == self.writer.branches.index(record)
        found = self._fields(messages, rows[there], record.fields, wanted)
        return {name: spread(column, there) for name, column in found.items()}

    def _fields(
        self, messages: Messages, rows: Any, fields: Sequence[Field], wanted: Mapping[str, Column]
    ) -> dict[str, pyarrow.Array]:
        found = {}
        for each in fields:
            messages.at_field = each.name
            column = wanted.get(self.names.get(each.name, each.name))
            if column is None:
                skip(messages, each.node, rows)
            else:
                found[column.name] = self._column(messages, each, rows, column)
        messages.at_field = ""
        return found | {name: self._default(each, len(rows)) for name, each in wanted.items() if name not in found}

    def _column(self, messages: Messages, each: Field, rows: Any, column: Column) -> pyarrow.Array:
        raw = each.name in self.raw or _is_text(each.node, column)
        written = avro_schema.column_type(each.node, raw=raw)
        values = read(messages, each.node, rows, written)
        type_ = carrier(column.type)[0]
        if written != column.type and type_ == pyarrow.string() and (digits := _SCALE.fullmatch(column.type)):
            return _write_decimals(values, int(digits[1]))
        return values if values.type == type_ else values.cast(type_)

    def _default(self, column: Column, count: int) -> pyarrow.Array:
        """Return what records have that were written before a field was there: the default of the latest schema."""
        if column.name not in self._defaults:
            self._defaults[column.name] = self._read_default(column)
        return self._defaults[column.name].take(_zeros(count))

    def _read_default(self, column: Column) -> pyarrow.Array:
        for each in avro_schema.fields_of(self.reader, self.whole):
            if self.names.get(each.name, each.name) == column.name and each.has_default:
                one = Messages(payloads=[_FRAME + write_default(each.node, each.default)], skip=_HEAD)
                return self._column(one, each, one.all(), column)
        return pyarrow.nulls(1, carrier(column.type)[0])


def _is_text(node: Node, column: Column) -> bool:
    """Whether a text of a schema is one by the latest too, which has it no longer as a UUID: its letters stay."""
    return column.type == "text" and [each.kind for each in node.present] == ["string"]


def _write_decimals(values: pyarrow.Array, scale: int) -> pyarrow.Array:
    """Return decimals of a schema with fewer digits as PostgreSQL prints those of the column; Arrow has exponents."""
    found = [None if each is None else f"{Decimal(each):.{scale}f}" for each in values.to_pylist()]
    return pyarrow.array(found, pyarrow.string())


def _zeros(count: int) -> pyarrow.Array:
    return pyarrow.Array.from_buffers(pyarrow.int64(), count, [None, pyarrow.py_buffer(bytes(8 * count))])


def parse_pinned(decoding: Mapping[str, Any], schema_id: int) -> Node:
    """Return the type of a schema that a plan has pinned."""
    known = decoding["schemas"][str(schema_id)]
    references = [text for _, text in known["references"]]
    return avro_schema.parse(known["schema"], references, connect="events" in decoding)
