"""Change events of Debezium in JSON: the row that each record writes or deletes.

A record comes with its schema (``{"schema": …, "payload": …}``) or without. An envelope holds the row before and after
the change; a flattened event is the row itself. A delete and a tombstone delete by the fields of ``before`` and of the
record's key.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow
import pyarrow.compute as pc

from airflow_provider_backpressure.connectors.kafka.debezium_envelope import (
    AFTER,
    BEFORE,
    DELETE,
    FLAT_DELETED,
    FLAT_OP,
    OP,
    SOURCE,
    UNLOGGED,
    WRITES,
    Placeholder,
    describe_op,
)
from airflow_provider_backpressure.connectors.kafka.tasks.json_values import (
    JSON_DECODER,
    Records,
    Verbatim,
    json_field,
    parse_json,
    read_text,
    refuse,
)
from airflow_provider_backpressure.connectors.kafka.tasks.kafka_connect_values import (
    ConnectSchema,
    Convert,
    Unfit,
    find_converter,
)
from airflow_provider_backpressure.core.snapshot.spark_messages import Column

if TYPE_CHECKING:
    from confluent_kafka import Message

_PARTS = {BEFORE, AFTER, OP, SOURCE}
_HEAD, _BETWEEN = '{"schema":', ',"payload":'
_MOST_HEADS = 16
_NEVER_UNLOGGED = (Verbatim, bool)
"""Kinds of values that no placeholder is of."""
Row = Mapping[str, Any]


@dataclass(kw_only=True)
class Schema:
    """What a record's schema says, or that it has none; the same for many records."""

    whole: ConnectSchema | None = None
    _converters: dict[str, Mapping[str, Convert]] = field(default_factory=dict)

    def converters(self, part: str, columns: Sequence[Column], decimals: str) -> Mapping[str, Convert]:
        """Return what makes each field ready for its column. ``part``: of the envelope, empty for the value itself."""
        if part not in self._converters:
            known = self._fields(part)
            self._converters[part] = {
                each.name: find_converter(known.get(each.name), each.type, decimals) for each in columns
            }
        return self._converters[part]

    def _fields(self, part: str) -> Mapping[str, ConnectSchema]:
        if self.whole is None:
            return {}
        fields = {each["field"]: each for each in self.whole.get("fields", ())}
        return {each["field"]: each for each in fields[part].get("fields", ())} if part else fields


@dataclass(frozen=True, kw_only=True)
class Change:
    """What one record does to one row."""

    row: Row
    """Its fields, as JSON has them."""
    schema: Schema
    part: str
    """Where the schema describes the row: ``before``, ``after``, or empty for the value itself."""
    deletes: bool


