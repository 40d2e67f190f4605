"""The declaration of a Kafka topic as a source. Knows no connection and imports no driver."""

import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import ClassVar

from airflow_provider_backpressure.connectors.kafka.record_columns import (
    KEY,
    METADATA,
    VALUE,
    check_chosen,
    choose_columns,
)
from airflow_provider_backpressure.connectors.kafka.source.formats import (
    CONN_TYPES,
    Avro,
    AvroEvents,
    Debezium,
    Format,
    Protobuf,
)
from airflow_provider_backpressure.core.config import Consistency, check_some, take_tuples
from airflow_provider_backpressure.core.declaration_checks import Declared
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.health_signal_declarations import Retention, Watched
from airflow_provider_backpressure.core.ports import Source
from airflow_provider_backpressure.core.snapshot.spark_messages import Column
from airflow_provider_backpressure.core.snapshot.topic_offsets import HIDDEN_PLACE, PLACE, TOMBSTONE
from airflow_provider_backpressure.exceptions import InvalidDeclaration

FORMATS = ("json", "raw")
KEYS = ("bytes", "text")
BAD_TIMESTAMPS = ("refuse", "null")
EARLIEST, LATEST = "earliest", "latest"
RETENTION_SHARE = 0.2
"""Share of a topic's retention that is left when a warning begins, where the budget names none."""
MOST_PARTS = 64
"""Most parts of the keys: each of them reads every record."""
Start = str | datetime | Mapping[int, int] | Mapping[str, int]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


