"""What a table of Spark's catalogs is declared by, and the statements that are made for it, without a server."""

from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pyarrow
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import types as spark

from airflow_provider_backpressure.connectors.lake.source.spark_boundaries import CutColumn, list_conditions
from airflow_provider_backpressure.connectors.lake.source.spark_catalog_table import SparkCatalogTable
from airflow_provider_backpressure.connectors.lake.source.spark_sql_names import CatalogName, join_names
from airflow_provider_backpressure.connectors.lake.source.spark_types import carry, find_key_kind
from airflow_provider_backpressure.core.endpoints import NOWHERE
from airflow_provider_backpressure.core.snapshot.bounds import BlockBounds, KeyBounds, NullBounds
from airflow_provider_backpressure.exceptions import InvalidDeclaration, SourceRefused
from airflow_provider_backpressure.hooks.hydration_session import Declaration, check_same_cluster
from airflow_provider_backpressure.sinks import SparkTableSink
from airflow_provider_backpressure.sources import SparkSource

pytestmark = pytest.mark.statement("K5")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("erp.shop.orders", ("erp", "shop", "orders")),
        ("erp.`a.b`.`c``d e`", ("erp", "a.b", "c`d e")),
        ("lake.a.b.c-d", ("lake", "a", "b", "c-d")),
    ],
)
def test_a_name_is_read_and_quoted(text: str, parts: tuple[str, ...]) -> None:
    name = CatalogName.parse(text)
    assert name.parts == parts
    assert CatalogName.parse(str(name)) == CatalogName.parse(name.sql) == name
    assert name.sql == ".".join("`" + part.replace("`", "``") + "`" for part in parts)


@pytest.mark.parametrize("text", ["", "orders", "shop.orders", "a.b.", "a..b.c", "a.b.c d", "a.b.`c", "a.b.c; DROP"])
def test_another_name_is_refused(text: str) -> None:
    with pytest.raises(InvalidDeclaration, match=r"SparkSource\.table must be catalog\.schema\.table"):
        SparkSource(table=text, spark_conn_id="s").open(NOWHERE)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"tasks": 0}, "tasks must be from 1 to 64"),
        ({"whole": True, "split_column": "id"}, "either whole=True or a split_column"),
        ({"columns": ()}, "must name at least one column"),
        ({"columns": "id"}, "columns"),
    ],
)
def test_what_cannot_be_meant_is_refused(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidDeclaration, match=sentence):
        SparkSource(table="a.b.c", spark_conn_id="s", **fields)


def test_a_table_is_of_the_cluster_of_the_hydration_and_not_its_own_target() -> None:
    source = SparkSource(table="lake.raw.t", spark_conn_id="one")
    declared = Declaration(source=source, sink=Mock(spec=[]), spark_conn_id="one", owner="orders")
    check_same_cluster(declared)
    with pytest.raises(InvalidDeclaration, match="is a table of the cluster 'one', and the hydration runs on 'two'"):
        check_same_cluster(replace(declared, spark_conn_id="two"))
    with pytest.raises(InvalidDeclaration, match="cannot be written into itself"):
        check_same_cluster(replace(declared, sink=SparkTableSink(table="lake.RAW.t", spark_conn_id="one")))


def field(type_: spark.DataType, declared: str = "") -> spark.StructField:
    """Return a column named ``a`` of a type, as Spark shows it."""
    metadata = {"__CHAR_VARCHAR_TYPE_STRING": declared} if declared else {}
    return spark.StructField("a", type_, metadata=metadata)


@pytest.mark.parametrize(
    ("type_", "declared", "carried"),
    [
        (spark.ByteType(), "", "smallint"),
        (spark.DecimalType(38, 6), "", "numeric(38,6)"),
        (spark.TimestampType(), "", "timestamp with time zone"),
        (spark.TimestampNTZType(), "", "timestamp without time zone"),
        (spark.BinaryType(), "", "bytea"),
        (spark.StringType(), "", "text"),
        (spark.StringType(), "varchar(9)", "character varying(9)"),
        (spark.StringType(), "varchar(20000000)", "text"),
        (spark.StringType(), "char(3)", "character(3)"),
        (spark.ArrayType(spark.TimestampType()), "", "json"),
        (spark.MapType(spark.StringType(), spark.LongType()), "", "json"),
    ],
)
def test_types_are_mapped(type_: spark.DataType, declared: str, carried: str) -> None:
    found = carry(field(type_, declared))
    assert found is not None
    assert (found.column.type, found.sql.endswith(" AS `a`")) == (carried, True)


