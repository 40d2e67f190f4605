"""The soak's rule: what grows is found, and what only goes up and down is flat."""

import math
import random
import xml.etree.ElementTree as ElementTree

import pytest

from tests.soak.page import plot
from tests.soak.verdict import Series, typical_slope

MINUTES = [2.0 * number for number in range(900)]


def series(value, *, owners=lambda at: 1, **rule) -> Series:
    made = Series(name="memory", unit="MiB", **{"allowed_share": 0.05, **rule})
    for at in MINUTES:
        made.add(at, value(at), owners(at))
    return made


DRAW = random.Random(7)


@pytest.mark.parametrize(
    ("value", "flat"),
    [
        (lambda at: 300.0, True),
        (lambda at: 300 + DRAW.gauss(0, 20), True),
        (lambda at: 300 + 80 * math.sin(at / 60), True),
        (lambda at: 300 * (1 - math.exp(-at / 100)), True),
        (lambda at: 300 + (500 if DRAW.random() < 0.05 else 0), True),
        (lambda at: 300 + 0.05 * at + DRAW.gauss(0, 5), False),
        (lambda at: 300 + 0.2 * at + 60 * math.sin(at / 60), False),
        (lambda at: 500 - 0.1 * at, True),
    ],
    ids=["still", "noisy", "waves", "warms up", "peaks", "grows", "grows in waves", "shrinks"],
)
def test_what_grows_is_not_flat(value, flat):
    assert series(value).verdict().flat is flat


@pytest.mark.parametrize(("leak", "flat"), [(0, True), (1, True), (6, False)])
def test_a_count_may_differ_by_what_its_rule_allows(leak, flat):
    """Handles that are left open, some in half an hour."""
    made = series(lambda at: 40 + int(leak * at / MINUTES[-1]), allowed_share=0.0, allowed=2.0)
    assert made.verdict().flat is flat


def test_who_was_restarted_is_judged_from_there_on():
    """A restart must not hide what grows, nor look like growth."""
    grown = series(lambda at: 300 + 0.2 * (at % 900), owners=lambda at: int(at >= 900), allowed_share=0.1)
    assert grown.verdict().flat is False
    level = series(lambda at: 500.0 if at >= 900 else 300.0, owners=lambda at: int(at >= 900))
    assert level.verdict().flat is True


def test_too_little_is_no_verdict():
    made = Series(name="x", unit="")
    assert made.verdict().flat is None
    made.add(0, 1)
    assert made.verdict().flat is None


def test_the_slope_is_that_of_most():
    values = [2.0 * at for at in range(20)]
    assert typical_slope(range(20), [*values[:19], 6_000.0]) == pytest.approx(2)
    assert typical_slope([1.0], [1.0]) == 0


def test_a_plot_is_a_picture_of_its_samples():
    made = series(lambda at: at, owners=lambda at: int(at >= 900))
    root = ElementTree.fromstring(plot("Memory of <lanes>", [made], faults=[(10.0, "lane killed")]))
    lines = [one for one in root.iter() if one.tag.endswith("polyline")]
    assert len(lines) == 1
    assert len(lines[0].attrib["points"].split()) > 100
    words = " ".join(one.text or "" for one in root.iter() if one.tag.endswith(("text", "title")))
    assert "Memory of <lanes>" in words
    assert "lane killed" in words
