"""Records as columns: every value in its sender's words, and the first bad one named."""

import json
import sys
from dataclasses import dataclass
from typing import Any

import pyarrow
import pytest

from airflow_provider_backpressure.connectors.kafka.headers import NO_UTF8, UNREADABLE
from airflow_provider_backpressure.connectors.kafka.source.config import columns_of
from airflow_provider_backpressure.connectors.kafka.tasks import json_values, record_batches
from airflow_provider_backpressure.connectors.kafka.tasks.record_batches import to_batch, to_batch_with_bad
from airflow_provider_backpressure.connectors.kafka.tasks.wire_format import Decoder
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, ReadSpec
from airflow_provider_backpressure.core.snapshot.topic_offsets import TOMBSTONE, find_place
from airflow_provider_backpressure.exceptions import SourceRefused
from airflow_provider_backpressure.sources import KafkaSource
from airflow_provider_backpressure.spark.column_types import carrier
from airflow_provider_backpressure.spark.stream_end import BAD, apart, hidden_columns, split_marks


def undecodable() -> UnicodeDecodeError:
    """Return what Python raises for such a name."""
    return UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")


@dataclass
class Sent:
    """A record as the client has it."""

    held: bytes | None
    keyed: bytes | None = None
    at: int = 0
    time: tuple[int, int] = (0, -1)
    named: Any = None

    def value(self) -> bytes | None:
        """Its value."""
        return self.held

    def key(self) -> bytes | None:
        """Its key."""
        return self.keyed

    def offset(self) -> int:
        """Its offset."""
        return self.at

    def partition(self) -> int:
        """Its partition."""
        return 3

    def topic(self) -> str:
        """Its topic."""
        return "orders"

    def timestamp(self) -> tuple[int, int]:
        """Its kind of time, here none, and milliseconds."""
        return self.time

    def headers(self) -> Any:
        """No headers, or a failure as that of confluent-kafka: once, with a list that has a hole from then on."""
        if isinstance(self.named, Exception):
            error, self.named = self.named, [None]
            raise error
        return self.named

    def set_headers(self, headers: Any) -> None:
        """Set headers."""
        self.named = headers


def batch(records: list[Sent], **values: Any) -> pyarrow.RecordBatch:
    """Return the batch of records of a declared topic, as it is typed for Spark."""
    columns = columns_of(KafkaSource(conn_id="c", topic="orders", **values))
    found = to_batch(records, columns, "orders")
    assert found.schema.types == [carrier(column.type)[0] for column in columns]
    return found


def test_values_stay_as_they_were_sent() -> None:
    """JSON keeps its spaces and digits; NULL is apart from JSON's null; no time is NULL."""
    texts = [b' {"a" : 1.50}', None, b"null", b'"\\ud800"', b"12345678901234567890"]
    found = batch([Sent(text) for text in texts])
    assert found.column("value").to_pylist() == [None if text is None else text.decode() for text in texts]
    assert found.column("timestamp").null_count == len(texts)
    assert found.column("partition").to_pylist() == [3] * len(texts)


@pytest.mark.statement("X5")
@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"", "no JSON"),
        (b"{'a': 1}", r"no JSON \(Expecting property name"),
        (b"NaN", r"no JSON \(NaN is no JSON\)"),
        (b"[1,]", "no JSON"),
        (b'"a\x01"', "no JSON"),
        (b"\xff", "no UTF-8"),
        (b"[" * 100_000, "nested too deep|no JSON"),
    ],
)
def test_a_value_that_is_no_json_is_named_by_its_place(value: bytes, words: str) -> None:
    """X5: topic, partition, offset and reason, nothing of the value."""
    with pytest.raises(SourceRefused, match=rf"offset 7 of partition 3 of topic orders cannot be taken: .*({words})"):
        batch([Sent(b"1", at=6), Sent(value, at=7), Sent(b"!", at=8)])


def test_what_is_not_chosen_is_not_looked_at() -> None:
    """Neither a value that is no JSON, nor a key that is no text, nor a time that no reader holds."""
    odd = Sent(b"{", keyed=b"\xff", at=7, time=(1, 2**62))
    assert batch([odd], columns=("offset", "topic"), key="text").to_pylist() == [{"offset": 7, "topic": "orders"}]
    for columns, words in ((("value",), "no JSON"), (("key",), "its key"), (("timestamp",), "its timestamp")):
        with pytest.raises(SourceRefused, match=words):
            batch([odd], columns=columns, key="text")