@pytest.mark.parametrize(
    "type_",
    [
        spark.DayTimeIntervalType(),
        spark.YearMonthIntervalType(),
        spark.CalendarIntervalType(),
        spark.VariantType(),
        spark.NullType(),
        spark.ArrayType(spark.BinaryType()),
        spark.MapType(spark.LongType(), spark.LongType()),
        spark.StructType([spark.StructField("x", spark.LongType()), spark.StructField("x", spark.LongType())]),
        spark.StructType([spark.StructField("x", spark.DayTimeIntervalType())]),
    ],
    ids=lambda type_: type_.simpleString(),
)
def test_a_type_without_an_exact_counterpart_is_not_carried(type_: spark.DataType) -> None:
    assert carry(field(type_)) is None


def test_conditions_hold_values_of_any_characters() -> None:
    """No value reaches a statement as it is: a boundary comes from the table's own rows."""
    text = find_key_kind(field(spark.StringType()))
    number = find_key_kind(field(spark.LongType()))
    at = find_key_kind(field(spark.TimestampType()))
    assert text is not None
    assert number is not None
    assert at is not None
    assert list_conditions(KeyBounds(columns=("a`b",), start=("'\\",), end=None), lambda name: text) == [
        "CAST(X'275c' AS STRING) <= `a``b`"
    ]
    assert list_conditions(KeyBounds(columns=("a",), start=("-7",), end=("8",)), lambda name: number) == [
        "CAST('-7' AS bigint) <= `a`",
        "CAST('8' AS bigint) > `a`",
    ]
    assert list_conditions(NullBounds(column="a"), lambda name: number) == ["`a` IS NULL"]
    assert list_conditions(KeyBounds(columns=(), start=None, end=None), lambda name: number) == []
    for kind in (number, at):
        with pytest.raises(ValueError, match="1 OR 1=1"):
            kind.literal("1 OR 1=1")
    with pytest.raises(InvalidDeclaration, match="are not read by"):
        list_conditions(BlockBounds(table="t", file=1, start=(0, 0), end=None), lambda name: number)


@pytest.mark.parametrize(
    "type_", [spark.DoubleType(), spark.BinaryType(), spark.BooleanType(), spark.StringType("UTF8_LCASE")]
)
def test_a_type_that_is_not_ordered_exactly_cuts_nothing(type_: spark.DataType) -> None:
    assert find_key_kind(field(type_)) is None


def test_boundaries_rise_and_lie_within_their_range() -> None:
    """Quantiles of a skewed column repeat, and a double rounds large numbers beyond the ends."""
    kind = find_key_kind(field(spark.LongType()))
    assert kind is not None
    quantiles = ["5", "5", "7", "6", "9", "10", "12"]
    column = CutColumn(name="a", kind=kind, rows="FROM t WHERE true", ask=lambda query: [{"v": quantiles}])
    within = KeyBounds(columns=("a",), start=("5",), end=("10",))
    assert list(column.list_boundaries(within, parts=8)) == [("7",), ("9",)]
    assert list(column.list_boundaries(within, parts=1)) == []
    assert join_names(["a", "b c"]) == "a and `b c`"


def test_no_boundary_lies_beyond_its_type() -> None:
    """A double rounds long numbers up: a cast would make NULL of them, and both ranges beside it would be empty."""
    kind = find_key_kind(field(spark.DecimalType(20, 2)))
    assert kind is not None
    quantiles = ["7", "1E+18", "12.344", "12.341", "999999999999999999.99", None]
    column = CutColumn(name="a", kind=kind, rows="FROM t WHERE true", ask=lambda query: [{"v": quantiles}])
    whole = KeyBounds(columns=("a",), start=None, end=None)
    assert list(column.list_boundaries(whole, parts=8)) == [("7",), ("12.344",), ("999999999999999999.99",)]
    assert kind.literal("12.345") == "CAST('12.35' AS decimal(20,2))"
    assert kind.literal("1E+3") == "CAST('1000.00' AS decimal(20,2))"
    for text in ("999999999999999999.995", "1E+18", "NaN", "Infinity", "x"):
        with pytest.raises(ValueError, match="is no decimal"):
            kind.literal(text)


