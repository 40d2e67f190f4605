"""Formats of keys and values, as a DAG declares them. They hold names and no secret."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Self

from airflow_provider_backpressure.connectors.kafka import avro_schema, protobuf_schema
from airflow_provider_backpressure.connectors.kafka.debezium_envelope import find_row
from airflow_provider_backpressure.connectors.kafka.record_columns import KEY
from airflow_provider_backpressure.connectors.kafka.source import json_schema, key_compatibility
from airflow_provider_backpressure.connectors.kafka.source.key_compatibility import Form
from airflow_provider_backpressure.connectors.kafka.source.schema_registry import AVRO, JSON, PROTOBUF, Version
from airflow_provider_backpressure.exceptions import InvalidDeclaration

CONN_TYPES = ("http",)
"""Types that the connection of a registry may be of."""
DECIMAL_MODES = ("precise", "string", "double")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What records of a schema become."""

    types: Mapping[str, str | None]
    """Type of its column by field; ``None`` where every value is null."""
    is_whole: bool = False
    """Whether a value is one column, and not one for each of its fields."""
    defaults: frozenset[str] = frozenset()
    """Fields with a default that is not null."""
    misfit: str = ""
    """Why records of the schema cannot be read beside others; empty: as far as their types fit."""


@dataclass(frozen=True, kw_only=True)
class Registered:
    """What formats have in common whose schemas are in a registry."""

    kind: ClassVar[str]
    label: ClassVar[str]
    """What a declaration calls it."""
    schema_type: ClassVar[str]
    templated: ClassVar[tuple[str, ...]] = ("registry_conn_id", "subject")
    """Fields whose text may be a template."""
    mixes: ClassVar[bool]
    """Whether whole values and values of several columns can be read side by side."""

    registry_conn_id: str
    """Airflow connection of the registry, of type ``http``."""
    subject: str = ""
    """Where the registry keeps the schemas; empty: ``<topic>-value`` or ``<topic>-key``. Of the strategy by records it
    is the record's full name, of the one by topic and record ``<topic>-<full name>``."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Column by field, where it is not to have the field's name: ``{"timestamp": "created_at"}``."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        if not self.registry_conn_id:
            raise InvalidDeclaration(
                f"{type(self).__name__}.registry_conn_id must name the Airflow connection of the schema registry."
            )

    def identity(self) -> list[Any]:
        """Return what makes other columns of the same records."""
        return [self.kind, self.subject, sorted(self.names.items())]

    def settings(self) -> Mapping[str, Any]:
        """Return what a task needs to know beside the schemas."""
        return {}

    def resolve(self, latest: Version) -> Self:
        """Return the format with what it leaves to the latest version of a subject."""
        return self

    def describe_change(self, before: Version, latest: Version) -> str:
        """Return why records of two versions cannot go into the same columns, apart from types; empty: they can."""
        return ""

    def key_form(self, version: Version) -> Form:
        """Return what decides the text of a key of several fields."""
        return None

    def other_key(self, version: Version, latest: Version) -> str:
        """Return why a key of a version is no key of the latest one; empty: it is."""
        return ""


@dataclass(frozen=True, kw_only=True)
class Avro(Registered):
    """Records in Avro, each behind its schema's id as Confluent's serializers write it.

    A record's fields become columns; any other value is one column. Raises :class:`InvalidDeclaration`.
    """

    kind: ClassVar[str] = "avro"
    label: ClassVar[str] = "Avro"
    schema_type: ClassVar[str] = AVRO
    mixes: ClassVar[bool] = True

    raw: tuple[str, ...] = ()
    """Fields that are taken without their logical type: a timestamp as its number, a decimal as its bytes."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        super().__post_init__()
        if isinstance(self.raw, str):
            raise InvalidDeclaration("Avro.raw must be a list of fields, not one text.")

    def shape(self, version: Version, whole: str) -> Shape:
        """Return what records of a schema become; ``whole`` is the name of a value that is no record."""
        node = self._parse(version)
        return Shape(
            types=avro_schema.column_types(node, whole, self.raw), is_whole=avro_schema.record_of(node) is None
        )

    def identity(self) -> list[Any]:
        """Return what makes other columns of the same records."""
        return [*super().identity(), sorted(self.raw)]

    def settings(self) -> Mapping[str, Any]:
        """Return what a task needs to know beside the schemas."""
        return {"raw": list(self.raw)}

    def key_form(self, version: Version) -> Form:
        """See :meth:`Registered.key_form`."""
        return key_compatibility.avro_form(self._parse(version))

    def other_key(self, version: Version, latest: Version) -> str:
        """See :meth:`Registered.other_key`."""
        return key_compatibility.other_avro_key(self._parse(version), self._parse(latest))

    def _parse(self, version: Version) -> avro_schema.Node:
        return avro_schema.parse(version.schema, [text for _, text in version.references])


