"""The form of Debezium's change events, which planning and tasks know alike."""

from dataclasses import replace
from typing import Any

from airflow_provider_backpressure.connectors.kafka.avro import Node, record_of
from airflow_provider_backpressure.exceptions import InvalidDeclaration

ENVELOPE = "envelope"
"""Name of what a plan knows of change events, beside the schemas of keys and values."""
BEFORE, AFTER, OP, SOURCE = "before", "after", "op", "source"
"""Fields of an envelope."""
FLAT_OP, FLAT_DELETED = "__op", "__deleted"
"""Fields that flattened events may have beside those of the row."""
WRITES, DELETE = ("c", "r", "u"), "d"
"""Values of ``op``: created, read by a snapshot, updated; deleted."""
_OTHERS = {
    "t": "the source truncated the table, and the event does not say which rows are gone",
    "m": "it is a message in the source's log, and no change of a row",
}
UNLOGGED = (
    "is not in the event: the source did not log it, as PostgreSQL does with a TOASTed value that did not change. Set "
    "REPLICA IDENTITY FULL on the table"
)
"""Why a field cannot be taken, to follow its name."""


def describe_op(op: Any, name: str = OP) -> str:
    """Return why an operation is no change of a row."""
    why = _OTHERS.get(op) if isinstance(op, str) else None
    return f"its {name} is {op}: {why}" if why else f"its {name} is none of {', '.join((*WRITES, DELETE))}"


def find_row(node: Node, *, flattened: bool) -> Node:
    """Return the record of an event's row in Avro; :class:`InvalidDeclaration` where its schema has none."""
    whole = record_of(node)
    fields = {each.name: each.node for each in whole.fields} if whole is not None else {}
    inner = record_of(fields[AFTER]) if fields.keys() >= {BEFORE, AFTER, OP} else None
    if flattened and inner is not None:
        raise InvalidDeclaration("The Avro schema is an envelope of Debezium, and of no flattened event.")
    row = whole if flattened else inner
    if row is None:
        raise InvalidDeclaration(
            "The Avro schema is of no change event of Debezium: an envelope has before, after and op, and "
            "Debezium(flattened=True) reads rows without one."
        )
    return replace(row, fields=tuple(each for each in row.fields if each.name not in (FLAT_OP, FLAT_DELETED)))