def test_a_field_named_value_is_a_field() -> None:
    """Where fields are declared; otherwise it is the whole value."""
    columns = (Column(name="value", type="json"),)
    (row,) = to_batch([Sent(b'{"value": [1.0]}')], columns, "orders", by_field=True).to_pylist()
    assert row == {"value": "[1.0]"}
    (row,) = to_batch([Sent(b'{"value": [1.0]}')], columns, "orders").to_pylist()
    assert row == {"value": '{"value": [1.0]}'}


@pytest.mark.parametrize("chosen", [("id",), ("id", "offset"), ("partition", "offset", "id")])
def test_marks_come_behind_the_chosen_columns(chosen: tuple[str, ...]) -> None:
    """As the frame path lists them, also of a record that is put aside."""
    columns = columns_of(KafkaSource(conn_id="c", topic="orders", fields={"id": "int"}, columns=chosen))
    spec = ReadSpec(kind="kafka", conn_id="c", columns=columns, marks_tombstones=True, keep_bad=True)
    records = [Sent(b'{"id": 1}', at=5), Sent(None, at=6), Sent(b"!", at=7)]
    found = to_batch_with_bad(records, columns, "orders", marks=True)
    assert found.schema.names == [each.name for each in (*columns, *hidden_columns(spec))]
    rows, marks = split_marks(found.drop_columns([BAD]), find_place(columns))
    assert marks.to_pylist() == [
        {"partition": 3, "offset": at, TOMBSTONE: gone} for at, gone in ((5, False), (6, True), (7, False))
    ]
    assert rows.schema.names == list(chosen)
    _, [(row, reason)] = apart(found, keep_bad=True)
    assert (row["partition"], row["offset"], row["value"], "JSON" in reason) == (3, 7, "!", True)


def test_where_the_target_looks_at_json_itself_nobody_does_here() -> None:
    """What is no text is named all the same."""
    columns = columns_of(KafkaSource(conn_id="c", topic="orders"))
    found = to_batch([Sent(b"1"), Sent(b"{'a"), Sent(None)], columns, "orders", trusts=True)
    assert found.column("value").to_pylist() == ["1", "{'a", None]
    with pytest.raises(SourceRefused, match=r"offset 7 .* no UTF-8"):
        to_batch([Sent(b"1"), Sent(b"\xff", at=7)], columns, "orders", trusts=True)


@pytest.mark.parametrize(
    ("type_", "sent", "expected"),
    [
        ("bigint", "9007199254740993", 9007199254740993),
        ("bigint", '"12"', 12),
        ("numeric", "1.10e400", "1.10e400"),
        ("boolean", "true", True),
        ("text", "1.10", "1.10"),
        ("text", '"a"', "a"),
        ("text", '{"b": [1.0, true, null]}', '{"b": [1.0, true, null]}'),
        ("json", '"a"', '"a"'),
        ("json", "null", None),
        ("double precision", "1e3", 1000.0),
    ],
)
def test_a_field_has_its_type(type_: str, sent: str, expected: Any) -> None:
    """What is no text goes by its own words."""
    found = batch([Sent(f'{{"f": {sent}}}'.encode()), Sent(b"{}"), Sent(None)], fields={"f": type_})
    assert found.column("f").to_pylist() == [expected, None, None]


@pytest.mark.statement("X5")
@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("bigint", 1.5),
        ("smallint", 40000),
        ("bigint", "secret"),
        ("boolean", "maybe"),
        ("numeric(4,2)", 1.234),
        ("timestamptz", "2026-01-01T00:00:00"),
        ("date", 5),
        ("text", "a\0b"),
        ("bigint", [1]),
    ],
)
def test_a_field_that_does_not_fit_is_named(type_: str, value: Any) -> None:
    """X5: with the field and its type."""
    with pytest.raises(SourceRefused, match=r"offset 5 .* its field f (is|has|holds) ") as refused:
        batch([Sent(b"{}", at=4), Sent(json.dumps({"f": value}).encode(), at=5)], fields={"f": type_})
    assert "secret" not in str(refused.value)