@dataclass(frozen=True, kw_only=True)
class ChangeEvents:
    """Reads change events as a source declares them."""

    flattened: bool
    """Whether a value is the row itself, as ExtractNewRecordState leaves it."""
    decimals: str
    """How decimals are written that come without a schema: ``decimal.handling.mode``."""
    placeholder: Placeholder
    """What Debezium writes for a value that the source did not log."""
    row_key: frozenset[str] = frozenset()
    """Fields by which the target's rows are written and deleted; empty where they go by the whole key."""
    _heads: dict[str, Schema] = field(default_factory=dict)
    """Schemas by the text in front of the payload: they are the largest part of a record, and all the same."""

    def check_key(self, record: "Message", key: bytes | str | None) -> None:
        """Raise ``SourceRefused`` for a record whose key has other fields than those that rows go by.

        Debezium deletes a row whose own key changes, and keeps the order of the changes of each key. Under another key
        old rows would stay, and rows of several tables would be one.
        """
        if not self.row_key or (fields := self._parse_key(key)[0]).keys() == self.row_key:
            return
        has = f"the fields {', '.join(sorted(fields))}" if fields else "no fields"
        refuse(
            record,
            f"its key has {has}, and rows go by {', '.join(sorted(self.row_key))}: name the fields of the records' key "
            "as the key of the sink, and key=Avro(…) on the source where it is Avro",
        )

    def read(
        self, records: Records, keys: Iterable[bytes | str | None], columns: Sequence[Column]
    ) -> tuple[list[pyarrow.Array], list[bool]]:
        """Return the columns of the rows, and which records delete theirs.

        ``keys``: the JSON of each record's key. ``SourceRefused`` names the first record that cannot be taken.
        """
        rows, deletes = [], []
        for record, key in zip(records, keys, strict=True):
            change = self._find_change(record)
            self.check_key(record, key)
            deletes.append(change is None or change.deletes)
            if change is not None and not change.deletes:
                rows.append(self._convert(record, change, columns))
            else:
                rows.append(self._find_deleted(record, change, key, columns))
        return [json_field(records, rows, column) for column in columns], deletes

    def fill_from_keys(
        self,
        records: Records,
        keys: Iterable[bytes | str | None],
        columns: Sequence[Column],
        found: Sequence[pyarrow.Array],
        deletes: Sequence[bool],
    ) -> list[pyarrow.Array]:
        """Return the columns of rows, where a deleted one has the fields of its record's key too."""
        rows = [
            self._find_deleted(record, None, key, columns) if gone else None
            for record, key, gone in zip(records, keys, deletes, strict=True)
        ]
        return [
            # Bytes are no JSON, so no key has them.
            array if column.type == "bytea" else pc.coalesce(array, json_field(records, rows, column))
            for array, column in zip(found, columns, strict=True)
        ]

    def _find_change(self, record: "Message") -> Change | None:
        """Return what a record does; ``None`` for a tombstone."""
        text = read_text(record, "value", record.value())
        if text is None:
            return None
        value, schema = self._load(record, text)
        if value is None:
            return None
        if not isinstance(value, dict):
            refuse(record, "its value is no JSON object")
        return self._read_flat(record, value, schema) if self.flattened else _open_envelope(record, value, schema)

    def _load(self, record: "Message", text: str) -> tuple[Any, Schema]:
        try:
            return self._split(text)
        except (ValueError, RecursionError):
            # It is not JSON: this names the place.
            parse_json(record, text)
            raise

    def _split(self, text: str) -> tuple[Any, Schema]:
        """Return what a JSON text holds, and its schema; ``ValueError`` where it is no JSON."""
        for head, schema in self._heads.items():
            # Behind the head may be a blank, which the decoder takes only at the beginning of a text.
            if text.startswith(head) and not text[len(head) :][:1].isspace():
                payload, end = JSON_DECODER.raw_decode(text, len(head))
                if text[end:].strip() == "}":
                    return payload, schema
                break
        value = JSON_DECODER.decode(text)
        if not isinstance(value, dict) or value.keys() != {"schema", "payload"}:
            return value, self._unnamed
        if value["schema"] is None:
            return value["payload"], self._unnamed
        schema = Schema(whole=value["schema"])
        if head := _find_head(text, value["schema"]):
            if len(self._heads) >= _MOST_HEADS:
                self._heads.clear()
            self._heads[head] = schema
        return value["payload"], schema

    def _read_flat(self, record: "Message", value: Row, schema: Schema) -> Change:
        if value.keys() >= _PARTS:
            refuse(record, f"its value has {', '.join(sorted(_PARTS))}, and so is no flattened event")
        op = value.get(FLAT_OP)
        if op is not None and op not in (*WRITES, DELETE):
            _refuse_op(record, op, FLAT_OP)
        deletes = op == DELETE or value.get(FLAT_DELETED) in ("true", True)
        return Change(row=value, schema=schema, part="", deletes=deletes)

    def _find_deleted(
        self, record: "Message", change: Change | None, key: bytes | str | None, columns: Sequence[Column]
    ) -> dict[str, Any]:
        """Return what is known of a deleted row: the key, and what the event has of the row."""
        payload, schema = self._parse_key(key)
        found = self._convert(record, Change(row=payload, schema=schema, part="", deletes=True), columns)
        if change is not None:
            before = self._convert(record, change, columns)
            found |= {name: value for name, value in before.items() if value is not None}
        return found

    def _parse_key(self, key: bytes | str | None) -> tuple[Row, Schema]:
        """Return the fields of a key; none where it is no JSON object: it still is the key of its record."""
        try:
            payload, schema = self._split(key.decode() if isinstance(key, bytes) else key or "null")
        except (ValueError, RecursionError):
            return {}, self._unnamed
        return (payload, schema) if isinstance(payload, dict) else ({}, self._unnamed)

    def _convert(self, record: "Message", change: Change, columns: Sequence[Column]) -> dict[str, Any]:
        try:
            converters = change.schema.converters(change.part, columns, self.decimals)
        except (AttributeError, KeyError, TypeError, ValueError):
            refuse(record, "its schema is none that Kafka Connect writes")
        found: dict[str, Any] = {}
        for name, convert in converters.items():
            value = change.row.get(name)
            if value is None:
                found[name] = None
                continue
            if type(value) not in _NEVER_UNLOGGED and self.placeholder.has_form(value):
                if not change.deletes:
                    refuse(record, f"its field {name} {UNLOGGED}")
                found[name] = None
                continue
            try:
                found[name] = convert(value)
            except Unfit as error:
                refuse(record, f"its field {name} {error}")
        return found

    @cached_property
    def _unnamed(self) -> Schema:
        """What is said of records without a schema."""
        return Schema()


def _open_envelope(record: "Message", value: Row, schema: Schema) -> Change:
    """Return the change of an envelope."""
    op = value.get(OP)
    if type(op) is not str:
        refuse(record, "its value has no op, as an envelope has: Debezium(flattened=True) reads rows without one")
    if op not in (*WRITES, DELETE):
        _refuse_op(record, op, OP)
    part = BEFORE if op == DELETE else AFTER
    row = value.get(part)
    if row is None and op == DELETE:
        row = {}
    if not isinstance(row, dict):
        refuse(record, f"its op is {op} and its {part} is no object")
    return Change(row=row, schema=schema, part=part, deletes=op == DELETE)


def _refuse_op(record: "Message", op: Any, name: str) -> NoReturn:
    refuse(record, describe_op(op, name))


def _find_head(text: str, schema: Any) -> str:
    """Return what is in front of the payload, where this schema comes first; otherwise nothing."""
    if not text.startswith(_HEAD):
        return ""
    try:
        found, end = JSON_DECODER.raw_decode(text, len(_HEAD))
    except ValueError:
        return ""
    return text[: end + len(_BETWEEN)] if found == schema and text.startswith(_BETWEEN, end) else ""
