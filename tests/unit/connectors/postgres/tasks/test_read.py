"""Values between CSV as COPY writes it, Arrow as Spark carries it, and CSV as COPY reads it."""

import datetime
import decimal

import pyarrow
import pytest

from airflow_provider_backpressure.connectors.postgres.tasks.read import way_out
from airflow_provider_backpressure.connectors.postgres.tasks.write import to_csv
from airflow_provider_backpressure.connectors.relational.csv_blocks import parse
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, RangeSpec, ReadSpec, Slice, WriteSpec
from airflow_provider_backpressure.exceptions import RangeFailed, RunnerRefused, SourceRefused
from airflow_provider_backpressure.spark.stream_end import END, append_end, check_names, complete, to_one_slice


def column(name: str, type_: str) -> Column:
    """A column."""
    return Column(name=name, type=type_)


def test_every_carried_type_is_parsed_and_written_back() -> None:
    """What PostgreSQL writes with FORCE_QUOTE comes out equal in meaning, NULL and '' apart."""
    columns = [
        column("a", "smallint"),
        column("b", "bigint"),
        column("c", "double precision"),
        column("d", "boolean"),
        column("e", "text"),
        column("f", "date"),
        column("g", "timestamp(3) without time zone"),
        column("h", "timestamp with time zone"),
        column("i", "numeric(5,2)"),
        column("j", "bytea"),
        column("k", "uuid"),
    ]
    text = (
        b'"-1","9223372036854775807","-Infinity","t","","2024-02-29","2024-01-01 00:00:00.5",'
        b'"2024-01-01 12:00:00.000001+00","-1.50","\\x00ff","0b8dd76e-d44f-4ca1-a1c3-0a1b0c0f7a11"\n'
        b",,,,,,,,,,\n"
        b'"1","0","NaN","f","a ""b""\r\n\\.","0001-01-01","0001-01-01 00:00:00","9999-12-31 23:59:59+00","0.01",'
        b'"\\x",""\n'
    )
    table = parse(text, columns, way_out)
    assert table.schema.names == [each.name for each in columns]
    first, second, third = table.to_pylist()
    assert (first["a"], first["d"], first["e"], first["j"]) == (-1, True, "", b"\x00\xff")
    assert first["f"] == datetime.date(2024, 2, 29)
    assert first["i"] == decimal.Decimal("-1.50")
    assert set(second.values()) == {None}
    assert (third["e"], third["j"], third["k"]) == ('a "b"\r\n\\.', b"", "")
    written = to_csv(table.combine_chunks().to_batches()[0])
    assert written == (
        b'-1,9223372036854775807,-inf,true,"",2024-02-29,2024-01-01 00:00:00.500000,'
        b'2024-01-01 12:00:00.000001Z,-1.50,"\\x00ff","0b8dd76e-d44f-4ca1-a1c3-0a1b0c0f7a11"\n'
        b",,,,,,,,,,\n"
        b'1,0,nan,false,"a ""b""\r\n\\.",0001-01-01,0001-01-01 00:00:00.000000,9999-12-31 23:59:59.000000Z,0.01,'
        b'"\\x",""\n'
    )


def test_a_single_column_may_be_null() -> None:
    """Its row is an empty line, which is not passed over."""
    assert parse(b'\n"x"\n\n', [column("a", "text")], way_out).column("a").to_pylist() == [None, "x", None]


def test_columns_go_by_position() -> None:
    """Two names that differ in nothing but case, and one of the marks CSV itself uses."""
    table = parse(b'"1","2","3"\n', [column("a", "integer"), column("A", "integer"), column('"', "integer")], way_out)
    assert table.schema.names == ["a", "A", '"']
    assert to_csv(table.to_batches()[0]) == b"1,2,3\n"


@pytest.mark.statement("X4")
@pytest.mark.parametrize(("type_", "value"), [("date", "infinity"), ("numeric(9,0)", "NaN"), ("integer", "1.5")])
def test_a_value_that_does_not_fit_names_its_column(type_: str, value: str) -> None:
    """X4: in a sentence, without the value."""
    with pytest.raises(
        SourceRefused, match=rf"^Column odd \({type_.replace('(', '.').replace(')', '.')}\) holds"
    ) as it:
        parse(f'"1","{value}"\n'.encode(), [column("id", "integer"), column("odd", type_)], way_out)
    assert 'as_text=("odd",)' in str(it.value)


def batches(*sizes: int, ended: bool = True) -> list[pyarrow.RecordBatch]:
    """Batches of so many rows; the last row of all is the end mark."""
    marks = [[False] * size for size in sizes]
    if ended:
        marks[-1][-1] = True
    return [pyarrow.record_batch([list(range(len(each))), each], names=["a", END]) for each in marks]


def test_the_end_mark_is_taken_off() -> None:
    """With rows before it, or alone in its batch."""
    for sizes, rows in (((3, 2), [3, 1]), ((3, 1), [3, 0]), ((1,), [0])):
        given = list(complete(batches(*sizes)))
        assert [batch.num_rows for batch in given] == rows
        assert all(batch.schema.names == ["a"] for batch in given)


@pytest.mark.statement("X1")
@pytest.mark.parametrize("given", [[], batches(3, 3, ended=False), [*batches(2), *batches(2)]])
def test_without_the_end_mark_in_its_place_nothing_is_complete(given: list[pyarrow.RecordBatch]) -> None:
    """X1: no rows at all, rows that break off, rows behind the end."""
    with pytest.raises(RangeFailed):
        list(complete(given))


def test_the_columns_must_be_the_planned_ones() -> None:
    """In their order."""
    check_names(batches(1)[0].select(["a"]), spec().write)
    with pytest.raises(RunnerRefused, match="'b'"):
        check_names(pyarrow.record_batch([[1]], names=["b"]), spec().write)


def test_a_range_is_committed_as_its_first_slice() -> None:
    """Under one id, with the bounds of all."""
    pieces = tuple(Slice(slice_id=f"7.{index}", query="q", bounds={"n": index}) for index in range(2))
    assert to_one_slice(spec(pieces[0])) is pieces[0]
    assert to_one_slice(spec(*pieces)) == Slice(slice_id="7.0", query="", bounds={"pieces": [{"n": 0}, {"n": 1}]})


def spec(*pieces: Slice) -> RangeSpec:
    """A message."""
    return RangeSpec(
        hydration_id="h",
        plan_id="p",
        epoch=1,
        seq=7,
        attempt=1,
        tag="bp:p:7.0:1",
        path="frame",
        read=ReadSpec(kind="postgres", conn_id="source", columns=(column("a", "integer"),)),
        write=WriteSpec(
            kind="postgres",
            conn_id="sink",
            target="raw.t",
            columns=(column("a", "integer"),),
            mode="append",
            key=(),
            plan_table="raw.p",
            commit_table="raw.c",
            fence="raw.t",
        ),
        slices=pieces,
    )


def test_rows_that_nobody_touches_are_marked_as_a_transform_s_are() -> None:
    """Behind the last row stands one that says so, also where there is none; names may come twice."""
    columns = [column("a", "integer"), column("A", "numeric(5,2)")]
    batch = parse(b'"1","2.50"\n"2",\n', columns, way_out).to_batches()[0]
    marked = list(append_end([batch, batch.slice(1)], columns))
    assert [each.schema.names[-1] for each in marked] == [END] * 3
    assert pyarrow.Table.from_batches(complete(marked)).to_pylist() == (batch.to_pylist() + batch.slice(1).to_pylist())
    assert [each.num_rows for each in complete(append_end([], columns))] == [0]
    with pytest.raises(RangeFailed):
        list(complete(marked[:-1]))
