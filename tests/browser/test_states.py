"""Each state of a hydration with the words that the reader sees, in overview and detail; and a picture of each."""

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.audit import faults
from tests.browser.states import WORDS, beat, make_states
from tests.support.page import PageServer, many

pytestmark = [pytest.mark.system, pytest.mark.browser]

Login = Callable[[str], Page]
PATIENCE = 30_000


@pytest.fixture(scope="module")
def states(page: PageServer) -> Iterator[dict[str, str]]:
    """A hydration in each state."""
    made = make_states(page)
    yield made
    for hydration_id in made.values():
        for record in page.ledger.ranges(plan.plan_id) if (plan := page.ledger.hydration(hydration_id).plan) else ():
            if record.state == "admitted":
                page.ledger.release(record.plan_id, record.seq, attempt=record.attempt, error="over")
        page.ledger.forget(hydration_id)


def visit(tab: Page, page: PageServer, theme: str, path: str = "") -> None:
    tab.evaluate(f"localStorage.setItem('theme', '{theme}')")
    tab.goto(f"{page.airflow.url}/backpressure/{path}")
    tab.reload()
    expect(tab.locator("html")).to_have_attribute("data-theme", theme)


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.long)])
@pytest.mark.statement("C1")
def test_each_state_is_shown_with_its_words(
    login: Login, page: PageServer, states: dict[str, str], pictures: Path, theme: str
):
    """In the overview and on the hydration's own page; red only where something has failed; no fault of access."""
    tab = login("admin")
    beat(page, states)
    visit(tab, page, theme, "#/?q=states.")
    for name, (word, note) in WORDS.items():
        row = tab.get_by_role("row").filter(has=tab.get_by_role("link", name=f"states.{name}", exact=True))
        expect(row.locator(".badge")).to_have_text(word, timeout=PATIENCE)
        expect(row).to_contain_text(note)
        assert ("state-failed" in (row.locator(".badge").get_attribute("class") or "")) == (word == "Failed")
    assert faults(tab) == []
    tab.screenshot(path=pictures / f"states-{theme}.png", full_page=True)
    for name, (word, note) in WORDS.items():
        beat(page, states)
        tab.goto(f"{page.airflow.url}/backpressure/#/hydration/{states[name]}")
        expect(tab.locator(".head .badge")).to_have_text(word, timeout=PATIENCE)
        expect(tab.get_by_role("main")).to_contain_text(note)
        assert faults(tab) == []
        tab.screenshot(path=pictures / f"state-{name}-{theme}.png")


@pytest.mark.statement("C2")
def test_a_failure_shows_range_bounds_attempt_and_log(login: Login, page: PageServer, states: dict[str, str]):
    tab = login("viewer")
    tab.goto(f"{page.airflow.url}/backpressure/#/hydration/{states['failed']}")
    failure = tab.get_by_role("alert", name="What has failed")
    expect(failure).to_contain_text("A value of column amount is too long", timeout=PATIENCE)
    expect(failure).to_contain_text("attempt 3")
    expect(failure).to_contain_text("40")
    expect(failure).to_contain_text("What is committed is kept. Once the cause is gone, clear the failed task")
    expect(tab.get_by_role("progressbar", name="How much is done?").locator("span")).to_have_class("no")
    log = failure.get_by_role("link", name="Log of the task hydrate_orders.hydrate_ranges, try 2")
    expect(log).to_have_attribute("href", re.compile("/dags/orders/runs/.*/tasks/hydrate_orders.hydrate_ranges"))
    failure.get_by_role("link", name="Range 4").click()
    expect(tab.get_by_role("region", name="One range")).to_contain_text("failed", timeout=PATIENCE)


