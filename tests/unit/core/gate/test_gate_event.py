"""Frames: what comes back is what was sent, and nothing that comes over a channel can hurt."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_backpressure.core.gate.gate_event import FORMAT, Diff, UnknownFormat, Unreadable, decode, encode
from airflow_provider_backpressure.core.gate.hydration_record import Phase

DIFF = Diff(hydration_id="a" * 32, number=7, moment=12.5, origin="there", in_flight=-1, seq=3)
CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "phase": st.sampled_from(Phase),
        "credits": st.integers(0, 99),
        "slots": st.none() | st.integers(1, 99),
        "waiting": st.integers(0, 1),
        "commit_seconds": st.none() | st.floats(0, 1e6),
        "range_memory_bytes": st.none() | st.integers(0, 2**63),
        "paused_by": st.none() | st.text(),
        "paused_why": st.none() | st.text(),
    },
)


@given(
    changes=st.none() | CHANGES,
    number=st.integers(0, 2**63),
    moment=st.floats(0, 1e12),
    in_flight=st.integers(-9, 9),
    seq=st.none() | st.integers(0, 2**40),
)
def test_a_frame_holds_what_was_put_in(changes, number, moment, in_flight, seq):
    made = Diff(
        hydration_id="h", number=number, moment=moment, changes=changes, in_flight=in_flight, seq=seq, origin="o"
    )
    found = decode(encode(made))
    assert (found.number, found.moment, found.changes) == (number, moment, changes)
    if changes is not None:
        assert found == made


@given(st.text())
def test_a_frame_fits_or_tells_its_number(why):
    """P9: also where each letter takes six bytes."""
    frame = encode(Diff(hydration_id="h" * 32, number=7, moment=1.0, changes={"paused_why": why * 50}), limit=300)
    assert len(frame) <= 300
    assert decode(frame).number == 7


@pytest.mark.statement("P9")
@given(st.binary() | st.text().map(str.encode))
def test_any_bytes_are_read_or_refused(frame):
    """P9: never any other error."""
    with suppress(Unreadable):
        decode(frame)


@pytest.mark.statement("P9")
@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=3), st.data()
)
def test_any_value_in_any_place_is_read_or_refused(value, data):
    """P9: the same for frames of the right shape."""
    body = json.loads(encode(DIFF))
    place = data.draw(st.sampled_from(sorted(body)))
    body[place] = {"credits": value} if place == "c" and data.draw(st.booleans()) else value
    try:
        found = decode(json.dumps(body).encode())
    except Unreadable:
        return
    assert isinstance(found.number, int)
    assert isinstance(found.hydration_id, str)


@pytest.mark.statement("P9")
def test_two_generations_share_a_channel():
    """P9: another version is told apart from noise; a field of a later minor one means that the ledger is read."""
    body = json.loads(encode(DIFF))
    with pytest.raises(UnknownFormat, match=f"format {FORMAT + 1}"):
        decode(json.dumps({**body, "v": FORMAT + 1}).encode())
    assert decode(json.dumps({**body, "new": [1]}).encode()) == DIFF
    assert decode(json.dumps({**body, "c": {"credits": 3, "temperature": 21}}).encode()).changes is None
