"""Values that cannot be built wrong: budgets, ranges, messages, states."""

from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint, endpoints_from_json, endpoints_to_json
from airflow_provider_backpressure.core.gate.hydration_record import Phase
from airflow_provider_backpressure.core.planning.range_size import rows_per_range
from airflow_provider_backpressure.core.poll_policy import PollPolicy
from airflow_provider_backpressure.core.snapshot.application_request import Request
from airflow_provider_backpressure.core.snapshot.bounds import KeyBounds, cover
from airflow_provider_backpressure.core.snapshot.ranges import RangeState, attempt_tag, number_ranges, slice_id
from airflow_provider_backpressure.core.snapshot.spark_messages import (
    ChecksumSpec,
    Column,
    RangeResult,
    RangeSpec,
    ReadSpec,
    Slice,
    SliceResult,
    Transform,
    WriteSpec,
)
from airflow_provider_backpressure.core.transitions import hydration_transitions, range_transitions
from airflow_provider_backpressure.exceptions import IllegalTransition, InvalidDeclaration
from airflow_provider_backpressure.testing import ManualClock


@pytest.mark.statement("X5")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("credits", 0),
        ("credits", -1),
        ("credits", 1.5),
        ("credits", True),
        ("range_rows", 0),
        ("range_bytes", -5),
        ("range_seconds", 0),
        ("range_seconds", float("inf")),
        ("commit_seconds", -1),
        ("signal_deadline", 0),
        ("executor_memory", 0),
        ("executor_memory", 1.2),
        ("executor_memory_low", 0.9),
    ],
)
def test_a_budget_of_zero_or_less_is_refused_by_name(name, value):
    """X5: one clear sentence that names the bound and the value."""
    with pytest.raises(InvalidDeclaration, match=name) as refused:
        Budget(**{name: value})
    assert repr(value) in str(refused.value)


def test_the_tightest_bound_of_a_range_wins():
    """Rows, bytes and expected seconds each bound a range."""
    budget = Budget(range_rows=1000, range_bytes=10_000, range_seconds=10)
    assert rows_per_range(budget, row_bytes=1, rows_per_second=1_000_000) == 1000
    assert rows_per_range(budget, row_bytes=100, rows_per_second=1_000_000) == 100
    assert rows_per_range(budget, row_bytes=1, rows_per_second=5) == 50
    assert rows_per_range(budget, row_bytes=1e9, rows_per_second=5) == 1


def test_defaults_grow_with_the_runners_overhead_and_what_was_set_does_not():
    """An application's 15 s are 5 % of 300 s; a warm session changes nothing."""
    assert Budget().fit(0.15) == Budget()
    grown = Budget().fit(15.0)
    assert (grown.range_rows, grown.range_seconds, grown.commit_seconds) == (30_000_000, 300.0, 1800.0)
    assert rows_per_range(grown, row_bytes=100) == 30_000_000
    assert grown.fit(15.0) == grown
    assert Budget(range_rows=5, commit_seconds=7.0).fit(15.0).range_rows == 5
    assert Budget(range_rows=5, commit_seconds=7.0).fit(15.0).commit_seconds == 7.0


def test_a_request_survives_its_file_and_names_the_logins_it_needs():
    """Another version, and what is no request, are refused."""
    read = ReadSpec(kind="postgres", conn_id="shop", columns=(Column(name="id", type="bigint"),))
    asked = Request(kind="describe", read=read, transform=Transform(sql="SELECT 1"), master="local[1]")
    assert Request.from_json(asked.to_json()) == asked
    sums = tuple(ChecksumSpec(kind="postgres", conn_id=name, query="q") for name in ("shop", "dwh"))
    checksums = Request(kind="checksums", checksums=sums)
    assert Request.from_json(checksums.to_json()) == checksums
    assert checksums.conn_ids == {"shop", "dwh"}
    for text in (asked.to_json().replace('"version": 1', '"version": 2'), '{"version": 1}'):
        with pytest.raises(InvalidDeclaration):
            Request.from_json(text)


@pytest.mark.statement("X5")
def test_a_file_of_logins_is_never_quoted():
    """X5: what a person mounts may lack a field; the error says so without showing any."""
    known = {"shop": Endpoint(conn_id="shop", host="h", port=1, database="d", user="u", password="s3cret-word")}
    assert endpoints_from_json(endpoints_to_json(known)) == known
    by_hand = '{"shop": {"host": "h", "port": 1, "database": "d", "user": "u", "password": "s3cret-word"}}'
    assert endpoints_from_json(by_hand) == known
    for text in ('{"shop": {"password": "s3cret-word"}}', '["s3cret-word"]', '{"shop": "s3cret-word', '"s3cret-word"'):
        with pytest.raises(InvalidDeclaration, match="file of logins") as refused:
            endpoints_from_json(text)
        assert "s3cret-word" not in str(refused.value)
        assert refused.value.__cause__ is None


@given(st.lists(st.integers(0, 50), max_size=20), st.integers(1, 1000))
def test_cover_has_no_gap_and_no_overlap(values, rows):
    """Half-open ranges from consecutive boundaries hold every key exactly once."""
    boundaries = [(str(value),) for value in sorted(values)]
    pieces = list(number_ranges(cover(("id",), boundaries), rows=rows, row_bytes=2))
    assert pieces[0].bounds.start is None
    assert pieces[-1].bounds.end is None
    assert [piece.seq for piece in pieces] == list(range(len(pieces)))
    assert all(before.bounds.end == after.bounds.start for before, after in pairwise(pieces))
    for key in range(-1, 52):
        holding = [
            piece
            for piece in pieces
            if (piece.bounds.start is None or key >= int(piece.bounds.start[0]))
            and (piece.bounds.end is None or key < int(piece.bounds.end[0]))
        ]
        assert len(holding) == 1


