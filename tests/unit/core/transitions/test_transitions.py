"""What every ledger decides and learns, as pure functions of values."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider_backpressure.core.gate.cluster_queue import AS_DECLARED, Change
from airflow_provider_backpressure.core.progress.rates_and_eta import Sample
from airflow_provider_backpressure.core.snapshot.bounds import KeyBounds
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord, RangeState
from airflow_provider_backpressure.core.transitions import hydration_transitions as hydrating
from airflow_provider_backpressure.core.transitions import range_transitions as attempts
from airflow_provider_backpressure.core.transitions import statistics as tallies
from airflow_provider_backpressure.core.transitions.hydration_transitions import Figures
from airflow_provider_backpressure.exceptions import IllegalTransition

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
PLANNED = RangeRecord(
    hydration_id="h",
    plan_id="p",
    seq=4,
    bounds=KeyBounds.of_column(column="id", start="1", end="2"),
    state=RangeState.PLANNED,
    planned_rows=1,
    planned_bytes=8,
)
ADMITTED = replace(
    PLANNED, state=RangeState.ADMITTED, attempt=2, lane="a", admitted_at=NOON, lease_until=NOON + timedelta(seconds=60)
)


def registered(credits: int) -> Figures:
    return hydrating.create("h", credits, cluster="spark", sink_server="postgres://warehouse:5432")


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


@pytest.mark.parametrize(
    ("credits", "maximum", "configured", "expected"),
    [(2, 4, 4, 2), (2, 4, 8, 8), (4, 4, 3, 3), (2, 4, 3, 2), (1, 4, 1, 1)],
)
def test_credits_follow_their_configuration(credits, maximum, configured, expected):
    figures = replace(registered(maximum), credits=credits)
    changed = hydrating.rescale(figures, credits_declared=configured)
    assert (changed.credits, changed.credits_max) == (expected, configured)


def test_a_persons_maximum_goes_before_the_declared_one_until_it_is_taken_back():
    figures = hydrating.override(registered(4), Change(credits=2))
    assert (figures.credits, figures.credits_max) == (2, 2)
    assert hydrating.rescale(figures, credits_declared=8).credits_max == 2
    back = hydrating.override(figures, Change(credits=AS_DECLARED))
    assert (back.credits, back.credits_max) == (4, 4)


@pytest.mark.statement("T11")
def test_credits_follow_the_clusters_slots_at_once_and_stay_within_what_is_wanted():
    """T11: two ranges for each task that the cluster can run, never more than was asked for, never none."""
    figures = registered(6)
    found = []
    for slots in (1, 3, 2, 100, 1):
        figures = hydrating.rescale(figures, slots=slots)
        found.append((figures.credits, figures.credits_max))
    assert found == [(2, 2), (6, 6), (4, 4), (6, 6), (2, 2)]


def test_samples_are_at_least_a_second_apart_whatever_the_clock_does():
    figures = replace(registered(1), sampled_at=NOON)
    due = [figures.sample_due(NOON + seconds(offset)) for offset in (0, 0.9, 1, 3600, -0.9, -3600)]
    assert due == [False, False, True, True, False, True]
    assert registered(1).sample_due(NOON)


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
    first, last = (Sample(at=NOON + seconds(at), committed=rows) for at, rows in (base, latest))
    assert tallies.rate_between(first, last, now=NOON + seconds(now), seconds=60) == expected


def test_the_first_planned_range_is_looked_for_where_it_can_be():
    figures = registered(1)
    assert hydrating.after_admission(figures, 0, first=True).next_seq == 1
    assert hydrating.after_admission(figures, 7, first=True).next_seq == 8
    assert hydrating.after_admission(figures, 7, first=False).next_seq == 0, "those before it are still planned"
    assert hydrating.after_admission(figures, 0, first=False).next_seq == 1
    assert hydrating.reopen_range(replace(figures, next_seq=9), 4).next_seq == 4
    assert hydrating.reopen_range(replace(figures, next_seq=2), 4).next_seq == 2


def test_an_error_is_kept_in_a_form_that_every_database_takes():
    record = attempts.release(ADMITTED, attempt=2, error="a\x00b" + "x" * 10_000, fail=False)
    assert record is not None
    assert record.error.startswith("abx")
    assert len(record.error) == attempts.ERROR_LENGTH


def test_a_revoked_range_is_never_committed():
    """The sink's revoked marker excludes a commit: to be told of one means that something is very wrong."""
    with pytest.raises(IllegalTransition, match="revoked to committed"):
        attempts.commit(replace(PLANNED, state=RangeState.REVOKED), attempt=1, rows=1, bytes=8, checksum="", now=NOON)