@pytest.mark.statement("X5")
@pytest.mark.parametrize(
    ("type_", "value", "why"),
    [
        ("bigint", "9223372036854775808", r"its field big is too large for bigint: 9223372036854775808\."),
        ("smallint", '"0xFFFF"', r"its field big is no smallint\."),
        ("bigint", '"0xFFFFFFFFFFFFFFFF"', r"its field big is no bigint\."),
        ("double precision", "1e400", r"its field big is too large for double precision: 1e400\."),
        ("real", "1e39", r"its field big is too large for real: 1e39\."),
        ("smallint", "-32769", r"its field big is too large for smallint: -32769\."),
        ("integer", '"x"', r"its field big is no integer\."),
        ("integer", "1.5", r"its field big is no integer\."),
        ("numeric(4,2)", "100", r"its field big is too large for numeric\(4,2\)\."),
        ("numeric(38,38)", "5.5e1", r"its field big is too large for numeric\(38,38\)\."),
        ("numeric(38,0)", f"{2**128}", r"its field big is too large for numeric\(38,0\)\."),
        ("numeric(38,2)", '"."', r"its field big is no numeric\(38,2\)\."),
        ("real", '"127.0.0.1"', r"its field big is no real\."),
        ("double precision", '"."', r"its field big is no double precision\."),
        ("numeric(4,2)", "1.234", r"its field big has too many decimals for numeric\(4,2\)\."),
        ("numeric(40,2)", "1.005", r"its field big has too many decimals for numeric\(40,2\)\."),
        ("numeric(40,2)", "1005e-3", r"its field big has too many decimals for numeric\(40,2\)\."),
        ("numeric(3,-2)", "150", r"its field big has too many decimals for numeric\(3,-2\)\."),
        (
            "timestamp(0)",
            '"2024-01-01T00:00:00.7"',
            r"its field big has too many decimals for timestamp\(0\) without time zone\.",
        ),
        (
            "timestamptz(3)",
            '"2024-01-01T00:00:00.0001Z"',
            r"its field big has too many decimals for timestamp\(3\) with time zone\.",
        ),
        ("time(1)", '"10:00:00.25"', r"its field big has too many decimals for time\(1\)\."),
        ("time", '"10:00:00.1234567"', r"its field big has too many decimals for time\."),
        ("interval(0)", '"0.5 seconds"', r"its field big has too many decimals for interval\(0\)\."),
        ("interval", '"0.5 microseconds"', r"its field big has too many decimals for interval\."),
        ("interval", '"1.5us"', r"its field big has too many decimals for interval\."),
        ("interval", '"1.0005 milliseconds"', r"its field big has too many decimals for interval\."),
        ("interval", '"PT1.5E-7S"', r"its field big has too many decimals for interval\."),
        ("interval", '"1e-3 hours"', r"its field big has too many decimals for interval\."),
        ("interval", '"1.49 years"', r"its field big has too many decimals for interval\."),
        ("interval", '"P0.5Y"', r"its field big has too many decimals for interval\."),
        ("interval", '"P1.5M"', r"its field big has too many decimals for interval\."),
        ("interval", '"1.5 Mons"', r"its field big has too many decimals for interval\."),
        ("interval", '"1.5 mil"', r"its field big has too many decimals for interval\."),
        ("interval", '"0.1 centuries"', r"its field big has too many decimals for interval\."),
        ("interval(3)", '"5 microseconds"', r"its field big has too many decimals for interval\(3\)\."),
        ("interval(2)", '"5 ms"', r"its field big has too many decimals for interval\(2\)\."),
        ("interval(4)", '"0.05 ms"', r"its field big has too many decimals for interval\(4\)\."),
        ("oid", "-1", r"its field big is no oid\."),
        ("oid", '"1x"', r"its field big is no oid\."),
        ("oid[]", '"{1,-1}"', r"its field big is no oid\[\]\."),
        ("money", '"1.005"', r"its field big has too many decimals for money\."),
        ("money", '"1,5"', r"its field big is no money\."),
        ("time", '"12:00:00+02:00"', r"its field big is no time\."),
        ("time", '"2024-06-01T12:00:00"', r"its field big is no time\."),
        ("timetz", '"12:00:00"', r"its field big is no timetz\."),
        ("varchar(3)", '"abc   "', r"its field big is too long for character varying\(3\)\."),
        ("numeric(4,2)", '"x"', r"its field big is no numeric\(4,2\)\."),
        ("text", '"a\\u0000b"', r"its field big holds a NUL character, which no text can\."),
    ],
)
def test_a_field_that_does_not_fit_is_told_by_what_is_wrong_with_it(type_: str, value: str, why: str) -> None:
    """A number that is too large is a number; the first such record is named by its offset."""
    records = [Sent(b'{"big": null}', at=6), Sent(f'{{"big": {value}}}'.encode(), at=7)]
    with pytest.raises(SourceRefused, match=rf"at offset 7 of partition 3 of topic orders cannot be taken: {why}"):
        batch(records, fields={"big": type_})


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("interval", "1.5 seconds"),
        ("interval", "1.5 hours 0.25 days 0.000001 weeks"),
        ("interval", "PT1.5M0.000001S"),
        ("interval", "P1Y2M3.5DT4H5M6.78S"),
        ("interval", "1.0 years"),
        ("interval", "1.005 milliseconds"),
        ("interval", "5 us"),
        ("interval", "@ 1 mon 3 days 04:05:06.789 ago"),
        ("interval(3)", "5 ms"),
        ("interval(4)", "0.5 ms"),
        ("oid", "4294967295"),
        ("oid[]", "{1,NULL}"),
    ],
)
def test_what_postgresql_takes_exactly_is_not_refused(type_: str, value: str) -> None:
    """A fraction of a day or an hour is a whole number of microseconds."""
    sent = Sent(json.dumps({"f": value}).encode())
    assert batch([sent], fields={"f": type_}).column("f").to_pylist() == [value]


