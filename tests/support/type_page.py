"""The reference page of types, as the test of every type has found them."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from airflow_provider_backpressure.spark.column_types import carrier

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "reference" / "types.md"
MYSQL = PAGE.with_name("types-mysql.md")
MARIADB = PAGE.with_name("types-mariadb.md")
KAFKA = PAGE.with_name("types-kafka.md")
AVRO = PAGE.with_name("types-avro.md")
PROTOBUF = PAGE.with_name("types-protobuf.md")
WRITE = "BACKPRESSURE_WRITE_DOCS"
"""Set in the environment, it makes the test write the page."""
INTRODUCTION = """# Types

How values of PostgreSQL's types arrive in PostgreSQL. The table is made by the test that copies them: each type with
NULL and with its extreme and special values (NaN, infinity, years before Christ, empty arrays, 4-byte characters …).

- **Copied**: without a transform. A target that is created has the same type; one that is there must have it.
- **In a transform**: the column's type in Spark's DataFrame. `string` is the text that PostgreSQL prints, which the
  target's type reads back. Where Spark's type cannot hold a value (infinite dates, NaN in a numeric), the range fails
  with the column's name; name the column in `PostgresSource(as_text=…)`.
"""
REFUSED = """
## Refused

A plan refuses columns of these types, and of arrays, domains and composites that hold them, by name. As text, named in
`as_text`, each of them can be read.

| Type | Because |
|---|---|
"""

FROM_MYSQL = """# Types from MySQL

How values of MySQL's types arrive in PostgreSQL. The table is made by the test that copies them through Spark: each
type with NULL and with its extreme and special values, compared with what PostgreSQL has to print for them.

- **PostgreSQL**: the type of a target that is created; one that is there must have it.
- **In a transform**: the column's type in Spark's DataFrame. `string` is text that PostgreSQL's type reads.
"""
AFTER_MYSQL = """
- Text of any character set arrives as UTF-8. `char` comes as MySQL gives it, without trailing blanks.
- `timestamp` is read in UTC. `datetime` has no time zone, and gets none.
- Dates with a zero in them (0000-00-00, 2024-00-10, 0000-05-05) are refused by the name of their column: read them as
  NULL with `zero_dates="null"`, or as text with `as_text=("column",)`. A 30th of February can be read as text only.
- A geometry arrives as well-known binary, with its SRID, where it has one, as PostGIS has it: `column::geometry` there.
  Coordinates are in the order in which MySQL keeps them, x before y.
- `boolean` is MySQL's other name for `tinyint(1)`, which may hold other numbers too: it stays a number.
- Every generated column is read as it is.
- With `as_text=("column",)` a column arrives as `text`, as MySQL prints it; bytes and geometries cannot.
- `enum` and `set` in `CHARACTER SET binary` are refused: the server shows their bytes as characters of `latin1`.
- A type that is not in the table (`vector`) is refused by its column's name.
"""

AFTER_MARIADB = """
- What [types from MySQL](types-mysql.md) says of text, times, dates with a zero in them, geometries and `as_text` holds
  here too.
- `json` is MariaDB's other name for a checked `longtext`, and arrives as text. Cast it in the target: `column::jsonb`.
- {} are refused by their column's name. Read them with `as_text=("column",)`.
"""

FROM_KAFKA = """# Types of fields from Kafka

What `KafkaSource(fields={"name": "type"})` makes of the fields of JSON objects in PostgreSQL. The table is made by the
test that sends the examples through a topic and Spark, and compares what PostgreSQL has to print for them.

- **Declared**: the type in `fields`, in PostgreSQL's words or their short forms.
- **PostgreSQL**: the type of a target that is created; one that is there must have it.
- **Sent**: examples, as they are in the message.
- **In a transform**: the column's type in Spark's DataFrame. `string` is text that PostgreSQL's type reads.
"""
AFTER_KAFKA = """
- A field that is missing or null is NULL. A number may also be sent as a text, and goes by its own digits.
- A field of type `text` takes any JSON value: a number in its sender's words, an object or a list as JSON.
- `timestamptz` wants a zone or `Z`, `timestamp` none.
- Bytes are no JSON: take them as text, in whatever way they are written.
- A value that does not fit is named by topic, partition, offset and field: see [bad rows](../howto/bad-rows.md).
"""

FROM_AVRO = """# Types from Avro

How fields of Avro records arrive in PostgreSQL. The table is made by the test that registers a schema in a real
registry, sends each type with NULL and extremes through a topic and Spark, and compares what PostgreSQL has to print.

- **PostgreSQL**: the type of a target that is created; one that is there must have it.
- **In a transform**: the column's type in Spark's DataFrame. `string` is text that PostgreSQL's type reads.
"""
AFTER_AVRO = """
- A union of null and one type is a column of that type. Every column may be NULL: a tombstone has none of them.
- Nested values and unions of several types are one JSON text: bytes in base64, times as ISO text, decimals with all of
  their digits, NaN and infinity as texts.
- A day or moment outside of the years 1 to 9999 is refused by its record, and so is a moment with digits below the
  microsecond. `Avro(raw=("field",))` takes such a field as its number, and a decimal as its bytes.
- `duration` and other logical types that are not in the table arrive as the type below them.
- A UUID arrives as PostgreSQL prints it, in files too. A text that is none is refused by its record, or taken as it is
  with `raw`.