@dataclass(frozen=True, kw_only=True)
class AvroEvents(Avro):
    """Change events in Avro: how a source with an envelope takes its :class:`Avro`, for values and for keys."""

    is_key: bool
    envelope: "Debezium"

    @classmethod
    def wrap(cls, format_: Avro, envelope: "Debezium", part: str) -> "AvroEvents":
        """Return a declared format as the source takes it."""
        declared = {each.name: getattr(format_, each.name) for each in fields(format_)}
        return cls(**declared, envelope=envelope, is_key=part == KEY)

    def shape(self, version: Version, whole: str) -> Shape:
        """See :meth:`Avro.shape`. Of values the row's fields."""
        node = self._parse(version)
        if self.is_key:
            return Shape(
                types=avro_schema.column_types(node, whole, self.raw), is_whole=avro_schema.record_of(node) is None
            )
        row = find_row(node, flattened=self.envelope.flattened)
        defaults = frozenset(each.name for each in row.fields if each.default is not None)
        return Shape(types=avro_schema.column_types(row, whole, self.raw), defaults=defaults)

    def settings(self) -> Mapping[str, Any]:
        """See :meth:`Avro.settings`."""
        format_ = {} if self.is_key else {"format": "avro-events"}
        return {**super().settings(), **format_, "events": self.envelope.to_json()}

    def _parse(self, version: Version) -> avro_schema.Node:
        return avro_schema.parse(version.schema, [text for _, text in version.references], connect=True)


@dataclass(frozen=True, kw_only=True)
class JsonSchema(Registered):
    """Records in JSON, each behind its schema's id as Confluent's serializers write it.

    The properties of an object become columns, and what its schema does not name is left out; any other value is one
    column of JSON, and so is every key. Raises :class:`InvalidDeclaration`.
    """

    kind: ClassVar[str] = "json"
    label: ClassVar[str] = "JsonSchema"
    schema_type: ClassVar[str] = JSON
    mixes: ClassVar[bool] = False

    def shape(self, version: Version, whole: str) -> Shape:
        """Return what records of a schema become; ``whole`` is the name of a value without properties."""
        types = json_schema.column_types(version.schema)
        if whole == KEY or not types:
            return Shape(types={whole: "json"}, is_whole=True)
        return Shape(types=types)