OTHERS = {"t": "timetz", "m": "money", "c": "varchar(3)"}


def test_zeros_behind_the_last_digit_are_no_digits_too_many() -> None:
    """Nothing is rounded away."""
    assert batch([Sent(b'{"t": "12:00:00.5+02", "m": "$1,000.50", "c": "abc"}')], fields=OTHERS).num_rows == 1
    fields = {"n": "numeric(40,2)", "h": "numeric(3,-2)", "t": "timestamp(0)", "m": "money", "x": "numeric(40,2)"}
    value = b'{"n": 1.500, "h": "3e2", "t": "2024-01-01T00:00:00.000", "m": "$1.50", "x": "NaN"}'
    found = batch([Sent(value)], fields=fields).to_pylist()[0]
    assert (found["n"], found["h"], found["m"], found["x"]) == ("1.500", "3e2", "$1.50", "NaN")
    assert str(found["t"]) == "2024-01-01 00:00:00"


@pytest.mark.parametrize(("key", "words"), [(b"\xff", "key is no UTF-8"), (b"a\0", "key holds a NUL")])
def test_a_key_that_is_no_text_is_named(key: bytes, words: str) -> None:
    """X5: where keys are declared to be text."""
    with pytest.raises(SourceRefused, match=words):
        batch([Sent(b"1", keyed=key)], key="text")


def test_a_value_that_is_no_object_has_no_fields() -> None:
    """A list is JSON, but nothing to take fields of."""
    with pytest.raises(SourceRefused, match="no JSON object"):
        batch([Sent(b"[1]")], fields={"f": "text"})


@pytest.mark.parametrize(
    ("type_", "value", "reason"),
    [
        ("text", b'{"f": "\\ud800"}', "half of a surrogate pair"),
        ("double precision", b'{"f": 1e-400}', "too small"),
        ("real", b'{"f": 1e-50}', "too small"),
        ("date", b'{"f": "0000-01-01"}', "outside of the years 1 to 9999: 0000-01-01"),
        ("timestamp", b'{"f": "0000-12-31 23:59:59"}', "outside of the years"),
        ("timestamptz", b'{"f": "0001-01-01T00:00:00+10:00"}', "outside of the years"),
        ("timestamptz", b'{"f": "9999-12-31T23:59:59-10:00"}', "outside of the years"),
    ],
)
def test_half_a_character_and_a_number_that_would_be_zero_are_bad(type_, value, reason):
    columns = columns_of(KafkaSource(conn_id="c", topic="orders", fields={"f": type_}))
    with pytest.raises(SourceRefused, match=f"offset 7 .*{reason}"):
        to_batch([Sent(value, at=7)], columns, "orders")


@pytest.mark.statement("X4")
def test_a_record_without_a_time_has_none_whatever_its_kind():
    """X4: a broker that has converted an old batch says that it was made, at Kafka's sign for never."""
    columns = columns_of(KafkaSource(conn_id="c", topic="orders"))
    records = [Sent(b"{}", time=(0, -1)), Sent(b"{}", time=(1, -1)), Sent(b"{}", time=(1, 0))]
    found = to_batch(records, columns, "orders").column("timestamp")
    assert [each.is_valid for each in found] == [False, False, True]


