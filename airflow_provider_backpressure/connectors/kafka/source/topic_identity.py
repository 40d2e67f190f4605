"""What a topic's identity says of its columns, and the declaration that a plan's columns come from."""

import hashlib
import json
from typing import Any

from airflow_provider_backpressure.connectors.kafka.record_columns import METADATA, VALUE, find_key, find_values
from airflow_provider_backpressure.connectors.kafka.source.config import KEY_TYPES, VALUE_TYPES, KafkaSource, columns_of
from airflow_provider_backpressure.core.snapshot.spark_messages import Column


def identity_suffix(declared: KafkaSource) -> str:
    """Return what a topic's identity ends with: other columns of a topic are another source."""
    chosen = [declared.key, declared.format, list((declared.fields or {}).items())]
    if declared.registered:
        # Schemas evolve, so what makes the columns counts, and not the columns.
        formats = {part: each.identity() for part, each in declared.registered.items()}
        columns: list[Any] = [formats, *(each for each in chosen if isinstance(each, str))]
    elif chosen == ["bytes", "json", []] and declared.columns is None:
        return ""
    else:
        arriving = columns_of(declared)
        columns = [[column.name, column.type] for column in arriving]
        if declared.fields is not None and [column.name for column in find_values(arriving)] == [VALUE]:
            # Its column has the name and may have the type of that of the whole value.
            columns.append("field")
    if declared.registered and declared.columns is not None:
        columns = [*columns, list(declared.columns)]
    if declared.envelope is not None:
        columns = [*columns, declared.envelope.identity()]
    return "#" + hashlib.sha256(json.dumps(columns).encode()).hexdigest()[:12]


def rebuild_source(conn_id: str, topic: str, columns: tuple[Column, ...], suffix: str = "") -> KafkaSource:
    """Return the declaration that made the columns of a plan, see :func:`columns_of`.

    ``suffix``: that of the source's identity, by which a whole value and a field of its name are known apart.
    """
    key, values = find_key(columns), find_values(columns)
    kind = next((name for name, type_ in KEY_TYPES.items() if key is not None and type_ == key.type), "bytes")
    names = [column.name for column in columns]
    chosen = None if names[: len(METADATA)] == [*METADATA] and values else tuple(names)
    fields = {column.name: column.type for column in values}
    whole = [
        KafkaSource(conn_id=conn_id, topic=topic, format=name, key=kind, columns=chosen)
        for name, type_ in VALUE_TYPES.items()
        if not fields or fields == {VALUE: type_}
    ]
    if whole and (list(fields) != [VALUE] or identity_suffix(whole[0]) == suffix):
        return whole[0]
    return KafkaSource(conn_id=conn_id, topic=topic, key=kind, fields=fields, columns=chosen)