@dataclass(frozen=True, kw_only=True)
class KafkaSource(Declared):
    """A topic, read by offsets; later runs bring the offsets that are new. Raises :class:`InvalidDeclaration`.

    Columns: ``topic``, ``partition``, ``offset``, ``timestamp``, ``key``, ``headers``, and ``value`` or the fields;
    ``columns`` chooses some of them.
    """

    conn_types: ClassVar[tuple[str, ...]] = ("kafka",)
    """Types that the Airflow connection may be of."""
    consistencies: ClassVar[tuple[str, ...]] = (Consistency.OFFSETS,)
    """What may be asked for."""
    templated: ClassVar[tuple[str, ...]] = ("conn_id", "topic", "value", "key", "columns", "start")
    """Fields whose text may be a template."""

    conn_id: str
    topic: str
    format: str = "json"
    """``json``: each value is one JSON text; ``raw``: bytes as they are."""
    fields: Mapping[str, str] | None = None
    """PostgreSQL types by field of the JSON object, in the order of the columns; they stand for ``value``."""
    value: Format | None = None
    """How values are written whose schemas are in a registry; it stands for ``format`` and ``fields``."""
    key: str | Format = "bytes"
    """``bytes``, ``text`` where every key is UTF-8, or how keys are written whose schemas are in a registry."""
    envelope: Debezium | None = None
    """Change events, which need ``mode="upsert"``: ``fields`` or ``value`` then says what their rows hold."""
    columns: tuple[str, ...] | None = None
    """Names of the columns that arrive, in their order; ``None`` for all. What is not named is not decoded."""
    one_partition_per_key: bool = False
    """Whether the records of each key by which rows are upserted are all in one partition, as Kafka's own partitioners
    put them: then partitions are upserted side by side. Where it is not so, any of a key's partitions may win."""
    upsert_parts: int = 1
    """Into how many parts the keys by which rows are upserted are cut: as many ranges upsert the same offsets side by
    side, each the records of its keys, in their order. Each of them reads all records."""
    start: Start = EARLIEST
    """Where the first run begins: ``earliest``, ``latest``, an aware time (a datetime or ISO text), or offsets by
    partition, of which those not named begin at their earliest."""
    accept_loss: bool = False
    """Continue where the log no longer holds what was to be read. Otherwise the run stops and names the loss."""
    bad_timestamps: str = "refuse"
    """What becomes of a record's own timestamp outside of the years 1 to 9999: ``refuse`` the record, or ``null``."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant; templates are looked at when they are known."""
        take_tuples(self, "columns")
        check_some(self, self.columns)
        if isinstance(self.topic, str) and "{" not in self.topic:
            self._check_topic()
        if self.format not in FORMATS:
            raise InvalidDeclaration(f"KafkaSource.format must be one of {', '.join(FORMATS)}, not {self.format!r}.")
        if isinstance(self.key, str) and self.key not in KEYS:
            raise InvalidDeclaration(f"KafkaSource.key must be one of {', '.join(KEYS)}, not {self.key!r}.")
        if any(isinstance(each, str) for each in self.registered.values()):
            raise InvalidDeclaration(
                f"KafkaSource.value must be a format, as Avro(registry_conn_id=…), not {self.value!r}: format= names "
                "json and raw."
            )
        if self.value is not None and (self.fields is not None or self.format != "json"):
            raise InvalidDeclaration("KafkaSource.value says how values are written: leave format and fields out.")
        if self.fields is not None and self.format != "json":
            raise InvalidDeclaration("KafkaSource.fields are those of JSON objects: they need format='json'.")
        if self.fields is not None and not isinstance(self.fields, Mapping):
            raise InvalidDeclaration(
                f'KafkaSource.fields must give a type to each field, as {{"id": "bigint"}}, not {self.fields!r}.'
            )
        for name, type_ in (self.fields or {}).items():
            check_field(name, type_)
        if self.fields is not None and not self.fields:
            raise InvalidDeclaration("KafkaSource.fields must name at least one field, or be None for the whole value.")
        self._check_envelope()
        self._check_columns()
        if not 1 <= self.upsert_parts <= MOST_PARTS:
            raise InvalidDeclaration(
                f"KafkaSource.upsert_parts must be a whole number from 1 to {MOST_PARTS}, not {self.upsert_parts}."
            )
        if self.bad_timestamps not in BAD_TIMESTAMPS:
            raise InvalidDeclaration(
                f"KafkaSource.bad_timestamps must be one of {', '.join(BAD_TIMESTAMPS)}, not {self.bad_timestamps!r}."
            )
        if isinstance(self.start, datetime):
            _aware(self.start)

    def check_use(
        self, *, upserted_by: Sequence[str] | None, finds_rows: bool, takes_parts: bool, transformed: bool
    ) -> None:
        """Raise :class:`InvalidDeclaration` where a column is left out that a hydration needs, or it has no parts.

        ``upserted_by``: the key of the sink, empty for the record's own; ``None``: rows are appended. ``finds_rows``:
        whether the target's rows have to be found by their offsets. ``takes_parts``: whether the sink takes rows by
        parts of their keys.
        """
        if self.upsert_parts > 1 and (upserted_by is None or transformed or not takes_parts):
            raise InvalidDeclaration(
                "KafkaSource.upsert_parts cuts a topic by the keys of its records: it needs mode='upsert', a "
                "PostgresSink, and no transform."
            )
        chosen = self.columns
        if chosen is None or self._is_templated:
            return
        if upserted_by is not None and not upserted_by and KEY not in chosen:
            raise InvalidDeclaration(
                "KafkaSource.columns leaves out key, by which the topic is upserted: name it, or the columns to upsert "
                "by as key= of the sink."
            )
        lacking = [name for name in PLACE if name not in chosen]
        if finds_rows and lacking:
            raise InvalidDeclaration(
                f"KafkaSource.columns leaves out {' and '.join(lacking)}, by which verification finds the rows of each "
                "run in the target: name both, or use verify='none'."
            )

    @property
    def registered(self) -> dict[str, Format]:
        """What goes by schemas of a registry, by ``key`` and ``value``."""
        key = {} if isinstance(self.key, str) else {KEY: self.key}
        return key if self.value is None else {**key, VALUE: self.value}

    @property
    def formats(self) -> dict[str, Format]:
        """The same as records are read: by what holds them, where they are change events."""
        return {
            part: AvroEvents.wrap(each, self.envelope, part)
            if self.envelope is not None and isinstance(each, Avro)
            else each
            for part, each in self.registered.items()
        }

    @property
    def reads_keys(self) -> bool:
        """Whether keys are decoded: for their column, or for what change events delete."""
        return self.columns is None or KEY in self.columns or self.envelope is not None

    def subject(self, part: str) -> str:
        """Return where the registry keeps the schemas of ``key`` or ``value``."""
        return self.registered[part].subject or f"{self.topic}-{part}"

    @property
    def related(self) -> dict[str, tuple[str, ...]]:
        """Types of further connections that the planning side needs, by their ids."""
        return {each.registry_conn_id: CONN_TYPES for each in self.registered.values()}

    @property
    def table(self) -> str:
        """What is read, by its name."""
        return self.topic

    def safety_signals(self, consistency: str | None) -> tuple[Watched, ...]:
        """Return what is watched without being asked for: the topic's retention."""
        return (Retention(share=RETENTION_SHARE),)

    def open(self, endpoint: Endpoint) -> Source:
        """Return the source at this endpoint; it connects at the first question. Names and types are checked here."""
        from airflow_provider_backpressure.connectors.kafka.source.topic import KafkaTopic

        self._check_topic()
        return KafkaTopic(self, endpoint)

    def _check_envelope(self) -> None:
        if self.envelope is None:
            return
        if not isinstance(self.envelope, Debezium):
            raise InvalidDeclaration(f"KafkaSource.envelope must be Debezium(…) or None, not {self.envelope!r}.")
        if self.value is not None and not isinstance(self.value, Avro):
            raise InvalidDeclaration(
                f"KafkaSource.envelope goes with fields or with value=Avro(…), not with {type(self.value).__name__}."
            )
        if isinstance(self.key, Protobuf):
            raise InvalidDeclaration(
                "KafkaSource.envelope does not go with key=Protobuf(…): the key of a deleted row must be JSON or Avro."
            )
        if self.value is None and self.fields is None:
            raise InvalidDeclaration(
                'KafkaSource.envelope needs fields, the columns of the row as {"id": "bigint"}, or value=Avro(…).'
            )

    @property
    def _is_templated(self) -> bool:
        """Whether the names of the columns are not known yet."""
        return not isinstance(self.columns, tuple) or any("{" in str(name) for name in self.columns)

    def _check_columns(self) -> None:
        """Refuse names that no column can have. Those that a registry's schema makes are known when a run plans."""
        if self.columns is None or self._is_templated:
            return
        double = [str(name) for name in dict.fromkeys(self.columns) if self.columns.count(name) > 1]
        if double:
            raise InvalidDeclaration(f"KafkaSource.columns names {', '.join(double)} twice.")
        if self.value is None:
            check_chosen(self.columns, (*METADATA, *(self.fields or (VALUE,))), self.topic)

    def _check_topic(self) -> None:
        if not isinstance(self.topic, str) or not _TOPIC.fullmatch(self.topic) or self.topic in (".", ".."):
            raise InvalidDeclaration(f"{self.topic!r} is no name that a topic can have.")


