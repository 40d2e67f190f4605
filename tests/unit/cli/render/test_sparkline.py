"""Curves in text."""

from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider_backpressure.cli.render.status_values import curve

NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)


def drawn(*points: tuple[float, float], seconds: float = 8.0) -> str:
    axis = {"start": NOON, "end": NOON + timedelta(seconds=seconds)}
    return curve([(NOON + timedelta(seconds=at), value) for at, value in points], width=8, **axis)


@pytest.mark.statement("M6")
def test_curves_share_their_axis():
    """M6: two of them, one below the other, show what was at the same time."""
    assert drawn(*((second, second / 8) for second in range(1, 9))) == "▂▃▄▅▆▇██"
    assert drawn((4.5, 0.5)) == "    ▅▅▅▅"


def test_what_lies_outside_is_drawn_at_the_edge():
    assert drawn((0, -1.0), (4, 9.0)) == "▁▁▁█████"
    assert drawn((0, 0.5), seconds=0.0) == "▅" * 8
    assert drawn() == " " * 8
