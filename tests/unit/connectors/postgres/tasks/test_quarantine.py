"""Which rows are kept out because the server would cut their text without an error."""

import pyarrow
import pytest

from airflow_provider_backpressure.connectors.postgres.tasks.quarantine import split_cut
from airflow_provider_backpressure.core.snapshot.spark_messages import Column


@pytest.mark.parametrize(
    ("type_", "fits", "cut"),
    [
        ("name", ["", None, "x" * 63, "é" * 31], ["x" * 64, "é" * 32]),
        ('"char"', ["", None, "x", "\\303"], ["xy", "é", "x ", "\\400", "x303"]),
        ("character varying(3)", ["", None, "abc", "ab ", "ééé"], ["abc ", "    ", "é     "]),
        # The server names these itself, or nothing is lost.
        ("character varying(3)", ["abcd", "abcd  ", "   d"], []),
        ("character(3)", ["abc   "], []),
        ("text", ["x" * 100], []),
        ("character varying", ["x  "], []),
    ],
)
@pytest.mark.parametrize("arrow", [pyarrow.string(), pyarrow.large_string()])
def test_only_rows_that_would_be_cut_are_kept_out(
    type_: str, fits: list[str | None], cut: list[str], arrow: pyarrow.DataType
) -> None:
    rows = pyarrow.record_batch(
        [pyarrow.array(range(len(fits + cut))), pyarrow.array([*fits, *cut], arrow)], names=["id", "code"]
    )
    kept, bad = split_cut(rows, [Column(name="id", type="bigint"), Column(name="code", type=type_)])
    assert kept.column("code").to_pylist() == fits
    assert [row["code"] for row, _ in bad] == cut
    assert {reason for _, reason in bad} <= {f"column code: value too long for type {type_}"}


def test_columns_of_numbers_are_left_alone() -> None:
    rows = pyarrow.record_batch([pyarrow.array([1, 2])], names=["code"])
    assert split_cut(rows, [Column(name="code", type="name")]) == (rows, [])


def test_a_text_of_other_bytes_can_be_shown() -> None:
    """Spark casts any bytes to a string; the server refuses them, and the row has to be named."""
    broken = pyarrow.array([b"a\xff" + b"x" * 63]).view(pyarrow.string())
    rows = pyarrow.record_batch([broken, pyarrow.array([7])], names=["code", "id"])
    kept, bad = split_cut(rows, [Column(name="code", type="name"), Column(name="id", type="bigint")])
    assert kept.num_rows == 0
    assert split_cut(rows, [Column(name="code", type="character varying(3)")]) == (rows, [])
    assert bad == [({"code": "a\\xff" + "x" * 63, "id": 7}, "column code: value too long for type name")]