class FakeServer:
    """Answers statements by what they begin with."""

    def __init__(self, **answers: list[dict[str, Any]]) -> None:
        self.answers = {name.replace("_", " "): rows for name, rows in answers.items()}
        self.conf: dict[str, str] = {}
        self.queries: list[str] = []

    def open(self, **reading: Any) -> SparkCatalogTable:
        """Return a table with a column ``id`` and one that is named ``Provider``."""
        declared = SparkSource(table="lake.raw.t", spark_conn_id="s", split_column="id", **reading)
        session = Mock(address="sc://here", get=lambda: Mock(sql=self.sql, conf=Mock(set=self.conf.__setitem__)))
        return SparkCatalogTable(declared, session, name=CatalogName.parse(declared.table))

    def sql(self, query: str) -> Any:
        self.queries.append(query)
        rows = next((rows for name, rows in self.answers.items() if name in query), [])
        schema = spark.StructType().add("id", "long").add("Provider", "string")
        arrow = pyarrow.table({"id": [1], "Provider": ["x"]})
        return Mock(collect=lambda: rows, schema=schema, toArrow=lambda: arrow)


def describe(format_: str) -> list[dict[str, Any]]:
    """Return what Spark says of such a table."""
    rows = [("id", "bigint"), ("Provider", "string"), ("# Detailed Table Information", ""), ("Provider", format_)]
    return [{"col_name": name, "data_type": type_} for name, type_ in rows]


def test_a_column_named_as_the_format_is_hides_no_version() -> None:
    """Read as a table without versions, its ranges would be of several moments."""
    server = FakeServer(DESCRIBE_TABLE=describe("iceberg"), refs=[{"snapshot_id": 7}], **{"count(*)": [{"n": 5}]})
    source = server.open()
    snapshot = source.snapshot()
    assert (snapshot.version, snapshot.total) == ("7", 5)
    bounds = KeyBounds(columns=("id",), start=None, end=None)
    assert "VERSION AS OF 7 " in source.slice(source.read_spec(snapshot), bounds, "0.0").query
    assert server.conf["spark.sql.session.timeZone"] == "UTC"
    assert server.conf["spark.sql.files.ignoreMissingFiles"] == "false"


def test_a_delta_table_is_known_by_its_id_beside_its_version() -> None:
    """What is dropped and made again has the numbers of versions again."""
    server = FakeServer(
        DESCRIBE_TABLE=describe("delta"),
        DESCRIBE_DETAIL=[{"id": "a-b"}],
        DESCRIBE_HISTORY=[{"version": 3}],
        **{"count(*)": [{"n": 5}]},
    )
    source = server.open()
    snapshot = source.snapshot()
    read = source.read_spec(snapshot)
    assert (snapshot.version, read.parts) == ("3@a-b", ("3@a-b", "`lake`.`raw`.`t`"))
    bounds = KeyBounds(columns=("id",), start=None, end=None)
    assert "VERSION AS OF 3 " in source.slice(read, bounds, "0.0").query


@pytest.mark.parametrize(
    ("line", "is_refused"),
    [
        ('{"schemas": [{"schema-id": 0, "fields": [1]}, {"schema-id": 1, "fields": [1]}]}', False),
        ('{"schemas": [{"schema-id": 0, "fields": [1]}, {"schema-id": 1, "fields": [2]}]}', True),
        ('{"schemas": [{"schema-id": 1, "fields": [1]}]}', True),
        ("no JSON", True),
        (None, True),
    ],
)
def test_another_schema_of_an_iceberg_table_is_looked_at_in_its_metadata_file(
    line: str | None, is_refused: bool
) -> None:
    """K5: what the cluster cannot read there may be other columns."""
    server = FakeServer(
        DESCRIBE_TABLE=describe("iceberg"),
        refs=[{"snapshot_id": 7}],
        **{
            "EXPLAIN SELECT 1 FROM `lake`.`raw`.`t` VERSION AS OF 7": [{"plan": "schemaId=0, snapshotId=7"}],
            "EXPLAIN": [{"plan": "schemaId=1, snapshotId=7"}],
            "SELECT file": [{"file": "s3://lake/old.json"}, {"file": "s3://lake/t.json"}],
            "text.`s3://lake/t.json`": [] if line is None else [{"value": line}],
            "count(*)": [{"n": 5}],
        },
    )
    if is_refused:
        with pytest.raises(SourceRefused, match="Make a commit without rows, by INSERT INTO"):
            server.open().snapshot()
    else:
        assert server.open().snapshot().version == "7"


