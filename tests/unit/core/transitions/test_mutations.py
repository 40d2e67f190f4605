"""The simulation tells a wrong law from the right one; and what the documentation says of the right one."""

from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_backpressure.core.admission.permits_and_reservations import Limiter
from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.gate.credit_limits import GradedLimit
from tests.support.cases import DROWNED, Case, after_fall, check_relief, check_steady, settled
from tests.support.flow import Flow, install


@pytest.fixture(autouse=True)
def _simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)


class NeverShrinks(GradedLimit):
    """Takes nothing."""

    def after(self, credits: int, pressure: float, maximum: int) -> int:
        return max(credits, super().after(credits, pressure, maximum))


class GrowsByTwo(GradedLimit):
    """Gives two where one is due."""

    def after(self, credits: int, pressure: float, maximum: int) -> int:
        step = super().after(credits, pressure, maximum)
        return min(maximum, credits + 2) if step > credits else step


class HoldsNever(GradedLimit):
    """Grows until it must shrink."""

    def __init__(self) -> None:
        super().__init__(grow=0.7, hold=0.7)


def check_all() -> None:
    """Make the checks that a wrong law has to fail, one of them at least."""
    for each in (0.05, 0.15, 0.24):
        check_steady(each, 24)
    check_steps_are_single(24)
    check_relief(0.05, 8, 0.1)


def check_steps_are_single(credits: int) -> None:
    """Check that the law gives single credits, and none between its marks."""
    case = Case(each=0.05, credits=credits)
    case.fall(0.1, after=60, lasting=900.0)
    flow = case.run()
    steps = [then.credits - now.credits for now, then in zip(flow.moments, flow.moments[1:], strict=False)]
    assert max(steps) == 1
    grown = [now.credits for now, step in zip(flow.moments, steps, strict=False) if step > 0]
    assert max(grown) * case.each <= 0.5, "a credit was given where the law holds"


def test_the_law_passes_every_check() -> None:
    """What the wrong ones below fail."""
    check_all()


@pytest.mark.parametrize("wrong", [NeverShrinks, GrowsByTwo, HoldsNever])
def test_a_wrong_law_is_seen(wrong: Callable[[], GradedLimit], monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulation tells them apart: these laws fail a check."""
    monkeypatch.setattr(
        "airflow_provider_backpressure.core.admission.permits_and_reservations.limit_for", lambda law: wrong()
    )
    with pytest.raises(AssertionError):
        check_all()


def test_raw_latency_would_swing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Why the law relates latency to the ranges in flight: by latency as it is, the credits go up and down for ever."""
    monkeypatch.setattr(Limiter, "limit", lambda self, record: GradedLimit())
    with pytest.raises(AssertionError, match="swing"):
        check_steady(0.05, 16)


@pytest.mark.statement("T2")
def test_a_credit_that_comes_back_on_submission_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """T2: jobs are counted, not what the ledger says."""
    case = Case(each=0.05, credits=4, ranges=40)
    admitted = Flow._admitted

    def early(self: Flow, hydration_id: str, seq: int) -> None:
        admitted(self, hydration_id, seq)
        self.ledger._tables.entry(hydration_id).in_flight.clear()

    monkeypatch.setattr(Flow, "_admitted", early)
    case.flow.ledger._admitted = case.flow._admitted
    case.flow.budget = Budget(credits=10, range_rows=1)
    with pytest.raises(AssertionError, match="more in flight"):
        case.run()


def page_row(each: float, credits: int) -> str:
    """Return a line of the page's table: a steady sink, and the same one after a fall to half and to a tenth."""
    steady = settled(Case(each=each, credits=credits).run())
    cells = [f"{each * DROWNED:g} s", f"{credits}", steps_of(steady)]
    for to in (0.5, 0.1):
        case = Case(each=each, credits=credits, ranges=40 + 8 * credits)
        fell = case.fall(to, after=20 + credits)
        late = after_fall(case.run(), fell)
        few = next(number for number, moment in enumerate(late, 1) if moment.credits * each / to < 0.72)
        cells.append(f"{steps_of([moment.credits for moment in late[len(late) // 2 :]])}, after {few}")
    return f"| {' | '.join(cells)} |"


def steps_of(credits: list[int]) -> str:
    """Return the credits as they are, or from where to where they go."""
    low, high = min(credits), max(credits)
    return f"{low}" if low == high else f"{low} to {high}"


PAGE = [(0.01, 4), (0.01, 48), (0.05, 4), (0.05, 16), (0.05, 48)]


def test_the_page_tells_what_the_simulation_shows(repository: Path) -> None:
    """The table of docs/concepts/gate.md is this one."""
    page = (repository / "docs" / "concepts" / "gate.md").read_text()
    rows = [page_row(*case) for case in PAGE]
    assert "\n".join(rows) in page, "\n".join(rows)
