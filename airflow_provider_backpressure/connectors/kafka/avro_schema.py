"""Avro schemas: how they are read, the column that each type becomes, and which schemas can be read together.

A value is carried as its own type where PostgreSQL has one for it, otherwise as JSON text.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider_backpressure.exceptions import InvalidDeclaration

PRIMITIVE = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_MOST_DIGITS = 1000
"""Of PostgreSQL's ``numeric``."""
_UUID_BYTES = 16
_PLAIN = {
    "null": "text",
    "boolean": "boolean",
    "int": "integer",
    "long": "bigint",
    "float": "real",
    "double": "double precision",
    "bytes": "bytea",
    "fixed": "bytea",
    "string": "text",
    "enum": "text",
}
_LOGICAL = {
    ("int", "date"): "date",
    ("int", "time-millis"): "time without time zone",
    ("long", "time-micros"): "time without time zone",
    ("string", "uuid"): "uuid",
    ("fixed", "uuid"): "uuid",
    **{("long", f"timestamp-{unit}"): "timestamp with time zone" for unit in ("millis", "micros", "nanos")},
    **{("long", f"local-timestamp-{unit}"): "timestamp without time zone" for unit in ("millis", "micros", "nanos")},
}


_TIME = "io.debezium.time."
_CONNECT = {
    ("int", f"{_TIME}Date"): "date",
    ("int", f"{_TIME}Time"): "time-millis",
    ("long", f"{_TIME}MicroTime"): "time-micros",
    ("long", f"{_TIME}Timestamp"): "local-timestamp-millis",
    ("long", f"{_TIME}MicroTimestamp"): "local-timestamp-micros",
    ("long", f"{_TIME}NanoTimestamp"): "local-timestamp-nanos",
    ("string", "io.debezium.data.Uuid"): "uuid",
}
"""Logical types by the names that Kafka Connect writes into a schema."""


@dataclass(kw_only=True, eq=False)
class Node:
    """A type. It may hold itself: a list's element that has the list's own type."""

    kind: str
    """A primitive type, ``fixed``, ``enum``, ``array``, ``map``, ``record`` or ``union``."""
    name: str = ""
    logical: str = ""
    precision: int = 0
    scale: int = 0
    size: int = 0
    """Bytes of a ``fixed``."""
    symbols: tuple[str, ...] = ()
    items: "Node | None" = None
    """Of an ``array``, or the values of a ``map``."""
    branches: "tuple[Node, ...]" = ()
    fields: "tuple[Field, ...]" = ()

    @property
    def present(self) -> "tuple[Node, ...]":
        """What a value may be, apart from null."""
        return tuple(each for each in (self.branches if self.kind == "union" else (self,)) if each.kind != "null")


@dataclass(frozen=True, kw_only=True)
class Field:
    """A field of a record."""

    name: str
    node: Node
    default: Any = None
    has_default: bool = False