def parse_start(start: Start) -> str | datetime | dict[int, int]:
    """Return where to begin as one of ``earliest``, ``latest``, an aware time, or offsets by partition."""
    if isinstance(start, datetime):
        return _aware(start)
    if isinstance(start, Mapping):
        return _offsets(start)
    if start in (EARLIEST, LATEST):
        return start
    try:
        time = datetime.fromisoformat(str(start).strip())
    except ValueError as error:
        raise InvalidDeclaration(
            f"KafkaSource.start must be earliest, latest, a time or offsets by partition, not {start!r}."
        ) from error
    return _aware(time)


def _offsets(start: Mapping[int, int] | Mapping[str, int]) -> dict[int, int]:
    try:
        offsets = {int(partition): int(offset) for partition, offset in start.items()}
    except (TypeError, ValueError):
        offsets = {-1: 0}
    if any(partition < 0 or offset < 0 for partition, offset in offsets.items()):
        raise InvalidDeclaration(
            "KafkaSource.start needs whole numbers from 0 on: an offset by partition, as {0: 1200}."
        )
    return offsets


def _aware(time: datetime) -> datetime:
    if time.tzinfo is None:
        raise InvalidDeclaration(f"KafkaSource.start needs a time with its zone, as 2026-01-31T00:00:00Z, not {time}.")
    # A broker takes numbers below zero for other questions: -1, which is 1969-12-31T23:59:59.999Z, for the log's end.
    if time < _EPOCH:
        raise InvalidDeclaration(
            f"KafkaSource.start cannot be {time}: brokers find no time before 1970. Use start='earliest'."
        )
    return time


