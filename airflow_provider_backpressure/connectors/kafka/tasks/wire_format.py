"""Keys and values behind the id of their schema, as Confluent's serializers write them, as columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy
import pyarrow

from airflow_provider_backpressure.connectors.kafka.tasks.avro_columns import AvroSchema
from airflow_provider_backpressure.connectors.kafka.tasks.debezium_avro import AvroEvents
from airflow_provider_backpressure.connectors.kafka.tasks.protobuf_columns import ProtobufSchema
from airflow_provider_backpressure.core.snapshot.spark_messages import Column
from airflow_provider_backpressure.spark.arrow_buffers import of_numbers
from airflow_provider_backpressure.spark.column_types import carrier

MAGIC, HEAD = 0, 5
"""The first byte, and how many there are before the value: it and the id in four."""
_ID = slice(1, HEAD)


class Schema(Protocol):
    """A schema that records have, ready to decode them."""

    def decode(
        self, payloads: Sequence[bytes], columns: Sequence[Column]
    ) -> tuple[list[pyarrow.Array], dict[int, str]]:
        """Return the columns of these records, and why some cannot be taken, by their number."""
        ...


_FORMATS: dict[str, type[AvroSchema] | type[ProtobufSchema]] = {
    "avro": AvroSchema,
    "avro-events": AvroEvents,
    "protobuf": ProtobufSchema,
}
JSON = "json"
"""Format that needs no schema to be decoded: only its columns come of it."""


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """Takes keys or values apart by the schemas that a plan has pinned."""

    decoding: Mapping[str, Any]
    """As the plan has it."""
    columns: Sequence[Column]
    part: str
    """``key`` or ``value``."""
    by_latest: bool = False
    """Whether a key of several fields is the text that the latest schema makes of it, as rows that go by it need."""
    _schemas: dict[int, Schema] = field(default_factory=dict)

    def decode(self, payloads: Sequence[bytes | None]) -> tuple[list[pyarrow.Array], dict[int, str]]:
        """Return the columns, and why some records cannot be taken, by their number. NULL where there is no record."""
        groups, problems = self._group(payloads)
        if not problems and len(groups) == 1:
            (schema_id, rows), *_ = groups.items()
            if len(rows) == len(payloads):
                return self._decode(schema_id, rows, payloads)
        pieces: list[list[pyarrow.Array]] = [[pyarrow.nulls(1, carrier(each.type)[0]) for each in self.columns]]
        # Place of each record in the pieces behind one another; the first of them is the NULL.
        places, taken = numpy.zeros(len(payloads), "i8"), 1
        for schema_id, rows in groups.items():
            arrays, wrong = self._decode(schema_id, rows, payloads)
            problems |= wrong
            pieces.append(arrays)
            places[rows] = numpy.arange(taken, taken + len(rows))
            taken += len(rows)
        at = of_numbers(places, pyarrow.int64())
        return [pyarrow.concat_arrays(each).take(at) for each in zip(*pieces, strict=True)], problems

    def check(self, payloads: Sequence[bytes | None]) -> dict[int, str]:
        """Return why some records have no schema that is known, by their number."""
        heads = {payload[:HEAD] for payload in payloads if payload is not None}
        return self._group(payloads)[1] if any(map(self._find_problem, heads)) else {}

    @property
    def is_json(self) -> bool:
        """Whether what is behind the id is JSON, which goes by the words of its sender."""
        return bool(self.decoding["format"] == JSON)

    @property
    def is_whole(self) -> bool:
        """Whether a value is one column, and not one for each of its fields."""
        return bool(self.decoding["whole"])

    def fields(self) -> list[Column]:
        """Return the columns by the names that their fields have in records."""
        names = {column: name for name, column in self.decoding["names"].items()}
        return [replace(each, name=names.get(each.name, each.name)) for each in self.columns]

    def _group(self, payloads: Sequence[bytes | None]) -> tuple[dict[int, list[int]], dict[int, str]]:
        """Return the numbers of records by their schema's id, and why some have none that is known."""
        heads: dict[bytes, list[int]] = {}
        for row, payload in enumerate(payloads):
            if payload is not None:
                heads.setdefault(payload[:HEAD], []).append(row)
        groups: dict[int, list[int]] = {}
        problems: dict[int, str] = {}
        for head, rows in heads.items():
            reason = self._find_problem(head)
            if reason:
                problems |= dict.fromkeys(rows, reason)
            else:
                groups[_to_id(head)] = rows
        return groups, problems

    def _find_problem(self, head: bytes) -> str:
        """Return why records that begin so have no schema that is known; empty where they have."""
        if len(head) < HEAD or head[0] != MAGIC:
            return f"its {self.part} does not begin with a schema's id"
        schema_id = _to_id(head)
        known = self._known.get(str(schema_id))
        if known is None:
            return (
                f"its {self.part} has schema {schema_id}, which subject {self.decoding['subject']} did not have when "
                "the run was planned"
            )
        others = self.decoding["other_keys"] if self.by_latest else {}
        return str(known.get("misfit") or others.get(str(schema_id), ""))

    @cached_property
    def _known(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.decoding["schemas"]
        return found

    def _decode(
        self, schema_id: int, rows: list[int], payloads: Sequence[bytes | None]
    ) -> tuple[list[pyarrow.Array], dict[int, str]]:
        schema = self._schemas.get(schema_id)
        if schema is None:
            schema = self._schemas[schema_id] = _FORMATS[self.decoding["format"]].load(
                self.decoding, schema_id, self.part, by_latest=self.by_latest
            )
        arrays, wrong = schema.decode([payloads[row] or b"" for row in rows], self.columns)
        return arrays, {rows[at]: f"its {self.part} cannot be taken apart: {reason}" for at, reason in wrong.items()}


def _to_id(head: bytes) -> int:
    return int.from_bytes(head[_ID], "big")