def test_columns_decide_where_iceberg_shows_no_schema() -> None:
    """K5: as before its release 1.11."""
    server = FakeServer(DESCRIBE_TABLE=describe("iceberg"), refs=[{"snapshot_id": 7}], **{"count(*)": [{"n": 5}]})
    ask = server.sql

    def answer(query: str) -> Any:
        found = ask(query)
        if query == "SELECT * FROM `lake`.`raw`.`t`":
            found.schema = spark.StructType().add("id", "long").add("Provider", "long")
        return found

    assert server.open().snapshot().version == "7"
    server.sql = answer  # type: ignore[method-assign]
    with pytest.raises(SourceRefused, match="altered after its last commit"):
        server.open().snapshot()


def test_rows_that_come_before_the_first_version_are_left_to_the_next_plan() -> None:
    """They came between the question for the version and the count, and more may come while they are read."""
    server = FakeServer(DESCRIBE_TABLE=describe("iceberg"), **{"count(*)": [{"n": 5}]})
    source = server.open()
    snapshot = source.snapshot()
    assert (snapshot.version, snapshot.total, snapshot.frontier) == ("", 0, {"lake.raw.t": 0})
    assert list(source.ranges(snapshot, rows=10, bytes=1000)) == []


@pytest.mark.parametrize(
    "where",
    [
        *(
            "rand() < 0.5",
            "a > now ()",
            "uniform(0, 9) = a",
            "d = current_date",
            "curtime() > t",
            "d < `current_date`()",
        ),
        *(
            "d < DATE 'today'",
            "a > timestamp\n' Yesterday '",
            'a > TIMESTAMP_NTZ "now UTC"',
            "d < date/* x */'tomorrow'",
        ),
    ],
)
def test_a_condition_that_varies_is_refused(where: str) -> None:
    server = FakeServer(DESCRIBE_TABLE=describe("parquet"), **{"count(*)": [{"n": 5}]})
    with pytest.raises(SourceRefused, match="asks for"):
        server.open(where=where).snapshot()


@pytest.mark.parametrize(
    "where", ["uuid = 'x'", "now > 1", "t.random IS NULL", "unix_timestamp(a) > 1", "a = 'now()'", "date = 'nowhere'"]
)
def test_a_column_that_is_named_as_a_function_is_none(where: str) -> None:
    server = FakeServer(DESCRIBE_TABLE=describe("parquet"), **{"count(*)": [{"n": 5}]})
    assert server.open(where=where).snapshot().filtered


def test_a_text_that_is_no_utf_8_is_refused_where_its_values_are_looked_at() -> None:
    """K5: Spark keeps any bytes in a text."""
    source = FakeServer(DESCRIBE_TABLE=describe("parquet")).open()
    error = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
    with pytest.raises(SourceRefused, match=r"a text that is no UTF-8"), source._errors():
        raise error


def test_a_condition_that_closes_the_brackets_around_it_is_refused() -> None:
    """K5: what is behind it would hold for a part of it only, so that each range had the rows of the other part."""
    server = FakeServer(DESCRIBE_TABLE=describe("parquet"), **{"count(*)": [{"n": 5}]})
    ask = server.sql

    def refuse(query: str) -> Any:
        if "array(" in query:
            raise AnalysisException("array<boolean> is no boolean")
        return ask(query)

    server.sql = refuse  # type: ignore[method-assign]
    with pytest.raises(SourceRefused, match="closes brackets that it has not opened"):
        server.open(where="a > 5) OR (a < 3").snapshot()


def test_what_the_server_keeps_of_files_is_read_again_when_a_table_is_planned() -> None:
    """K5: a table that is cached for all sessions has no rows that others than Spark have added since."""
    for format_, refreshed in (("parquet", True), ("iceberg", True), ("jdbc", False), ("", False)):
        server = FakeServer(DESCRIBE_TABLE=describe(format_), **{"count(*)": [{"n": 5}]})
        server.open().snapshot()
        assert ("REFRESH TABLE `lake`.`raw`.`t`" in server.queries) is refreshed, format_


def test_json_is_asked_for_without_a_quote_that_a_server_may_read_otherwise() -> None:
    """K5: with ``spark.sql.parser.escapedStringLiterals`` a backslash before a quote would be a part of every time."""
    carried = carry(spark.StructField("a", spark.ArrayType(spark.TimestampType())))
    assert carried is not None
    assert "\\" not in carried.sql
    assert b"yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX".hex() in carried.sql
