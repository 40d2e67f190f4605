"""What a topic is declared by, and the columns that come of it."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_provider_backpressure.connectors.kafka.source.config import (
    columns_of,
    parse_start,
    to_postgres_type,
)
from airflow_provider_backpressure.connectors.kafka.source.schema_registry import Version
from airflow_provider_backpressure.connectors.kafka.source.schema_versions import merge, to_columns
from airflow_provider_backpressure.connectors.kafka.source.topic_identity import identity_suffix, rebuild_source
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.spark_messages import Column
from airflow_provider_backpressure.exceptions import InvalidDeclaration
from airflow_provider_backpressure.sources import Avro, Debezium, JsonSchema, KafkaSource

AVRO = Avro(registry_conn_id="r")
PLACE = Endpoint(conn_id="events", host="a:1,b:2", port=0, database="", user="")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"format": "avro"}, "format must be one of json, raw"),
        ({"key": "int"}, "key must be one of bytes, text"),
        ({"fields": {}}, "at least one field"),
        ({"fields": {"id": "bigint"}, "format": "raw"}, "format='json'"),
        ({"start": datetime(2026, 1, 1)}, "with its zone"),
        ({"start": datetime(1969, 12, 31, 23, 59, 59, 999000, UTC)}, "before 1970. Use start='earliest'"),
        ({"fields": {"at": "timestamp[]"}}, "cuts what does not fit into it without an error"),
        ({"fields": {"at": "tstzrange"}}, "Take it as json or text"),
        ({"fields": {"at": "numeric(10, 2)[]"}}, "Take it as json or text"),
        ({"fields": {"at": "varchar(3)[]"}}, "Take it as json or text"),
        ({"fields": {"at": "name"}}, "Take it as json or text"),
        ({"fields": {"at": "pg_catalog.numeric(5,2)"}}, "without a schema and without quotes"),
        ({"fields": {"at": "PG_CATALOG . date"}}, "without a schema and without quotes"),
        ({"fields": {"at": '"pg_catalog"."timestamptz"(3)'}}, "without a schema and without quotes"),
        ({"fields": {"at": '"numeric"(5,2)'}}, "without a schema and without quotes"),
        ({"fields": {"at": '"bpchar"(3)[]'}}, "without a schema and without quotes"),
        ({"value": "avro"}, "value must be a format, as Avro"),
        ({"value": AVRO, "format": "raw"}, "leave format and fields out"),
        ({"value": AVRO, "fields": {"id": "bigint"}}, "leave format and fields out"),
        ({"envelope": "debezium", "fields": {"id": "bigint"}}, r"envelope must be Debezium\(…\) or None"),
        ({"envelope": Debezium()}, "envelope needs fields"),
        ({"envelope": Debezium(), "value": JsonSchema(registry_conn_id="r")}, "not with JsonSchema"),
        ({"columns": ()}, "at least one column"),
        ({"columns": "key"}, "must be a tuple of names"),
        ({"columns": ["key", "value", "key"]}, "columns names key twice"),
        ({"columns": ["ofset"]}, r"columns names ofset, which topic orders has no column for: did you mean offset\?"),
        ({"columns": ["value"], "fields": {"id": "bigint"}}, "there are topic, partition, .*, headers, id"),
        ({"columns": ["idd"], "fields": {"id": "bigint"}, "envelope": Debezium()}, r"did you mean id\?"),
        ({"columns": ["id"], "key": AVRO}, "columns names id"),
        ({"columns": [7]}, "columns names 7"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_parse(values: dict[str, Any], words: str) -> None:
    """Before any connection is looked up."""
    with pytest.raises(InvalidDeclaration, match=words):
        KafkaSource(conn_id="events", topic="orders", **values)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"topic": "a b"}, "no name"),
        ({"start": "yesterday"}, "not 'yesterday'"),
        ({"start": "2026-01-01T00:00:00"}, "with its zone"),
        ({"start": "1970-01-01T00:59:59.999+01:00"}, "before 1970. Use start='earliest'"),
        ({"start": {"x": 1}}, "whole numbers"),
        ({"start": {0: -1}}, "whole numbers"),
        ({"fields": {"key": "text", "id": "bigint"}}, "field key would be a second column"),
        ({"fields": {"id": "bytea"}}, "cannot be of type 'bytea'"),
        ({"fields": {"id": "bytea[]"}}, r"cannot be of type 'bytea\[\]'"),
        ({"fields": {"id": "bytea [3][]"}}, "cannot be of type"),
    ],
)
def test_what_may_be_a_template_is_refused_when_it_is_opened(values: dict[str, Any], words: str) -> None:
    """By then it is known."""
    with pytest.raises(InvalidDeclaration, match=words):
        KafkaSource(**{"conn_id": "events", "topic": "orders", **values}).open(PLACE)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"flattened": "yes"}, "flattened must be True or False"),
        ({"decimal_handling_mode": "text"}, "must be one of precise, string, double"),
        ({"unavailable_value_placeholder": ""}, "must be the connector's own text"),
    ],
)
def test_settings_of_change_events_are_those_of_the_connector(values: dict[str, Any], words: str) -> None:
    """Refused at parse."""
    with pytest.raises(InvalidDeclaration, match=words):
        Debezium(**values)


def test_another_envelope_is_another_source() -> None:
    """Its rows are others; what only decides which records are refused is not part of it."""
    envelopes = [None, Debezium(), Debezium(flattened=True)]
    sources = [KafkaSource(conn_id="c", topic="orders", fields={"id": "int"}, envelope=each) for each in envelopes]
    identities = [each.open(PLACE).identity for each in sources]
    assert len(set(identities)) == len(identities)
    same = Debezium(decimal_handling_mode="string", unavailable_value_placeholder="x")
    assert replace(sources[1], envelope=same).open(PLACE).identity == identities[1]


def test_a_field_that_is_named_as_a_record_s_own_column_is_refused() -> None:
    """With the way out."""
    declared = KafkaSource(conn_id="events", topic="orders", value=AVRO)
    with pytest.raises(InvalidDeclaration, match=r"field timestamp would be a second column .* names="):
        columns_of(declared, [Column(name="timestamp", type="text")])


def test_another_format_is_another_source_and_another_schema_is_not() -> None:
    """What makes the columns counts, not the columns themselves: schemas evolve."""
    formats = [AVRO, Avro(registry_conn_id="r", subject="Order"), Avro(registry_conn_id="r", raw=("at",))]
    declared = [*({"value": each} for each in formats), {"key": AVRO}, {"key": AVRO, "value": AVRO}]
    identities = [KafkaSource(conn_id="c", topic="orders", **one).open(PLACE).identity for one in declared]
    assert len(set(identities)) == len(identities)
    other = KafkaSource(conn_id="c", topic="orders", value=Avro(registry_conn_id="another"))
    assert other.open(PLACE).identity == identities[0]


def test_the_chosen_columns_are_a_source_of_their_own() -> None:
    """In their order, as of a table; a name of a template or of a registry's schema is looked at when it is known."""
    some = [None, ("value",), ("key", "value"), ("value", "key")]
    declared = [KafkaSource(conn_id="c", topic="orders", columns=each) for each in some]
    assert len({each.open(PLACE).identity for each in declared}) == len(declared)
    assert [column.name for column in columns_of(declared[3])] == ["value", "key"]
    avro = [KafkaSource(conn_id="c", topic="orders", value=AVRO, columns=each) for each in (None, ["id"], ["no"])]
    assert len({each.open(PLACE).identity for each in avro}) == len(avro)
    given = columns_of(avro[1], [Column(name="id", type="bigint"), Column(name="state", type="text")])
    assert given == (Column(name="id", type="bigint"),)
    with pytest.raises(InvalidDeclaration, match=r"columns names no, .* there are topic"):
        columns_of(avro[2], [Column(name="id", type="bigint")])
    template = KafkaSource(conn_id="c", topic="orders", columns=["{{ params.column }}"])
    with pytest.raises(InvalidDeclaration, match="columns names"):
        template.open(PLACE)