def test_a_record_of_a_year_that_no_reader_holds_is_kept_aside():
    """Its producer sent microseconds for milliseconds."""
    columns = columns_of(KafkaSource(conn_id="c", topic="orders"))
    odd, last = Sent(b"{}", at=8, time=(1, 1_700_000_000_000_000)), Sent(b"{}", at=9, time=(1, 253_402_300_799_999))
    with pytest.raises(SourceRefused, match=r"its timestamp is outside .* bad_timestamps=\"null\" .* quarantine="):
        to_batch([odd], columns, "orders")
    found = to_batch_with_bad([odd, last], columns, "orders").to_pylist()
    assert [(row["offset"], row["timestamp"] is None, row[BAD] is None) for row in found] == [
        (8, True, False),
        (9, False, True),
    ]
    for make in (to_batch, to_batch_with_bad):
        found = make([odd, last], columns, "orders", null_times=True).to_pylist()
        assert [(row["offset"], row["timestamp"] is None, row.get(BAD)) for row in found] == [
            (8, True, None),
            (9, False, None),
        ]


@pytest.mark.parametrize("type_", ["json", "text"])
def test_a_field_that_is_nested_too_deep_is_bad(type_):
    """Deeper than Python's recursion goes; before 3.13 it goes less far than its parser does, within a test."""
    depth = 900 if sys.version_info < (3, 13) else 100_000
    columns = columns_of(KafkaSource(conn_id="c", topic="orders", fields={"f": type_}))
    deep = Sent(b'{"f": ' + b"[" * depth + b"]" * depth + b"}", at=7)
    with pytest.raises(SourceRefused, match=r"offset 7 .*nested too deep"):
        to_batch([deep], columns, "orders")
    assert to_batch_with_bad([deep], columns, "orders").to_pylist()[0][BAD] is not None


@pytest.mark.parametrize(
    ("wrong", "most"),
    [
        ({4_000}, 5),
        (set(range(0, 5_000, 100)), 400),
        pytest.param(set(range(5_000)), 5_000, marks=pytest.mark.long),
    ],
)
def test_few_bad_records_do_not_cost_a_batch_for_each_record(
    monkeypatch: pytest.MonkeyPatch, wrong: set[int], most: int
) -> None:
    """The records come in their order, each once, and only the bad ones are bad."""
    calls: list[int] = []
    monkeypatch.setattr(
        record_batches, "to_batch", lambda some, *_, **more: calls.append(len(some)) or to_batch(some, *_, **more)
    )
    columns = columns_of(KafkaSource(conn_id="c", topic="orders"))
    records = [Sent(b"{" if at in wrong else b"{}", at=at) for at in range(5_000)]
    found = to_batch_with_bad(records, columns, "orders").to_pylist()
    assert [(row["offset"], row[BAD] is not None) for row in found] == [(at, at in wrong) for at in range(5_000)]
    assert len(calls) <= most


def test_json_behind_a_schema_s_id_is_taken_as_other_json() -> None:
    """Fields by their columns' names, in their sender's words; the record itself is named where something is wrong."""
    schemas: dict[str, Any] = {"7": {}, "8": {"misfit": "its schema 8 does not fit schema 7: field id is text"}}
    decoding = {"format": "json", "subject": "orders-value", "schemas": schemas, "whole": False, "names": {"key": "id"}}
    value = [Column(name="id", type="bigint"), Column(name="lines", type="json")]
    key = Column(name="key", type="text")
    columns = columns_of(KafkaSource(conn_id="c", topic="orders"), value, key)
    decoders = {
        part: Decoder(decoding=decoding, columns=made, part=part) for part, made in (("value", value), ("key", [key]))
    }
    head = b"\0\0\0\0\7"
    good = Sent(head + b'{"key": 12345678901, "lines": [1.50]}', head + b'{"a":1}')
    found = to_batch([good, Sent(None)], columns, "orders", decoders=decoders).to_pylist()
    assert [(row["key"], row["id"], row["lines"]) for row in found] == [
        ('{"a":1}', 12345678901, "[1.50]"),
        (None, None, None),
    ]
    wrong = [
        Sent(head + b'{"key": "x"}', at=1),
        Sent(b"\0\0\0\0\x08{}", at=2),
        Sent(b"{}", at=3),
        Sent(head + b"{", at=4),
    ]
    kept = to_batch_with_bad([good, *wrong, good], columns, "orders", decoders=decoders).to_pylist()
    reasons = [json.loads(row[BAD])["reason"] if row[BAD] else None for row in kept]
    assert [row["offset"] for row in kept] == [0, 1, 2, 3, 4, 0]
    assert reasons[0] is None is reasons[5]
    for reason, words in zip(
        reasons[1:5], ("is no bigint", "does not fit", "begin with a schema's id", "no JSON"), strict=True
    ):
        assert words in str(reason)


