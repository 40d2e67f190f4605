"""Protobuf schemas: their types behind the names, and the column that each type becomes.

A value is carried as its own type where PostgreSQL has one for it, otherwise as JSON text.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from airflow_provider_backpressure.connectors.kafka.protobuf_schema_parser import (
    PROTO2,
    PROTO3,
    EnumText,
    FieldText,
    FileText,
    MessageText,
    parse,
)
from airflow_provider_backpressure.connectors.kafka.protobuf_well_known_types import FILES
from airflow_provider_backpressure.exceptions import InvalidDeclaration

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""How a value is written: the lowest three bits before it."""
WIRES = {
    **dict.fromkeys(("int32", "int64", "uint32", "uint64", "sint32", "sint64", "bool", "enum"), VARINT),
    **dict.fromkeys(("fixed64", "sfixed64", "double"), FIXED64),
    **dict.fromkeys(("fixed32", "sfixed32", "float"), FIXED32),
    **dict.fromkeys(("string", "bytes", "message"), BYTES),
}
_SCALARS = frozenset(WIRES) - {"enum", "message"}
_PLAIN = {
    **dict.fromkeys(("int32", "sint32", "sfixed32"), "integer"),
    **dict.fromkeys(("int64", "sint64", "sfixed64", "uint32", "fixed32"), "bigint"),
    **dict.fromkeys(("uint64", "fixed64"), "numeric(20,0)"),
    "bool": "boolean",
    "float": "real",
    "double": "double precision",
    "bytes": "bytea",
    "string": "text",
    "enum": "text",
}
TIMESTAMP, DURATION, DATE = "google.protobuf.Timestamp", "google.protobuf.Duration", "google.type.Date"
TYPED = {TIMESTAMP: "timestamp with time zone", DURATION: "interval", DATE: "date"}
"""Messages that become a value of one type."""
_RAW = {TIMESTAMP: "text", DURATION: "text", DATE: "json"}
WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
"""Messages around one value, which may be absent."""
_HIGHEST = 2**29 - 1


@dataclass(frozen=True, kw_only=True)
class Enum:
    """An enum."""

    name: str
    values: tuple[tuple[str, int], ...]

    @cached_property
    def by_number(self) -> Mapping[int, str]:
        """The name of each number, the first one that it was given."""
        return {number: name for name, number in reversed(self.values)}


@dataclass(frozen=True, kw_only=True, eq=False)
class Field:
    """A field of a message."""

    name: str
    number: int
    kind: str
    """A scalar type, ``enum`` or ``message``."""
    message: "Message | None" = None
    enum: Enum | None = None
    repeated: bool = False
    presence: bool = False
    """Whether a value that is not set differs from the type's zero."""
    required: bool = False
    oneof: str = ""

    @property
    def tags(self) -> tuple[int, ...]:
        """What is before a value of it: its number, and how the value is written. A list of numbers may be packed."""
        wire = WIRES[self.kind]
        wires = (wire, BYTES) if self.repeated and wire != BYTES else (wire,)
        return tuple(self.number << 3 | each for each in wires)


@dataclass(kw_only=True, eq=False)
class Message:
    """A message. It may hold itself."""

    name: str
    """With its package."""
    is_entry: bool = False
    """Whether it is a key and a value of a map."""
    fields: tuple[Field, ...] = ()
    _by_tag: dict[int, Field] = field(default_factory=dict)

    @property
    def by_tag(self) -> Mapping[int, Field]:
        """Its fields by what is before their values."""
        if not self._by_tag:
            self._by_tag |= {tag: each for each in self.fields for tag in each.tags}
        return self._by_tag


@dataclass(frozen=True, kw_only=True)
class Schema:
    """A schema with all that it names."""

    messages: Mapping[str, Message]
    """Its own messages by their whole names, also those within others; the first is the first of the text."""
    paths: Mapping[str, tuple[int, ...]]
    """Where each is in the text: its number among those of the file, then among those within that one."""

    @property
    def first(self) -> str:
        """Name of the first message."""
        return next(iter(self.messages))

    def find(self, name: str) -> Message | None:
        """Return a message by its whole name, or by the end of it that only one has; empty: the first."""
        if not name:
            return self.messages[self.first]
        found = [each for each in self.messages if each == name or each.endswith(f".{name}")]
        return self.messages[name] if name in found else self.messages[found[0]] if len(found) == 1 else None


