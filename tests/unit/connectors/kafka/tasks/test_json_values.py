"""Arrow's word that values are JSON objects is only taken where Python would say the same."""

import json
from typing import NoReturn

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_backpressure.connectors.kafka.tasks.json_values import are_objects


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