- A text with a NUL character is refused by its record: PostgreSQL holds none.
- Aliases of fields are not followed: a field that was renamed is a new column.
"""

FROM_PROTOBUF = """# Types from Protobuf

How fields of Protobuf messages arrive in PostgreSQL. The table is made by the test that registers a schema in a real
registry, sends each type with NULL and extremes through a topic and Spark, and compares what PostgreSQL has to print.

- **PostgreSQL**: the type of a target that is created; one that is there must have it.
- **In a transform**: the column's type in Spark's DataFrame. `string` is text that PostgreSQL's type reads.
"""
AFTER_PROTOBUF = """
- A field that is not set is NULL if it has presence: `optional`, in a `oneof`, a message, or of proto2. Defaults of
  proto2 are not applied. Any other field has the zero of its type: 0, `false`, an empty text, the first name of an
  enum. Lists and maps are empty then.
- Messages, lists and maps are one JSON text with the names of the schema: bytes in base64, times as ISO text, durations
  as `"1.500s"`, NaN and infinity as texts. A map is sorted by its keys. A field with presence that is not set is left
  out. `Struct`, `Value` and `ListValue` are the JSON that they hold.
- An enum is the name of its number, the first one if it has several. A number without a name is refused by its record.
- A timestamp or a duration with digits below the microsecond is refused by its record, and so is a date that lacks its
  year, month or day. `Protobuf(raw=("field",))` takes a timestamp as text (`2026-01-31T12:00:00.123456789Z`), a
  duration as text (`1.000000001s`), a date as JSON of its parts, and an enum as its number.
- A text with a NUL character is refused by its record: PostgreSQL holds none.
- A field that was renamed is a new column.
"""


def page(found: Mapping[str, bool], refused: Mapping[str, str]) -> str:
    """Return the page. ``found``: whether all values of a type were equal; ``refused``: the reason by type."""
    lines = [
        f"| `{type_}` | {'equal' if equal else 'DIFFERS'} | `{carrier(type_)[1].simpleString()}` |"
        for type_, equal in found.items()
    ]
    reasons = [f"| `{type_}` | {reason} |" for type_, reason in sorted(refused.items())]
    head = "\n| Type | Copied | In a transform |\n|---|---|---|\n"
    return "\n".join([INTRODUCTION + head + "\n".join(lines), REFUSED.rstrip() + "\n" + "\n".join(reasons), ""])


def mysql_page(
    found: Mapping[str, tuple[str, str, bool]],
    *,
    before: str = FROM_MYSQL,
    after: str = AFTER_MYSQL,
    name: str = "MySQL",
) -> str:
    """Return the page of MySQL's types. ``found``: by column its type, PostgreSQL's, and whether all values arrived."""
    lines = [
        f"| `{type_}` | `{postgres}` | {'equal' if equal else 'DIFFERS'} | `{carrier(postgres)[1].simpleString()}` |"
        for type_, postgres, equal in found.values()
    ]
    head = f"\n| {name} | PostgreSQL | Copied | In a transform |\n|---|---|---|---|\n"
    return "\n".join([before + head + "\n".join(lines), after])


def mariadb_page(found: Mapping[str, tuple[str, str, bool]], refused: Sequence[str]) -> str:
    """Return the page of MariaDB's types. ``refused``: those that are read as text only."""
    named = ", ".join(f"`{type_}`" for type_ in refused)
    after = AFTER_MARIADB.format(named)
    return mysql_page(found, before=FROM_MYSQL.replace("MySQL", "MariaDB"), after=after, name="MariaDB")


def kafka_page(found: Mapping[str, tuple[str, list[str], bool]]) -> str:
    """Return the page of fields. ``found``: by declared type PostgreSQL's, what was sent, and whether all arrived."""
    lines = [
        f"| `{type_}` | `{postgres}` | {', '.join(f'`{each}`' for each in sent)} | {'equal' if equal else 'DIFFERS'} "
        f"| `{carrier(postgres)[1].simpleString()}` |"
        for type_, (postgres, sent, equal) in found.items()
    ]
    head = "\n| Declared | PostgreSQL | Sent | Arrived | In a transform |\n|---|---|---|---|---|\n"
    return "\n".join([FROM_KAFKA + head + "\n".join(lines), AFTER_KAFKA])


def avro_page(found: Mapping[str, tuple[str, bool]]) -> str:
    """Return the page of Avro's types. ``found``: by type PostgreSQL's, and whether all values arrived."""
    return mysql_page(
        {type_: (type_, postgres, equal) for type_, (postgres, equal) in found.items()},
        before=FROM_AVRO,
        after=AFTER_AVRO,
        name="Avro",
    )


def protobuf_page(found: Mapping[str, tuple[str, bool]]) -> str:
    """Return the page of Protobuf's types. ``found``: by type PostgreSQL's, and whether all values arrived."""
    return mysql_page(
        {type_: (type_, postgres, equal) for type_, (postgres, equal) in found.items()},
        before=FROM_PROTOBUF,
        after=AFTER_PROTOBUF,
        name="Protobuf",
    )


def keep(text: str, page: Path = PAGE) -> str:
    """Return what the page says, after writing ``text`` there where that is asked for."""
    if os.environ.get(WRITE):
        page.write_text(text)
    return page.read_text() if page.exists() else ""