def test_a_field_that_is_named_as_a_record_s_own_column_may_be_left_out() -> None:
    """Then the name means the record's own column; a rename is not needed."""
    format_ = Avro(registry_conn_id="r")
    text = '{"type": "record", "name": "r", "fields": [{"name": "id", "type": "int"}, {"name": "key", "type": "int"}]}'
    version = Version(id=1, number=1, type="AVRO", schema=text)
    found = merge(format_, "orders", ((version, format_.shape(version, "value")),), chosen=("id", "offset"))
    declared = KafkaSource(conn_id="c", topic="orders", value=format_, columns=("id", "offset"))
    assert [column.name for column in columns_of(declared, to_columns(found))] == ["id", "offset"]
    assert found.every_name == ("id", "key")


def test_a_start_is_what_it_says() -> None:
    """Words, times and offsets, also as a template makes them."""
    assert parse_start("latest") == "latest"
    assert parse_start(" 2026-01-01T00:00:00Z") == datetime(2026, 1, 1, tzinfo=UTC)
    assert parse_start("1970-01-01T00:00:00Z") == datetime(1970, 1, 1, tzinfo=UTC)
    assert parse_start({"0": 7}) == parse_start({0: 7}) == {0: 7}


def test_other_columns_are_another_source() -> None:
    """Format, key and fields are part of the identity; where to begin is not."""
    declared = [{}, {"format": "raw"}, {"key": "text"}, {"fields": {"id": "bigint"}}, {"fields": {"id": "text"}}]
    some = {"columns": ("offset", "value")}
    declared += [some, {**some, "fields": {"value": "json"}}]
    identities = [KafkaSource(conn_id="c", topic="orders", **one).open(PLACE).identity for one in declared]
    assert identities[0] == "kafka://a:1,b:2/orders"
    assert len(set(identities)) == len(identities)
    of_several = KafkaSource(conn_id="c", topic="orders", fields={"value": "json", "id": "text"}, **some)
    assert of_several.open(PLACE).identity == identities[-1], "the same field, of several of which one is chosen"
    assert KafkaSource(conn_id="c", topic="orders", start="latest").open(PLACE).identity == identities[0]


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"format": "raw", "key": "text"},
        {"fields": {"value": "text"}},
        {"fields": {"value": "json"}, "key": "text"},
        {"fields": {"value": "json"}, "columns": ("offset", "value")},
        {"fields": {"value": "json", "id": "text"}, "columns": ("offset", "value")},
        {"fields": {"id": "int4"}},
        {"columns": ("value",)},
        {"columns": ("offset", "value"), "format": "raw"},
        {"columns": ("topic", "key"), "key": "text"},
        {"columns": ("id", "offset"), "fields": {"at": "date", "id": "int4"}},
        {"columns": ("topic", "partition", "offset", "timestamp", "key", "headers")},
    ],
)
def test_a_plan_s_columns_say_what_was_declared(values: dict[str, Any]) -> None:
    """A command has no DAG at hand, only the plan."""
    declared = KafkaSource(conn_id="c", topic="orders", **values)
    again = rebuild_source("c", "orders", columns_of(declared), identity_suffix(declared))
    assert again.open(PLACE).identity == declared.open(PLACE).identity
    assert columns_of(again) == columns_of(declared)


@pytest.mark.parametrize("type_", ["shop.price", 'shop."numeric"', '"Numeric"', '"pg_catalog.price"', "public.numeric"])
def test_a_type_of_a_user_may_have_any_name(type_: str) -> None:
    """Whether it exists is seen when the target is made."""
    assert columns_of(KafkaSource(conn_id="c", topic="orders", fields={"f": type_}))[-1].type == type_


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("INT8", "bigint"),
        ("numeric(12, 2)", "numeric(12,2)"),
        ("decimal(5)", "numeric(5,0)"),
        ("numeric", "numeric"),
        ("timestamptz", "timestamp with time zone"),
        ("timestamptz(3)", "timestamp(3) with time zone"),
        ("timestamp(3) without time zone", "timestamp(3) without time zone"),
        ("timestamp", "timestamp without time zone"),
        ("varchar(40)", "character varying(40)"),
        ("char", "character(1)"),
        ("char(3)", "character(3)"),
        ("double  precision", "double precision"),
        ("float8", "double precision"),
        ("uuid", "uuid"),
    ],
)
def test_types_are_spelled_as_postgresql_does(given: str, expected: str) -> None:
    """So that a column compares with what is in the target."""
    assert to_postgres_type(given) == expected