def load(schema: str, references: Sequence[tuple[str, str]] = ()) -> Schema:
    """Return a schema; ``references``: name and text of each file that it imports, also through others.

    :class:`InvalidDeclaration` for a text that is none, or that names what is not there.
    """
    try:
        files = {name: parse(text) for name, text in _by_name(references).items()}
        own = parse(schema)
        linker = _Linker(files=files | {"": own})
        linker.link()
        paths = dict(_find_paths(own.package, own.messages, ()))
    except RecursionError as error:
        raise InvalidDeclaration("This Protobuf schema is nested too deep.") from error
    if not paths:
        raise InvalidDeclaration("This Protobuf schema has no message.")
    return Schema(messages={name: linker.messages[name] for name in paths}, paths=paths)


def _by_name(references: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return the text of each file; :class:`InvalidDeclaration` where references lead to two versions of one."""
    found: dict[str, str] = {}
    for name, text in references:
        if name not in FILES and found.setdefault(name, text) != text:
            raise InvalidDeclaration(f"The references of the Protobuf schema lead to two versions of {name}.")
    return found


def _find_paths(
    scope: str, messages: Sequence[MessageText], path: tuple[int, ...]
) -> Iterator[tuple[str, tuple[int, ...]]]:
    for index, each in enumerate(messages):
        name = _join(scope, each.name)
        yield name, (*path, index)
        yield from _find_paths(name, each.messages, (*path, index))


def _join(scope: str, name: str) -> str:
    return f"{scope}.{name}" if scope else name


@dataclass(kw_only=True)
class _Linker:
    files: dict[str, FileText]
    """By the name by which they are imported; the schema itself has none."""
    messages: dict[str, Message] = field(default_factory=dict)
    _enums: dict[str, Enum] = field(default_factory=dict)
    _declared: dict[str, set[str]] = field(default_factory=dict)
    """Names of types and packages by file."""
    _fields: list[tuple[FileText, set[str], str, MessageText]] = field(default_factory=list)
    """Messages whose fields have no types yet: file, names that it sees, and the whole name."""

    def link(self) -> None:
        self._add_imports("", ())
        for name, file in self.files.items():
            if name not in self._declared:
                continue
            seen = set().union(*(self._declared[each] for each in self._visible(name)))
            self._queue(file, seen, file.package, file.messages)
        for file, seen, full, message in self._fields:
            self._link_message(file, seen, full, message)

    def _add_imports(self, name: str, above: tuple[str, ...]) -> None:
        """Declare the types of a file and of those that it imports."""
        if name in above:
            raise InvalidDeclaration(f"The Protobuf schema {name} imports itself.")
        if name in self._declared:
            return
        file = self.files[name]
        for each in file.imports:
            if each not in self.files:
                if each not in FILES:
                    raise InvalidDeclaration(f"The Protobuf schema imports {each}, which is not among its references.")
                self.files[each] = parse(FILES[each])
            self._add_imports(each, (*above, name))
        parts = file.package.split(".") if file.package else []
        self._declared[name] = {".".join(parts[: count + 1]) for count in range(len(parts))}
        self._declare(self._declared[name], file.package, file.messages, file.enums)

    def _declare(self, names: set[str], scope: str, messages: Sequence[MessageText], enums: Sequence[EnumText]) -> None:
        for enum in enums:
            full = _join(scope, enum.name)
            self._check_new(full)
            if not enum.values:
                raise InvalidDeclaration(f"The enum {full} has no value.")
            self._enums[full] = Enum(name=full, values=tuple(enum.values))
            names.add(full)
        for each in messages:
            full = _join(scope, each.name)
            self._check_new(full)
            self.messages[full] = Message(name=full)
            names.add(full)
            self._declare(names, full, each.messages, each.enums)

    def _check_new(self, name: str) -> None:
        if name in self.messages or name in self._enums:
            raise InvalidDeclaration(f"The Protobuf schema has two types {name}.")

    def _visible(self, name: str) -> set[str]:
        """Return the files that a file sees: itself, its imports, and what these pass on."""
        found, rest = {name}, list(self.files[name].imports)
        while rest:
            each = rest.pop()
            if each not in found:
                found.add(each)
                rest += self.files[each].public
        return found

    def _queue(self, file: FileText, seen: set[str], scope: str, messages: Sequence[MessageText]) -> None:
        for each in messages:
            full = _join(scope, each.name)
            self._fields.append((file, seen, full, each))
            self._queue(file, seen, full, each.messages)

    def _link_message(self, file: FileText, seen: set[str], full: str, text: MessageText) -> None:
        fields = tuple(self._link_field(file, seen, full, each) for each in text.fields)
        for what in ("name", "number"):
            every = [getattr(each, what) for each in fields]
            if len(set(every)) < len(every):
                raise InvalidDeclaration(f"The message {full} has two fields of one {what}.")
        if any(not 0 < each.number <= _HIGHEST for each in fields):
            raise InvalidDeclaration(f"The message {full} has a field of an impossible number.")
        self.messages[full].fields = fields

    def _link_field(self, file: FileText, seen: set[str], scope: str, text: FieldText) -> Field:
        kind, message, enum = self._resolve(seen, scope, text)
        if text.key:
            if text.key not in _SCALARS - {"float", "double", "bytes"}:
                raise InvalidDeclaration(f"The map {text.name} of message {scope} has keys of type {text.key}.")
            pair = (
                Field(name="key", number=1, kind=text.key),
                Field(name="value", number=2, kind=kind, message=message, enum=enum),
            )
            kind, message, enum = "message", Message(name=f"{scope}.{text.name}", is_entry=True, fields=pair), None
        repeated = text.label == "repeated" or bool(text.key)
        return Field(
            name=text.name,
            number=text.number,
            kind=kind,
            message=message,
            enum=enum,
            repeated=repeated,
            oneof=text.oneof,
            presence=not repeated and (kind == "message" or bool(text.oneof) or _has_presence(file, text)),
            required=text.label == "required" or _presence_of(file, text) == "LEGACY_REQUIRED",
        )

    def _resolve(self, seen: set[str], scope: str, text: FieldText) -> tuple[str, Message | None, Enum | None]:
        """Return what a field's type names: the innermost of that name, as Protobuf's compiler looks for it."""
        name = text.type
        if name in _SCALARS:
            return name, None, None
        full = name.removeprefix(".") if name.startswith(".") else self._find(seen, scope, name)
        if full in seen and full in self.messages:
            return "message", self.messages[full], None
        if full in seen and full in self._enums:
            return "enum", None, self._enums[full]
        raise InvalidDeclaration(f"The field {text.name} of message {scope} is of type {name}, which is not defined.")

    def _find(self, seen: set[str], scope: str, name: str) -> str:
        first, _, rest = name.partition(".")
        while True:
            place = _join(scope, first)
            is_type = place in self.messages or place in self._enums
            if place in seen and (is_type or rest):
                return _join(scope, name)
            if not scope:
                return name
            scope = scope.rpartition(".")[0]


def _presence_of(file: FileText, text: FieldText) -> str:
    return text.presence or file.presence if file.syntax not in (PROTO2, PROTO3) else ""


def _has_presence(file: FileText, text: FieldText) -> bool:
    if file.syntax == PROTO3:
        return text.label == "optional"
    return _presence_of(file, text) != "IMPLICIT"


def column_type(each: Field, *, raw: bool = False) -> str:
    """Return the PostgreSQL type of a field's column. ``raw``: without what its type means."""
    if each.repeated:
        return "json"
    if each.kind == "enum":
        return "integer" if raw else _PLAIN["enum"]
    if each.message is None:
        return _PLAIN[each.kind]
    name = each.message.name
    if name in WRAPPERS:
        return _PLAIN[each.message.fields[0].kind]
    return (_RAW if raw else TYPED).get(name, "json")


def column_types(message: Message, raw: Sequence[str]) -> dict[str, str]:
    """Return the type of each field's column, by name. ``raw``: fields without what their types mean."""
    return {each.name: column_type(each, raw=each.name in raw) for each in message.fields}