@pytest.mark.statement("R5")
@pytest.mark.parametrize("value", [b'{"id": 1, "note": "x"}', b'\r\n\t {"note": "x", "id": 1} \n', None])
def test_an_ordinary_object_needs_no_second_look(value: bytes | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of R5: neither the object nor a field that is a text or a number, which most of all are."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("looked at by itself")

    monkeypatch.setattr(json_values, "_to_text", refuse)
    if value is not None:
        monkeypatch.setattr(json_values, "_json_object", refuse)
    found = batch([Sent(value)], fields={"id": "bigint", "note": "text"}).to_pylist()
    assert [(row["id"], row["note"]) for row in found] == [(None, None) if value is None else (1, "x")]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b'{"id": 1} {}', r"no JSON \(Extra data at character 10\)"),
        (b'\xc2\xa0{"id": 1}', "no JSON"),
        (b'\xef\xbb\xbf{"id": 1}', "no JSON"),
        (b'{"id": 1}\0', "holds a NUL character"),
        (b" \n", "no JSON"),
        (b"[1]", "is no JSON object"),
        (b" 1 ", "is no JSON object"),
        (b"\xff", "no UTF-8"),
    ],
)
def test_an_object_with_anything_else_around_it_is_named(value: bytes, words: str) -> None:
    """Behind good ones, by its own place."""
    with pytest.raises(SourceRefused, match=rf"offset 7 of partition 3 .*{words}"):
        batch([Sent(b' {"id": 1}'), Sent(value, at=7)], fields={"id": "bigint"})


@pytest.mark.parametrize(("whole", "expected"), [(False, "[1]"), (True, '{"value": [1], "more": 2}')])
def test_a_property_named_value_is_not_the_whole(whole: bool, expected: str) -> None:
    """The plan says which of both it is: the columns are the same."""
    decoding = {"format": "json", "subject": "orders-value", "schemas": {"7": {}}, "whole": whole, "names": {}}
    value = [Column(name="value", type="json")]
    columns = columns_of(KafkaSource(conn_id="c", topic="orders"), value)
    decoders = {"value": Decoder(decoding=decoding, columns=value, part="value")}
    sent = Sent(b'\0\0\0\0\7{"value": [1], "more": 2}')
    assert to_batch([sent], columns, "orders", decoders=decoders).column("value").to_pylist() == [expected]


@pytest.mark.statement("R4")
@pytest.mark.parametrize("failure", [SystemError, undecodable, UNREADABLE])
def test_a_header_s_name_that_is_no_text_is_named_or_put_aside(failure: Any) -> None:
    """R4: the record, and not what the client raises. Where headers are left out nothing is read of them."""

    def records() -> list[Sent]:
        odd = [failure() if callable(failure) else failure for _ in range(3)]
        good = [("a", b"1")]
        return [
            Sent(b"1", named=good),
            Sent(b"2", at=7, named=odd[0]),
            Sent(b"3", named=good),
            Sent(b"4", at=9, named=odd[1]),
            Sent(b"{", at=10, named=odd[2]),
            Sent(b"{", at=11, named=good),
        ]

    with pytest.raises(SourceRefused, match=r"offset 7 .* a name of its headers is no UTF-8. Leave headers out"):
        batch(records()[:3])
    assert batch(records()[:3], columns=("value",)).column("value").to_pylist() == ["1", "2", "3"]
    columns = columns_of(KafkaSource(conn_id="c", topic="orders"))
    good, bad = apart(to_batch_with_bad(records(), columns, "orders"), keep_bad=True)
    assert good.column("value").to_pylist() == ["1", "3"]
    assert good.column("headers").to_pylist() == ['[{"key": "a", "value": "1"}]'] * 2
    reasons = [(row["offset"], reason.split(" (")[0]) for row, reason in bad]
    assert reasons == [(7, NO_UTF8), (9, NO_UTF8), (10, "its value is no JSON"), (11, "its value is no JSON")]
