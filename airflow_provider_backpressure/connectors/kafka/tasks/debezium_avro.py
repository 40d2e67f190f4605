"""Change events of Debezium in Avro as columns: those of the row, and which records delete theirs."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy
import pyarrow
import pyarrow.compute as pc

from airflow_provider_backpressure.connectors.kafka import avro_schema
from airflow_provider_backpressure.connectors.kafka.avro_schema import Node
from airflow_provider_backpressure.connectors.kafka.debezium_envelope import (
    AFTER,
    BEFORE,
    DELETE,
    FLAT_DELETED,
    FLAT_OP,
    OP,
    UNLOGGED,
    WRITES,
    Placeholder,
    describe_op,
    find_row,
)
from airflow_provider_backpressure.connectors.kafka.tasks.avro_batch_decoder import read, read_branches, skip
from airflow_provider_backpressure.connectors.kafka.tasks.avro_columns import AvroSchema, parse_pinned
from airflow_provider_backpressure.connectors.kafka.tasks.json_values import JSON_DECODER
from airflow_provider_backpressure.connectors.kafka.tasks.message_buffer import Messages, spread
from airflow_provider_backpressure.core.snapshot.spark_messages import Column
from airflow_provider_backpressure.core.snapshot.topic_offsets import TOMBSTONE
from airflow_provider_backpressure.spark.arrow_buffers import of_numbers
from airflow_provider_backpressure.spark.column_types import carrier

MARK = Column(name=TOMBSTONE, type="boolean")
"""Behind the columns of rows: whether a record deletes its row."""
Arrays = dict[str, pyarrow.Array]


@dataclass(frozen=True, kw_only=True)
class AvroEvents(AvroSchema):
    """A schema that change events were written with; ``reader`` is the latest row."""

    flattened: bool
    placeholder: Placeholder
    decoding: Mapping[str, Any]
    """What the plan has pinned."""
    schema_id: int
    """Of the writer."""

    @classmethod
    def load(cls, decoding: Mapping[str, Any], schema_id: int, part: str, *, by_latest: bool = False) -> Self:
        """See :meth:`AvroSchema.load`."""
        settings = decoding["events"]
        return cls(
            writer=parse_pinned(decoding, schema_id),
            reader=find_row(parse_pinned(decoding, decoding["latest"]), flattened=settings["flattened"]),
            whole=part,
            as_text=False,
            raw=decoding["raw"],
            names=decoding["names"],
            flattened=settings["flattened"],
            placeholder=Placeholder(text=settings["placeholder"]),
            decoding=decoding,
            schema_id=schema_id,
        )

    def _read_default(self, column: Column) -> pyarrow.Array:
        """Return what rows have that were logged before a column was there: its default when it was added, or NULL.

        A default that the source's column got later changes no row that was there. Where the column was dropped and
        added again, only the last time counts: the source dropped the values of the first time.
        """
        added, had = None, False
        for each in self._find_later_versions():
            row = find_row(parse_pinned(self.decoding, each), flattened=self.flattened)
            has = any(self.names.get(field.name, field.name) == column.name for field in row.fields)
            added, had = row if has and not had else added, has
        if added is None:
            return pyarrow.nulls(1, carrier(column.type)[0])
        return AvroSchema._read_default(replace(self, reader=added), column)

    def _find_later_versions(self) -> list[int]:
        """Return the ids of the versions behind the writer's, the oldest first."""
        # Plans of earlier releases have no list of versions.
        versions = [int(each) for each in self.decoding.get("versions", self.decoding["schemas"])]
        behind = versions[len(versions) - versions[::-1].index(self.schema_id) :]
        return [each for each in behind if "misfit" not in self.decoding["schemas"][str(each)]]

    def _read(self, messages: Messages, wanted: Mapping[str, Column]) -> Arrays:
        columns = {name: column for name, column in wanted.items() if name != TOMBSTONE}
        rows = messages.all()
        record = avro_schema.record_of(self.writer)
        assert record is not None, "a plan has only schemas of events"
        if record is self.writer:
            return self._read_events(messages, record, rows, columns)
        there = read_branches(messages, self.writer, rows) == self.writer.branches.index(record)
        found = self._read_events(messages, record, rows[there], columns)
        # A null is a tombstone.
        spread_out = {name: spread(column, there) for name, column in found.items()}
        return spread_out | {TOMBSTONE: pc.fill_null(spread_out[TOMBSTONE], True)}

    def _read_events(self, messages: Messages, record: Node, rows: Any, columns: Mapping[str, Column]) -> Arrays:
        if self.flattened:
            hidden = {FLAT_OP: Column(name=FLAT_OP, type="text"), FLAT_DELETED: Column(name=FLAT_DELETED, type="text")}
            found = self._fields(messages, rows, record.fields, {**columns, **hidden})
            ops, marked = (found.pop(name).to_pylist() for name in hidden)
            deletes = [op == DELETE or mark == "true" for op, mark in zip(ops, marked, strict=True)]
            self._refuse_others(messages, rows, [op or WRITES[0] for op in ops], FLAT_OP)
            return self._drop_unlogged(messages, rows, found, columns, deletes)
        parts: dict[str, tuple[Arrays, numpy.ndarray]] = {}
        ops = []
        for each in record.fields:
            if each.name in (BEFORE, AFTER):
                parts[each.name] = self._read_row(messages, each.node, rows, columns)
            elif each.name == OP:
                ops = read(messages, each.node, rows, "text").to_pylist()
            else:
                skip(messages, each.node, rows)
        self._refuse_others(messages, rows, ops, OP)
        deletes = [op == DELETE for op in ops]
        after, there = parts[AFTER]
        for row, gone, known in zip(rows.tolist(), deletes, there.tolist(), strict=True):
            if not gone and not known:
                messages.problems.setdefault(row, "its after is no row")
        marks = pyarrow.array(deletes, pyarrow.bool_())
        found = {name: pc.if_else(marks, parts[BEFORE][0][name], after[name]) for name in columns}
        return self._drop_unlogged(messages, rows, found, columns, deletes)

    def _read_row(
        self, messages: Messages, node: Node, rows: Any, columns: Mapping[str, Column]
    ) -> tuple[Arrays, numpy.ndarray]:
        """Return the columns of a row that may be null, and where there is one."""
        record = avro_schema.record_of(node)
        if record is None:
            skip(messages, node, rows)
            nothing = numpy.zeros(len(rows), bool)
            return {name: self._default(column, len(rows)) for name, column in columns.items()}, nothing
        if record is node:
            return self._fields(messages, rows, record.fields, columns), numpy.ones(len(rows), bool)
        there = read_branches(messages, node, rows) == node.branches.index(record)
        found = self._fields(messages, rows[there], record.fields, columns)
        return {name: spread(column, there) for name, column in found.items()}, there

    def _refuse_others(self, messages: Messages, rows: Any, ops: Sequence[str | None], name: str) -> None:
        for row, op in zip(rows.tolist(), ops, strict=True):
            if op not in WRITES and op != DELETE:
                messages.problems.setdefault(row, describe_op(op, name))

    def _drop_unlogged(
        self, messages: Messages, rows: Any, found: Arrays, columns: Mapping[str, Column], deletes: Sequence[bool]
    ) -> Arrays:
        """Refuse rows with a value that the source did not log; of a deleted row it is NULL."""
        gone = numpy.array(deletes, bool)
        for name, column in found.items():
            lacking = self._find_unlogged(column, columns[name].type)
            if not lacking.any():
                continue
            for row in rows[lacking & ~gone].tolist():
                messages.problems.setdefault(row, f"its field {name} {UNLOGGED}")
            found[name] = pc.if_else(of_numbers(lacking, pyarrow.uint8()).cast(pyarrow.bool_()), None, column)
        return found | {TOMBSTONE: pyarrow.array(deletes, pyarrow.bool_())}

    def _find_unlogged(self, column: pyarrow.Array, type_: str) -> numpy.ndarray:
        """Return for each value whether it is the placeholder in the form of its type."""
        if type_ == "json":
            # To parse each text would take long. Few may hold the placeholder.
            may = self._may_be_unlogged(column)
            lacking = numpy.zeros(len(column), bool)
            lacking[may] = [
                self.placeholder.has_form(JSON_DECODER.decode(text)) for text in column.take(may).to_pylist()
            ]
            return lacking
        if column.type == pyarrow.string():
            wanted: Any = pyarrow.array(sorted(self.placeholder.texts))
        elif column.type == pyarrow.binary():
            wanted = pyarrow.array([self.placeholder.text.encode()], pyarrow.binary())
        else:
            return numpy.zeros(len(column), bool)
        found: numpy.ndarray = pc.is_in(column, wanted).to_numpy(zero_copy_only=False)
        return found

    def _may_be_unlogged(self, column: pyarrow.Array) -> pyarrow.Array:
        """Return the places of JSON with a mark of the placeholder, or with as many parts as a list of its bytes."""
        marked = pc.match_substring_regex(column, "|".join(map(re.escape, self.placeholder.marks)))
        size = len(self.placeholder.numbers)
        # A decimal of any scale is an object of two parts.
        sizes = pyarrow.array([size - 1, 2 * size - 1], pyarrow.int32())
        sized = pc.and_(pc.starts_with(column, "["), pc.is_in(pc.count_substring(column, ","), sizes))
        return pc.indices_nonzero(pc.fill_null(pc.or_(marked, sized), False))
