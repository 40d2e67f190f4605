"""The text of a key of several fields: which schemas write one key as the same text, and which never can.

Rows that are upserted go by that text. So a key is written by the latest schema, whatever schema its record has, as
long as no two keys become one by that. A schema for which that does not hold is another key.
"""

import hashlib
from collections.abc import Hashable, Mapping

from airflow_provider_backpressure.connectors.kafka import avro_schema, protobuf_schema

Form = Hashable
"""What decides the text of a value: two types of one form write each value of both as the same text."""


def digest_form(form: Form) -> str:
    """Return a text that is the same for equal forms, in every process; empty for ``None``."""
    return "" if form is None else hashlib.sha256(_to_text(form).encode()).hexdigest()[:32]


def _to_text(form: Form) -> str:
    """Return a form as text; the members of a set have no order of their own."""
    if isinstance(form, frozenset):
        return f"{{{','.join(sorted(map(_to_text, form)))}}}"
    return f"({','.join(map(_to_text, form))})" if isinstance(form, tuple) else repr(form)


def avro_form(node: avro_schema.Node, inside: tuple[int, ...] = ()) -> Form:
    """Return the form of an Avro type. Names of types, defaults and documentation are no part of it."""
    if id(node) in inside:
        return "itself", len(inside) - inside.index(id(node))
    inside = (*inside, id(node))
    if node.kind == "union":
        forms = [avro_form(each, inside) for each in node.present]
        return forms[0] if len(forms) == 1 else ("union", frozenset(forms))
    if node.kind == "record":
        return "record", tuple((each.name, avro_form(each.node, inside)) for each in node.fields)
    if node.kind in ("array", "map"):
        assert node.items is not None, "a list or a map has elements"
        return node.kind, avro_form(node.items, inside)
    kind = _SAME_TEXT.get(node.kind, node.kind)
    return (kind, node.logical, node.scale) if node.logical else kind


_SAME_TEXT = {"int": "long", "fixed": "bytes", "enum": "string"}


def other_avro_key(writer: avro_schema.Node, reader: avro_schema.Node) -> str:
    """Return why a key of one schema is no key of another one; empty: it is, with the defaults of what it lacks."""
    written, read = avro_schema.record_of(writer), avro_schema.record_of(reader)
    if written is None and read is None:
        return ""
    if written is None or read is None:
        return "only one of them is of several fields"
    before = {each.name: avro_form(each.node) for each in written.fields}
    after = {each.name: avro_form(each.node) for each in read.fields}
    added = {each.name: each.has_default for each in read.fields if each.name not in before}
    return _describe(before, after, added)


def protobuf_form(message: protobuf_schema.Message, inside: tuple[int, ...] = ()) -> Form:
    """Return the form of a Protobuf message."""
    if id(message) in inside:
        return "itself", len(inside) - inside.index(id(message))
    inside = (*inside, id(message))
    typed = message.name if message.name in (*protobuf_schema.TYPED, *protobuf_schema.WRAPPERS) else ""
    return typed, tuple((each.name, _field_form(each, inside)) for each in message.fields)


def _field_form(each: protobuf_schema.Field, inside: tuple[int, ...]) -> Form:
    of_kind: Form = None
    if each.message is not None:
        of_kind = (each.message.is_entry, protobuf_form(each.message, inside))
    elif each.enum is not None:
        of_kind = tuple(sorted(each.enum.by_number.items()))
    return each.number, each.kind, of_kind, each.repeated, each.presence


def other_protobuf_key(writer: protobuf_schema.Message, reader: protobuf_schema.Message) -> str:
    """Return why a key of one message is no key of another one; empty: it is, as the other one reads it."""
    before = {each.name: _field_form(each, (id(writer),)) for each in writer.fields}
    after = {each.name: _field_form(each, (id(reader),)) for each in reader.fields}
    added = {each.name: not each.required for each in reader.fields if each.name not in before}
    return _describe(before, after, added)


def _describe(before: Mapping[str, Form], after: Mapping[str, Form], added: Mapping[str, bool]) -> str:
    gone = [f"field {name} is gone, so that several keys would be one" for name in before if name not in after]
    changed = [f"field {name} is of another type" for name, form in before.items() if after.get(name, form) != form]
    without = [f"field {name} was added without a default" for name, has_default in added.items() if not has_default]
    return "; ".join((*gone, *changed, *without))
