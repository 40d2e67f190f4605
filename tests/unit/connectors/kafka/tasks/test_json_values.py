"""Arrow's word is only taken where Python says the same: that values are JSON objects, and what a number is."""

import json
from contextlib import suppress
from decimal import Context, Decimal
from typing import NoReturn

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_backpressure.connectors.kafka.tasks.json_values import Verbatim, are_objects, json_field
from airflow_provider_backpressure.core.snapshot.spark_messages import Column
from airflow_provider_backpressure.exceptions import SourceRefused
from tests.unit.connectors.kafka.tasks.test_record_batches import Sent


def said(*values: bytes | None) -> bool:
    """What is said of these values together."""
    return are_objects(pyarrow.array(values, pyarrow.binary()))


def _refused(_: str) -> NoReturn:
    raise ValueError


def is_object(value: bytes) -> bool:
    """What Python says of one value."""
    try:
        return isinstance(json.loads(value.decode(), parse_constant=_refused), dict)
    except ValueError:
        return False


def test_plain_objects_are_known() -> None:
    """So that the quick way is taken at all."""
    assert said(b'{"id": 1, "a": {"b": [1.5e3, null, true, "\\u0416 \\n"]}}', None, b"{}", '{"Ж": 1}'.encode())
    assert said()
    assert said(None)


@pytest.mark.parametrize(
    "values",
    [
        (b'{"a":1} {"b":2}',),
        (b'{"a":1}{"b":2}', None),
        (b'{"a":', b"1}"),
        (b'{"a":"}', b'{"}'),
        (b'{"a":{}', b'{"b":1}}'),
        (b'{"a":[{}', b"{}]}"),
        (b'{"a":1}', b""),
        (b'{"a":NaN}',),
        (b'{"a":-Infinity}',),
        (b'{"a":1,}',),
        (b'{"a":01}',),
        (b'{"a":.5}',),
        (b'{"a":"\x01"}',),
        (b'{"a":"\n"}',),
        (b'{"a":"\xff"}',),
        (b'{"a":tru}',),
        (b'{"a":"\\x"}',),
        (b"{/**/}",),
        (b"[1]",),
        (b"1",),
    ],
)
def test_what_is_no_object_is_not_taken_for_one(values: tuple[bytes | None, ...]) -> None:
    """Not by itself, and not where two values only together are one."""
    assert not said(*values)
    assert not said(b"{}", *values, b'{"x": 1}')


PIECES = st.sampled_from(
    [
        b"{",
        b"}",
        b"[",
        b"]",
        b":",
        b",",
        b'"a"',
        b'"',
        b"1",
        b"-",
        b"0",
        b".5",
        b"e3",
        b"null",
        b"NaN",
        b"\n",
        b" ",
        b"\\",
    ]
)


@given(st.lists(st.lists(PIECES, max_size=9).map(b"".join).map(lambda inner: b"{" + inner + b"}"), max_size=3))
def test_a_yes_is_always_python_s_yes(values: list[bytes]) -> None:
    """Whatever stands between the braces."""
    if said(*values):
        assert all(map(is_object, values))


@pytest.mark.statement("X5")
@given(
    st.integers(-(10**60), 10**60) | st.integers(-(2**130), 2**130),
    st.integers(-50, 50),
    st.integers(1, 38).flatmap(lambda precision: st.tuples(st.just(precision), st.integers(0, precision))),
)
def test_a_decimal_arrives_as_it_is_written_or_is_refused(digits: int, exponent: int, type_: tuple[int, int]) -> None:
    """X5: Arrow computes with 128 bits, and a number that is too large would come out as another one."""
    precision, scale = type_
    column = Column(name="v", type=f"numeric({precision},{scale})")
    number = Decimal(digits).scaleb(exponent, Context(prec=200))
    for text in (f"{digits}e{exponent}", f"{number:f}"):
        with suppress(SourceRefused):
            (found,) = json_field([Sent(b"", at=1)], [{"v": Verbatim(text)}], column).to_pylist()
            assert found == Decimal(text)
            continue
        # In Python's own precision of 28 digits it would be rounded here.
        shifted = Decimal(text).scaleb(scale, Context(prec=200))
        fits = abs(shifted) < 10**precision and shifted == shifted.to_integral_value()
        assert not fits or not digits, "what the type holds is taken, but a zero with an exponent"