@pytest.mark.long
@pytest.mark.statement("C3")
def test_an_address_survives_a_reload_and_can_be_shared(login: Login, page: PageServer, states: dict[str, str]):
    """Within Airflow's own page, whose address leads to the hydration, the range, and the search."""
    tab = login("viewer")
    tab.goto(f"{page.airflow.url}/plugin/backpressure")
    frame = tab.frame_locator("iframe")
    frame.get_by_label("Search").fill("states.failed", timeout=PATIENCE)
    tab.wait_for_url("**/plugin/backpressure**#/?q=states.failed")
    tab.reload()
    expect(frame.get_by_label("Search")).to_have_value("states.failed", timeout=PATIENCE)
    frame.get_by_role("link", name="states.failed").click()
    tab.wait_for_url(f"**/plugin/backpressure**#/hydration/{states['failed']}")
    frame.get_by_role("link", name="Range 4").click()
    tab.wait_for_url(f"**#/hydration/{states['failed']}/range/4")
    tab.reload()
    one = frame.get_by_role("region", name="One range")
    expect(one.get_by_role("heading", name="Range 4")).to_be_visible(timeout=PATIENCE)
    # The links of tasks lead here.
    other = tab.context.new_page()
    other.goto(f"{page.airflow.url}/plugin/backpressure#/hydration/{states['paused']}")
    expect(other.frame_locator("iframe").locator(".head .badge")).to_have_text("Paused", timeout=PATIENCE)
    other.goto(f"{page.airflow.url}/dags/orders/plugin/backpressure-of-dag#/hydration/{states['paused']}")
    expect(other.frame_locator("iframe").locator(".head .badge")).to_have_text("Paused", timeout=PATIENCE)


def test_a_narrow_screen_has_nothing_to_move_sideways(
    login: Login, page: PageServer, states: dict[str, str], pictures: Path
):
    tab = login("viewer")
    tab.set_viewport_size({"width": 360, "height": 780})
    for name, path in (("overview", "#/?q=states."), ("detail", f"#/hydration/{states['failed']}")):
        tab.goto(f"{page.airflow.url}/backpressure/{path}")
        tab.reload()
        expect(tab.locator(".badge").first).to_be_visible(timeout=PATIENCE)
        widths = tab.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        tab.screenshot(path=pictures / f"narrow-{name}.png")
        assert widths[0] <= widths[1], name


def seconds_until(tab: Page, address: str, shown: Locator) -> float:
    tab.goto("about:blank")
    begun = time.monotonic()
    tab.goto(address)
    expect(shown).to_be_visible(timeout=PATIENCE)
    return time.monotonic() - begun


@pytest.mark.long
@pytest.mark.statement("C3")
def test_a_thousand_hydrations_are_searched_filtered_sorted_and_grouped(login: Login, page: PageServer, pictures: Path):
    """The first rows are there within a second of the request for the page; the others follow."""
    made, _ = many(page.ledger, hydrations=1_000, ranges=10)
    try:
        tab = login("viewer")
        first = tab.locator(".overview tbody tr").first
        nothing = tab.get_by_role("heading", name="This DAG has no hydration yet")
        without = [seconds_until(tab, f"{page.airflow.url}/backpressure/?dag=nobody", nothing) for _ in range(3)]
        took = [seconds_until(tab, f"{page.airflow.url}/backpressure/", first) for _ in range(3)]
        print([round(1000 * each) for each in took], [round(1000 * each) for each in without])
        rows = tab.locator(".overview tbody tr")
        expect(tab.locator(".sums")).to_contain_text("in all")
        expect(tab.get_by_text("are being read")).to_be_hidden(timeout=PATIENCE)
        tab.get_by_label("Search").fill("raw.m99")
        expect(rows).to_have_count(10, timeout=PATIENCE)
        tab.get_by_role("button", name="Target", exact=True).click()
        expect(rows.first).to_contain_text("raw.m99")
        tab.get_by_label("Group").select_option("schema")
        expect(tab.get_by_role("rowheader", name="raw 10")).to_be_visible()
        tab.screenshot(path=pictures / "many.png")
        tab.get_by_label("State", exact=True).select_option("failed")
        expect(tab.get_by_text("No hydration matches.")).to_be_visible()
        # Beside other work on the machine the page itself may take its time.
        assert min(took) < max(1, 3 * min(without)), (took, without)
    finally:
        for hydration_id in made:
            page.ledger.forget(hydration_id)