def test_an_empty_range_cannot_be_built():
    """[5, 5) holds nothing."""
    with pytest.raises(InvalidDeclaration, match="empty"):
        KeyBounds.of_column(column="id", start="5", end="5")


def test_an_attempt_tag_fits_into_an_application_name():
    """PostgreSQL cuts application names at 63 bytes, and a cut one would end other attempts."""
    assert len(attempt_tag("f" * 32, slice_id(9_999_999_999, 99), 9_999)) <= 63


@pytest.mark.parametrize("state", RangeState)
def test_illegal_steps_of_a_range_raise(state):
    """Only the table's steps exist; nothing leaves revoked, and committed is left for a repair only."""
    for to in RangeState:
        if to in range_transitions.LEGAL[state]:
            assert range_transitions.advance(state, to) is to
        else:
            with pytest.raises(IllegalTransition):
                range_transitions.advance(state, to)
    assert range_transitions.LEGAL[RangeState.COMMITTED] == {RangeState.PLANNED}
    assert range_transitions.LEGAL[RangeState.REVOKED] == frozenset()


def test_illegal_steps_of_a_hydration_raise():
    """A hydration never goes back to its first phase."""
    assert hydration_transitions.advance(Phase.HYDRATION, Phase.STEADY_STATE) is Phase.STEADY_STATE
    with pytest.raises(IllegalTransition):
        hydration_transitions.advance(Phase.STEADY_STATE, Phase.HYDRATION)


SPEC = RangeSpec(
    hydration_id="h",
    plan_id="p",
    epoch=3,
    seq=7,
    attempt=2,
    tag="bp:p:7.0:2",
    path="copy",
    read=ReadSpec(kind="postgres", conn_id="shop", columns=(Column(name='a"b', type="numeric(15,2)"),)),
    write=WriteSpec(
        kind="postgres",
        conn_id="warehouse",
        target='"raw"."t"',
        columns=(Column(name='a"b', type="numeric(15,2)", nullable=False),),
        mode="upsert",
        key=('a"b',),
        plan_table="p",
        commit_table="c",
        fence="raw.t",
    ),
    slices=(Slice(slice_id="7.0", query="SELECT 'é😀'", bounds={"kind": "key", "start": None, "end": "9"}),),
    transform=Transform(sql="SELECT 1"),
)


def test_messages_survive_json():
    """What is submitted is what arrives."""
    assert RangeSpec.from_json(SPEC.to_json()) == SPEC
    result = RangeResult(
        plan_id="p", seq=7, attempt=2, slices=(SliceResult(slice_id="7.0", rows=5, bytes=50, checksum="x:00"),)
    )
    assert RangeResult.from_json(result.to_json()) == result
    assert (result.rows, result.bytes) == (5, 50)


@pytest.mark.parametrize("text", ['{"version": 99}', "[]", '{"version": 1, "read": {}}'])
def test_messages_of_another_version_are_refused(text):
    """Two releases that do not understand each other say so."""
    with pytest.raises(InvalidDeclaration):
        RangeSpec.from_json(text)


@pytest.mark.statement("X5")
def test_an_endpoint_never_shows_its_password():
    """X5: neither repr nor address holds the secret."""
    endpoint = Endpoint(conn_id="c", host="h", port=1, database="d", user="u", password="hunter2")
    assert "hunter2" not in repr(endpoint) + str(endpoint) + endpoint.address
    seen = Endpoint(conn_id="c", host="h", port=1, database="d", user="u", executor_host="inner", executor_port=2)
    assert seen.for_executors().address == "inner:2/d"


def test_polling_waits_longer_and_longer_up_to_its_maximum():
    """One policy for everybody, on an injected clock."""
    clock, looks = ManualClock(), []

    def look():
        looks.append(clock.now)
        return "found" if clock.now >= 5 else None

    assert PollPolicy(initial=1, factor=2, maximum=2).until(look, timeout=10, clock=clock) == "found"
    assert looks == [0, 1, 3, 5]
    assert PollPolicy().until(lambda: None, timeout=3, clock=clock) is None
    assert clock.now == 8


def test_tries_have_numbers_and_end_with_their_time():
    """The last one is made when the time is up, not a whole wait later."""
    clock = ManualClock()
    tries = PollPolicy(initial=1, factor=2, maximum=2).tries(timeout=4, clock=clock)
    assert [(number, clock.now) for number in tries] == [(1, 0), (2, 1), (3, 3), (4, 4)]


def test_waits_with_jitter_are_uneven_and_never_longer():
    """Writers that were refused for each other do not try again at the same moment."""
    waits = list(islice(PollPolicy(initial=1, maximum=1, jitter=True).waits(), 20))
    assert len(set(waits)) > 1
    assert all(0 <= wait <= 1 for wait in waits)


def test_a_policy_that_would_spin_is_refused():
    """Zero seconds between two looks is a busy loop."""
    with pytest.raises(InvalidDeclaration):
        PollPolicy(initial=0)


def test_null_is_no_boundary() -> None:
    """No row is before it or behind it: the pieces would leave rows out. One of before can still be read."""
    with pytest.raises(InvalidDeclaration, match="NULL is none"):
        list(cover(("id",), [("1",), (None,)]))  # type: ignore[list-item]
    KeyBounds(columns=("id",), start=("1",), end=(None,))  # type: ignore[arg-type]
