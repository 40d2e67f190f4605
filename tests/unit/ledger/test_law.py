"""What every ledger decides and learns, as pure functions of values."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider_backpressure.core.bounds import KeyBounds
from airflow_provider_backpressure.core.ranges import RangeRecord, RangeState
from airflow_provider_backpressure.exceptions import IllegalTransition
from airflow_provider_backpressure.ledger import law

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
PLANNED = RangeRecord(
    hydration_id="h",
    plan_id="p",
    seq=4,
    bounds=KeyBounds.of(column="id", start="1", end="2"),
    state=RangeState.PLANNED,
    planned_rows=1,
    planned_bytes=8,
)
ADMITTED = replace(
    PLANNED, state=RangeState.ADMITTED, attempt=2, lane="a", admitted_at=NOON, lease_until=NOON + timedelta(seconds=60)
)


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


@pytest.mark.parametrize(
    ("credits", "maximum", "configured", "expected"),
    [(2, 4, 4, 2), (2, 4, 8, 8), (4, 4, 3, 3), (2, 4, 3, 2), (1, 4, 1, 1)],
)
def test_credits_follow_their_configuration(credits, maximum, configured, expected):
    figures = replace(law.registered("h", maximum), credits=credits)
    changed = law.rescaled(figures, configured)
    assert (changed.credits, changed.credits_max) == (expected, configured)


def test_samples_are_at_least_a_second_apart_whatever_the_clock_does():
    figures = replace(law.registered("h", 1), sampled_at=NOON)
    due = [figures.sample_due(NOON + seconds(offset)) for offset in (0, 0.9, 1, 3600, -0.9, -3600)]
    assert due == [False, False, True, True, False, True]
    assert law.registered("h", 1).sample_due(NOON)


@pytest.mark.parametrize(
    ("base", "latest", "now", "expected"),
    [
        ((0, 0), (10, 100), 10, 10.0),
        ((0, 0), (10, 100), 70, 10.0),
        ((0, 0), (10, 100), 110, 2.0),
        ((0, 100), (0, 100), 5, None),
        ((5, 100), (0, 100), 5, None),
    ],
)
def test_the_rate_of_a_run_that_stands_still_goes_towards_zero(base, latest, now, expected):
    first, last = (law.Sample(at=NOON + seconds(at), rows=rows) for at, rows in (base, latest))
    assert law.rate_between(first, last, now=NOON + seconds(now), seconds=60) == expected


def test_the_first_planned_range_is_looked_for_where_it_can_be():
    figures = law.registered("h", 1)
    assert law.after_admission(figures, 0, first=True).next_seq == 1
    assert law.after_admission(figures, 7, first=True).next_seq == 8
    assert law.after_admission(figures, 7, first=False).next_seq == 0, "those before it are still planned"
    assert law.after_admission(figures, 0, first=False).next_seq == 1
    assert law.planned_again(replace(figures, next_seq=9), 4).next_seq == 4
    assert law.planned_again(replace(figures, next_seq=2), 4).next_seq == 2


def test_an_error_is_kept_in_a_form_that_every_database_takes():
    record = law.released(ADMITTED, attempt=2, error="a\x00b" + "x" * 10_000, fail=False)
    assert record is not None
    assert record.error.startswith("abx")
    assert len(record.error) == law.ERROR_LENGTH


def test_a_revoked_range_is_never_committed():
    """The sink's revoked marker excludes a commit: to be told of one means that something is very wrong."""
    with pytest.raises(IllegalTransition, match="revoked to committed"):
        law.committed(replace(PLANNED, state=RangeState.REVOKED), attempt=1, rows=1, bytes=8, checksum="", now=NOON)