KEY_TYPES = {"bytes": "bytea", "text": "text"}
# Not jsonb, which prints what it was given in another way: the target is to hold the text that was sent.
VALUE_TYPES = {"json": "json", "raw": "bytea"}
_ALIASES = {
    "int2": "smallint",
    "int": "integer",
    "int4": "integer",
    "int8": "bigint",
    "float4": "real",
    "float8": "double precision",
    "float": "double precision",
    "bool": "boolean",
    "timestamptz": "timestamp with time zone",
    "timestamp": "timestamp without time zone",
    "decimal": "numeric",
    "varchar": "character varying",
    "char": "character(1)",
}
_TYPES = (
    *("text", "json", "jsonb", "uuid", "date", "time", "timetz", "interval", "inet", "cidr", "macaddr", "macaddr8"),
    *("character", "bit", "varbit", "bit varying", "bytea", "money", "xml", "point", "line", "lseg", "box", "path"),
    *("polygon", "circle", "tsvector", "tsquery", "oid", "name", "real", "smallint", "numeric", "time with time zone"),
    *("int4range", "int8range", "numrange", "tsrange", "tstzrange", "daterange", "time without time zone", "jsonpath"),
    *("int4multirange", "int8multirange", "nummultirange", "tsmultirange", "tstzmultirange", "datemultirange"),
    *("pg_lsn", "hstore", "citext", "timestamp with time zone", "timestamp without time zone", ""),
)
"""What a field may be beside the short forms; bytes are refused where the columns are made."""
_CUT = re.compile(
    r"(name|\"char\"|(ts|tstz|date)(multi)?range)(\[.*)?"
    r"|(time|date|interval|money|numeric ?\(|char(acter)?\b(?! varying ?\[)|varchar ?\().*\]"
)
"""Types in which PostgreSQL drops a zone, digits or characters that were sent, and no simple pattern finds these."""
_BYTES = re.compile(r"bytea( ?\[\d*\])*")
_QUALIFIED = re.compile(r'\s*(?:("[^"]+"|\w+)\s*\.\s*)?("[^"]+"|\w+)')
_TYPE = re.compile(r"([a-z_][a-z0-9_ ]*?)\s*(?:\(([\d\s,]+)\))?((?: with| without) time zone)?")


def columns_of(
    declared: "KafkaSource", values: Sequence[Column] | None = None, key: Column | None = None
) -> tuple[Column, ...]:
    """Return the columns that arrive; ``InvalidDeclaration`` for a field whose name or type cannot be taken.

    ``values``, ``key``: those that the schemas of a registry make.
    """
    return choose_columns(_list_columns(declared, values, key), declared.columns, declared.topic)