@dataclass(frozen=True, kw_only=True)
class Protobuf(Registered):
    """Records in Protobuf, each behind its schema's id and its message's place, as Confluent's serializers write it.

    The fields of one message become columns; a key is one JSON text. Raises :class:`InvalidDeclaration`.
    """

    kind: ClassVar[str] = "protobuf"
    label: ClassVar[str] = "Protobuf"
    schema_type: ClassVar[str] = PROTOBUF
    templated: ClassVar[tuple[str, ...]] = ("registry_conn_id", "subject", "message")
    mixes: ClassVar[bool] = True

    message: str = ""
    """Name of the message whose fields become columns, with or without its package; empty: the schema's first one.
    Records of other messages are bad records."""
    raw: tuple[str, ...] = ()
    """Fields that are taken without what their type means: an enum as its number, a timestamp and a duration as text
    with all of their digits, a date as its parts."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        super().__post_init__()
        if isinstance(self.raw, str):
            raise InvalidDeclaration("Protobuf.raw must be a list of fields, not one text.")

    def resolve(self, latest: Version) -> Self:
        """Return the format with the whole name of its message; :class:`InvalidDeclaration` for one that is missing."""
        schema = _load_protobuf(latest)
        found = schema.find(self.message)
        if found is None:
            raise InvalidDeclaration(
                f"There is no message {self.message}, or several end with that name; there are "
                f"{', '.join(schema.messages)}."
            )
        return replace(self, message=found.name)

    def shape(self, version: Version, whole: str) -> Shape:
        """Return what records of a schema become; ``whole`` does not matter, as every value is a message."""
        found = _load_protobuf(version).messages.get(self.message)
        if found is None:
            return Shape(types={}, misfit=f"it has no message {self.message}")
        return Shape(types=protobuf_schema.column_types(found, self.raw))

    def describe_change(self, before: Version, latest: Version) -> str:
        """Return whether a format that names no message reads another one by now."""
        names = [self.resolve(each).message for each in (before, latest)]
        if names[0] == names[1]:
            return ""
        return f"its first message was {names[0]} and is {names[1]}: name the one to read in Protobuf(message=…)"

    def key_form(self, version: Version) -> Form:
        """See :meth:`Registered.key_form`."""
        found = _load_protobuf(version).messages.get(self.message)
        return None if found is None else key_compatibility.protobuf_form(found)

    def other_key(self, version: Version, latest: Version) -> str:
        """See :meth:`Registered.other_key`."""
        writer, reader = (_load_protobuf(each).messages.get(self.message) for each in (version, latest))
        return "" if writer is None or reader is None else key_compatibility.other_protobuf_key(writer, reader)

    def identity(self) -> list[Any]:
        """Return what makes other columns of the same records."""
        return [*super().identity(), self.message, sorted(self.raw)]

    def settings(self) -> Mapping[str, Any]:
        """Return what a task needs to know beside the schemas."""
        return {"message": self.message, "raw": list(self.raw)}


def _load_protobuf(version: Version) -> protobuf_schema.Schema:
    return protobuf_schema.load(version.schema, version.references)


@dataclass(frozen=True, kw_only=True)
class Debezium:
    """Values are change events of Debezium, each of which writes or deletes a row.

    The names of Debezium's settings are its own, with ``_`` for ``.``. Raises :class:`InvalidDeclaration`.
    """

    templated: ClassVar[tuple[str, ...]] = ()
    """Fields whose text may be a template."""

    flattened: bool = False
    """Whether a value is the row itself, as the transform ``ExtractNewRecordState`` leaves it, and no envelope."""
    decimal_handling_mode: str = "precise"
    """As the connector has it. It matters for records without a schema: only with ``string`` a text may be a number."""
    unavailable_value_placeholder: str = "__debezium_unavailable_value"
    """As the connector has it: what stands for a value that the source did not log."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        if not isinstance(self.flattened, bool):
            raise InvalidDeclaration(f"Debezium.flattened must be True or False, not {self.flattened!r}.")
        if self.decimal_handling_mode not in DECIMAL_MODES:
            raise InvalidDeclaration(
                f"Debezium.decimal_handling_mode must be one of {', '.join(DECIMAL_MODES)}, not "
                f"{self.decimal_handling_mode!r}."
            )
        if not self.unavailable_value_placeholder or not isinstance(self.unavailable_value_placeholder, str):
            raise InvalidDeclaration("Debezium.unavailable_value_placeholder must be the connector's own text.")

    def identity(self) -> list[Any]:
        """Return what makes other rows of the same records."""
        return ["debezium", self.flattened]

    def to_json(self) -> dict[str, Any]:
        """Return what tasks need."""
        return {
            "flattened": self.flattened,
            "decimals": self.decimal_handling_mode,
            "placeholder": self.unavailable_value_placeholder,
        }


Format = Avro | JsonSchema | Protobuf