@dataclass(kw_only=True)
class _Parser:
    named: dict[str, Node] = field(default_factory=dict)
    connect: bool = False

    def parse(self, schema: Any, space: str) -> Node:
        """Return a type; ``space``: the namespace around it."""
        if isinstance(schema, list):
            return Node(kind="union", branches=tuple(self.parse(each, space) for each in schema))
        if isinstance(schema, str):
            return Node(kind=schema) if schema in PRIMITIVE else self._known(schema, space)
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self.parse(kind, space)
        if kind in ("array", "map"):
            return Node(kind=kind, items=self.parse(schema["items" if kind == "array" else "values"], space))
        if kind in ("record", "error", "enum", "fixed"):
            return self._define(kind, schema, space)
        node = self.parse(kind, space)
        return self._with_logical(node, schema) if kind in PRIMITIVE else node

    def _with_logical(self, node: Node, schema: Mapping[str, Any]) -> Node:
        name = _CONNECT.get((node.kind, schema.get("connect.name", ""))) if self.connect else None
        return replace(node, logical=name) if name and "logicalType" not in schema else _with_logical(node, schema)

    def _define(self, kind: str, schema: Mapping[str, Any], space: str) -> Node:
        name = str(schema["name"])
        full = name if "." in name else f"{schema.get('namespace', space)}.{name}".lstrip(".")
        node = self.named[full] = Node(kind="record" if kind == "error" else kind, name=full)
        inside = full.rpartition(".")[0]
        if kind == "enum":
            node.symbols = tuple(map(str, schema["symbols"]))
        elif kind == "fixed":
            node.size = int(schema["size"])
            node = self.named[full] = _with_logical(node, schema)
        else:
            node.fields = tuple(self._field(each, inside) for each in schema["fields"])
        return node

    def _field(self, schema: Mapping[str, Any], space: str) -> Field:
        node = self.parse(schema["type"], space)
        return Field(
            name=str(schema["name"]), node=node, default=schema.get("default"), has_default="default" in schema
        )

    def _known(self, name: str, space: str) -> Node:
        full = name if "." in name else f"{space}.{name}".lstrip(".")
        return self.named[full if full in self.named else name]


def _with_logical(node: Node, schema: Mapping[str, Any]) -> Node:
    """Return the type with its logical type; one that Avro would ignore is left out."""
    logical = schema.get("logicalType", "")
    if logical == "decimal" and node.kind in ("bytes", "fixed"):
        precision, scale = int(schema.get("precision", 0)), int(schema.get("scale", 0))
        if 0 <= scale <= precision <= _MOST_DIGITS and precision:
            return replace(node, logical=logical, precision=precision, scale=scale)
        return node
    known = (node.kind, logical) in _LOGICAL and (node.kind != "fixed" or node.size == _UUID_BYTES)
    return replace(node, logical=logical) if known else node


def parse(schema: str, references: Sequence[str] = (), *, connect: bool = False) -> Node:
    """Return the type of a schema; ``references``: those that it names, each behind what it names itself.

    ``connect``: whether names of Kafka Connect are logical types too. :class:`InvalidDeclaration` for a text that is
    no Avro schema.
    """
    parser = _Parser(connect=connect)
    try:
        for text in references:
            parser.parse(json.loads(text), "")
        return parser.parse(_load_schema(schema), "")
    except KeyError as error:
        raise InvalidDeclaration(f"The Avro schema names {error.args[0]}, which is not defined.") from error
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        raise InvalidDeclaration(f"This is no Avro schema: {error}.") from error


def _load_schema(schema: str) -> Any:
    # A registry may keep a primitive type as its bare name.
    return schema if schema in PRIMITIVE else json.loads(schema)


def column_type(node: Node, *, raw: bool = False) -> str:
    """Return the PostgreSQL type of a value's column. ``raw``: without its logical type."""
    present = node.present
    if len(present) != 1:
        return "json" if present else "text"
    (only,) = present
    if only is not node:
        return column_type(only, raw=raw)
    if not raw and node.logical == "decimal":
        return f"numeric({node.precision},{node.scale})"
    if not raw and node.logical:
        return _LOGICAL[node.kind, node.logical]
    return _PLAIN.get(node.kind, "json")


def record_of(node: Node) -> Node | None:
    """Return the record that a value is, if it is one or null."""
    present = node.present
    return present[0] if len(present) == 1 and present[0].kind == "record" else None


def fields_of(node: Node, whole: str) -> tuple[Field, ...]:
    """Return what becomes a column each: the fields of a record, or the value itself, named ``whole``."""
    record = record_of(node)
    return record.fields if record is not None else (Field(name=whole, node=node),)


def column_types(node: Node, whole: str, raw: Sequence[str]) -> dict[str, str | None]:
    """Return the type of each column, by name; ``None`` where every value is null.

    ``raw``: columns without their logical types.
    """
    return {
        each.name: column_type(each.node, raw=each.name in raw) if each.node.present else None
        for each in fields_of(node, whole)
    }