def _list_columns(declared: "KafkaSource", values: Sequence[Column] | None, key: Column | None) -> tuple[Column, ...]:
    given = (
        Column(name="topic", type="text", nullable=False),
        Column(name="partition", type="integer", nullable=False),
        Column(name="offset", type="bigint", nullable=False),
        Column(name="timestamp", type="timestamp with time zone"),
        key or Column(name=KEY, type=KEY_TYPES[str(declared.key)]),
        Column(name="headers", type="json"),
    )
    if values is None and declared.fields is None:
        return (*given, Column(name=VALUE, type=VALUE_TYPES[declared.format]))
    way_out = "leave fields out, and take the value apart in a transform"
    if values is None:
        fields = declared.fields or {}
        values = [Column(name=name, type=to_postgres_type(type_)) for name, type_ in fields.items()]
    else:
        way_out = "rename it with names= of the format"
    names = [column.name for column in values]
    ours = (*METADATA, *(column.name for column in HIDDEN_PLACE.values()), TOMBSTONE)
    taken = [name for name in ours if name in names]
    if taken:
        raise InvalidDeclaration(f"The field {', '.join(taken)} would be a second column of that name: {way_out}.")
    return (*given, *values)


def check_field(name: object, type_: object) -> None:
    """Raise :class:`InvalidDeclaration` for a field whose type is none of PostgreSQL's own.

    Types of users have a schema, or are quoted: whether they exist is seen when the target is made.
    """
    if not isinstance(name, str) or not isinstance(type_, str):
        raise InvalidDeclaration(f"KafkaSource.fields must map names to names of types, not {name!r} to {type_!r}.")
    base = " ".join(re.sub(r"\(.*?\)|\[\d*\]", " ", type_.lower()).split())
    known = {*_ALIASES, *_ALIASES.values(), *_TYPES}
    if _CUT.fullmatch(" ".join(type_.lower().split())):
        raise InvalidDeclaration(
            f"The field {name} of KafkaSource.fields cannot be of type {type_!r}: PostgreSQL cuts what does not fit "
            "into it without an error. Take it as json or text."
        )
    if _is_of_catalog(type_, known):
        raise InvalidDeclaration(
            f"The field {name} of KafkaSource.fields has the type {type_!r}: name a type of PostgreSQL's own without a "
            "schema and without quotes, as numeric(12,2), since its digits are checked by that name."
        )
    if "." in type_ or '"' in type_ or base in known:
        return
    close = difflib.get_close_matches(type_.lower(), sorted(known), n=1)
    hint = f"did you mean {close[0]}?" if close else "docs/reference/types-kafka.md lists those there are."
    raise InvalidDeclaration(f"The field {name} of KafkaSource.fields has the type {type_!r}, which is unknown: {hint}")


def _is_of_catalog(type_: str, known: Collection[str]) -> bool:
    """Whether a type is one of PostgreSQL's own in another spelling than the checks of values know."""
    match = _QUALIFIED.match(type_)
    if match is None:
        return False
    schema, name = (part if part is None or part[0] == '"' else part.lower() for part in match.groups())
    if schema is not None:
        return schema.strip('"') == "pg_catalog"
    return name[0] == '"' and name.strip('"') in (*known, "bpchar")


def to_postgres_type(type_: str) -> str:
    """Return a type as PostgreSQL itself spells it; ``InvalidDeclaration`` for bytes, which JSON has none of.

    A list of bytes is refused too: PostgreSQL would take the base64 text of each element for its bytes.
    """
    text = " ".join(type_.lower().split())
    if not text or _BYTES.fullmatch(text):
        raise InvalidDeclaration(f"A field of a JSON object cannot be of type {type_!r}: take it as text.")
    match = _TYPE.fullmatch(text)
    if match is None:
        return type_
    name, numbers, zone = match[1], match[2], match[3] or ""
    given = f"({','.join(number.strip() for number in numbers.split(','))})" if numbers else ""
    full = _ALIASES.get(name, name) if not zone else name
    if full.startswith("timestamp ") and given:
        return full.replace("timestamp", f"timestamp{given}", 1)
    if name == "char" and given:
        return f"character{given}"
    if full == "numeric" and given and "," not in given:
        return f"numeric({given[1:-1]},0)"
    return f"{full}{given}{zone}"
