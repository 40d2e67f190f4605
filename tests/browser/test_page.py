"""The page as a person uses it, inside Airflow's own page, in a real Chromium."""

import re
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Frame, FrameLocator, Page, expect

from airflow_provider_backpressure.core.gate.cluster_queue import Shared
from airflow_provider_backpressure.core.push.hub import Switch, turn
from airflow_provider_backpressure.core.push.wait_queue import Waiter
from tests.browser.audit import faults
from tests.conformance.ledger.support import commit, cut, make_plan, take
from tests.support.page import LANE, SESSION, PageServer, course, fresh, registered

pytestmark = [pytest.mark.system, pytest.mark.browser]

Login = Callable[[str], Page]
PATIENCE = 30_000
SMALLEST = 20_000
"""Bytes of a picture that shows something."""


def opened(tab: Page, page: PageServer, path: str = "/plugin/backpressure") -> FrameLocator:
    tab.goto(f"{page.airflow.url}{path}")
    return tab.frame_locator("iframe")


def orders(tab: Page, page: PageServer) -> FrameLocator:
    frame = opened(tab, page)
    frame.get_by_role("link", name="raw.orders").click()
    expect(frame.get_by_role("heading", name="public.orders → raw.orders")).to_be_visible(timeout=PATIENCE)
    return frame


@pytest.fixture
def own(page: PageServer) -> Iterator[str]:
    """A hydration of twenty ranges that one test changes as it likes."""
    made = registered(page.ledger, "raw.own", owner="orders", credits=20)
    page.ledger.save_plan(made, make_plan(total=200), cut(20))
    yield made
    page.ledger.forget(made)


def plan_of(page: PageServer, hydration_id: str) -> str:
    plan = page.ledger.hydration(hydration_id).plan
    assert plan is not None
    return plan.plan_id


def inner(tab: Page) -> Frame:
    (frame,) = [one for one in tab.frames if one.parent_frame is not None]
    return frame


def confirm(frame: FrameLocator, yes: str, why: str) -> None:
    dialog = frame.get_by_role("dialog")
    dialog.get_by_label("Reason").fill(why)
    dialog.get_by_role("button", name=yes, exact=True).click()
    expect(dialog).to_be_hidden(timeout=PATIENCE)


def test_the_overview_is_in_the_navigation(login: Login, page: PageServer):
    """Each hydration with its figures; from Airflow's first page by its own navigation."""
    fresh(page)
    tab = login("viewer")
    tab.get_by_role("link", name="Backpressure").or_(tab.get_by_role("button", name="Backpressure")).first.click()
    frame = tab.frame_locator("iframe")
    row = frame.get_by_role("row", name="raw.orders")
    expect(row).to_contain_text("61.7 %", timeout=PATIENCE)
    expect(row).to_contain_text(re.compile(r"\d+:\d\d to \d+:\d\d"))
    expect(row).to_contain_text("Throttled")
    expect(row).to_contain_text("by oldest uncommitted range 10.2 s >= 10 s")
    expect(row).to_contain_text("not keeping up")
    regions = frame.get_by_role("row", name="raw.regions")
    expect(regions).to_contain_text("Succeeded")
    expect(regions).to_contain_text("100.0 %")


@pytest.mark.statement("M12", "F8")
def test_one_screen_answers_both_questions(login: Login, page: PageServer):
    """M12, F8: how much is done, whether it keeps up, and the pipe with its rates and the credits at the gap."""
    frame = orders(login("viewer"), page)
    done = frame.get_by_role("region", name="How much is done?")
    expect(done).to_contain_text("61.7 %")
    expect(done).to_contain_text("; 1 failed range")
    expect(done).to_contain_text(re.compile(r"rows/s · snapshot complete in \d+:\d\d min"))
    expect(frame.get_by_role("region", name="Is it keeping up?")).to_contain_text("MiB behind")
    expect(frame.get_by_role("region", name="Is it keeping up?")).to_contain_text("The bottleneck is the sink.")
    pipe = frame.get_by_role("region", name="The pipe")
    for stage in ("Source", "Gate", "Read", "Transform", "Sink"):
        # One of them may be called the bottleneck as well.
        expect(pipe.get_by_role("heading", name=re.compile(f"^{stage}"))).to_be_visible()
    expect(pipe.get_by_role("img", name="4 ranges in flight, 6 credits, at most 6")).to_be_visible()
    expect(pipe).to_contain_text("KiB/s")
    expect(frame.get_by_role("region", name="The gate")).to_contain_text("executor memory 65% of 4.0 GiB")


@pytest.mark.statement("M6")
def test_memory_stands_beside_the_percentage(login: Login, page: PageServer):
    """M6: one chart, one axis of time, both lines."""
    tab = login("viewer")
    orders(tab, page)
    frame = inner(tab)
    frame.wait_for_selector(".plot canvas")
    lines = frame.evaluate(
        """() => {
            const [{ chart }] = document.querySelector('[aria-label="Progress and executor memory"] .plot').drawn;
            return chart.series.slice(1).map(({ label }, index) =>
                [label, chart.data[index + 1].filter((value) => value !== null).length]);
        }"""
    )
    (progress, memory) = lines
    assert "committed" in progress[0]
    assert "executor memory" in memory[0]
    assert min(progress[1], memory[1]) > 100


def test_steering_from_the_page(login: Login, page: PageServer):
    """Confirmed, with a reason: the gate closes, history tells who and why, and a second hand takes it off again."""
    frame = orders(login("admin"), page)
    frame.get_by_role("button", name="Pause …").click()
    dialog = frame.get_by_role("dialog")
    expect(dialog).to_contain_text("4 ranges in flight will still be committed")
    dialog.get_by_role("button", name="Pause").click()
    expect(dialog).to_be_visible()  # A reason is asked for.
    dialog.get_by_label("Reason").fill("release night")
    dialog.get_by_role("button", name="Pause").click()
    expect(frame.get_by_role("button", name="Resume …")).to_be_visible(timeout=PATIENCE)
    assert page.ledger.gate(page.hydration_id).paused_by == "admin"
    expect(frame.get_by_role("region", name="The gate")).to_contain_text("paused by admin: release night")
    expect(frame.get_by_role("region", name="History")).to_contain_text("release night", timeout=PATIENCE)
    frame.get_by_role("button", name="Resume …").click()
    dialog.get_by_label("Reason").fill("over")
    dialog.get_by_role("button", name="Resume").click()
    expect(frame.get_by_role("button", name="Pause …")).to_be_visible(timeout=PATIENCE)
    assert page.ledger.gate(page.hydration_id).paused_by is None


@pytest.mark.statement("P4", "P8")
def test_a_commit_is_shown_as_it_happens(login: Login, page: PageServer, own: str):
    """P4, P8: by push under 1 s; with push turned off the page says so, and shows it within some seconds."""
    tab = login("viewer")
    tab.goto(f"{page.airflow.url}/backpressure/#/hydration/{own}")
    done, pulse = tab.get_by_role("region", name="How much is done?"), tab.locator("#pulse")
    expect(done).to_contain_text("0.0 %", timeout=PATIENCE)
    expect(pulse).to_have_text("Live, as it happens", timeout=PATIENCE)
    took = []
    for number in range(1, 8):
        tab.wait_for_timeout(700)  # The page has looked, and waits.
        taken = take(page.ledger, own)
        begun = time.monotonic()
        commit(page.ledger, plan_of(page, own), taken.seq)
        expect(done).to_contain_text(f"{5 * number}.0 %", timeout=PATIENCE)
        took.append(time.monotonic() - begun)
    print([round(1000 * each) for each in took])
    assert statistics.median(took) < 1, took
    turn(page.ledger, Switch.PUBLISH, on=False, who="test")
    try:
        expect(pulse).to_have_text("Live, every 2 s", timeout=PATIENCE)
        taken = take(page.ledger, own)
        begun = time.monotonic()
        commit(page.ledger, plan_of(page, own), taken.seq)
        expect(done).to_contain_text("40.0 %", timeout=PATIENCE)
        assert time.monotonic() - begun < 6
    finally:
        turn(page.ledger, Switch.PUBLISH, on=True, who="test")
    expect(pulse).to_have_text("Live, as it happens", timeout=PATIENCE)


def test_pause_and_resume_take_hold_within_a_second(login: Login, page: PageServer, own: str):
    """From the click to the ledger, which admits nothing from then on, and to a process that waits at the gate."""
    tab, heard = login("admin"), threading.Event()
    waiter = Waiter(hydration_id=own, ledger=page.ledger, wake=heard.set, every=True)
    page.push.enter(waiter)
    try:
        tab.goto(f"{page.airflow.url}/backpressure/#/hydration/{own}")
        dialog, took = tab.get_by_role("dialog"), []
        for act, paused in (("Pause", True), ("Resume", False)) * 2:
            tab.get_by_role("button", name=f"{act} …").click()
            dialog.get_by_label("Reason").fill("a test")
            page.push.read_gate(page.ledger, own)
            heard.clear()
            begun = time.monotonic()
            dialog.get_by_role("button", name=act, exact=True).click()
            assert heard.wait(10)
            took.append(time.monotonic() - begun)
            assert (page.ledger.gate(own).paused_by is not None) is paused
            permit = page.ledger.admit(own, lane="x", session_id=SESSION, lease_seconds=60)
            assert (permit is None) is paused
            if permit is not None:
                page.ledger.release(permit.range.plan_id, permit.range.seq, attempt=permit.range.attempt, error="")
            expect(dialog).to_be_hidden(timeout=PATIENCE)
        print([round(1000 * each) for each in took])
        assert statistics.median(took) < 1, took
    finally:
        page.push.leave(waiter)


def test_a_range_leads_to_its_log_and_is_tried_again(login: Login, page: PageServer, own: str):
    """By keyboard from the map; the log opens in Airflow's own page; the act is confirmed and stays in the history."""
    taken = take(page.ledger, own, lane=f"{LANE}/1", session_id=SESSION)
    page.ledger.release(plan_of(page, own), taken.seq, attempt=1, error="the target hung up", fail=True)
    tab = login("admin")
    frame = opened(tab, page)
    frame.get_by_role("link", name="raw.own").click()
    tile = frame.get_by_role("button", name="Range 0: failed")
    tile.focus(timeout=PATIENCE)
    tile.press("Enter")
    one = frame.get_by_role("region", name="One range")
    expect(one).to_contain_text("the target hung up", timeout=PATIENCE)
    expect(one.get_by_role("heading", name="Range 0")).to_be_focused()
    job = one.get_by_role("link", name="Session in Spark's pages")
    expect(job).to_have_attribute("href", f"http://spark.example:4040/connect/session/?id={SESSION}")
    log = one.get_by_role("link", name="Log of the task")
    there = "**/dags/orders/runs/manual__2026-01-01T06*/tasks/hydrate_orders.hydrate_ranges/mapped/1"
    expect(log).to_have_attribute("target", "_top")
    for apart in ({"button": "middle"}, {"modifiers": ["ControlOrMeta"]}):
        with tab.context.expect_page() as opening:
            log.click(**apart)  # type: ignore[arg-type]
        opening.value.wait_for_url(there)
        opening.value.close()
    log.press("Enter")
    tab.wait_for_url(there)
    tab.goto(f"{page.airflow.url}/plugin/backpressure")
    frame.get_by_role("link", name="raw.own").click()
    frame.get_by_role("button", name="Range 0: failed").click()
    one.get_by_role("button", name="Try again …").click()
    confirm(frame, "Try again", "there is room again")
    expect(one).to_contain_text("planned", timeout=PATIENCE)
    history = frame.get_by_role("region", name="History")
    expect(history).to_contain_text("there is room again", timeout=PATIENCE)
    expect(history).to_contain_text("retry range 0")
    one.get_by_role("button", name="Leave out …").click()
    expect(frame.get_by_role("dialog")).to_contain_text("The target will lack about 10 rows")
    frame.get_by_role("button", name="Cancel").click()


def test_the_queue_is_changed_by_who_may(login: Login, page: PageServer):
    frame = opened(login("admin"), page)
    queue = frame.get_by_role("group", name="Queue of spark_billing")
    queue.get_by_role("button", name="Change the queue of spark_billing").click(timeout=PATIENCE)
    frame.get_by_role("dialog").get_by_label("At once").fill("3")
    confirm(frame, "Change", "quiet hours")
    expect(queue).to_contain_text("at most 3 at once", timeout=PATIENCE)
    expect(queue).to_contain_text("Set to 3 by admin")
    assert page.ledger.get_shared(Shared.HYDRATIONS, "spark_billing") == 3
    page.ledger.share(Shared.HYDRATIONS, "spark_billing", 4, who="test")
    seen = opened(login("viewer"), page).get_by_role("group", name="Queue of spark_billing")
    expect(seen).to_be_visible(timeout=PATIENCE)
    expect(seen.get_by_role("button")).to_have_count(0)


def test_the_plan_before_it_runs(login: Login, page: PageServer):
    """What a run has foretold; and such a run is asked for, of Airflow itself."""
    frame = opened(login("admin"), page)
    frame.get_by_role("link", name="raw.visits").click()
    before = frame.get_by_role("region", name="Before it runs")
    expect(before).to_contain_text("about 18,400,000", timeout=PATIENCE)
    expect(before).to_contain_text("about 37 of at most 500,000 rows")
    expect(frame.get_by_role("region", name="The pipe")).to_be_hidden()
    before.get_by_role("button", name="Ask for its plan …").click()
    confirm(frame, "Trigger it", "how large is it")
    expect(before.get_by_role("status")).to_contain_text("Asked for", timeout=PATIENCE)
    runs = page.ask("GET", "/api/v2/dags/orders/dagRuns", user="admin")[1]["dag_runs"]
    assert [run["note"] for run in runs if run["conf"] == {"backpressure": "plan"}] == ["how large is it"]
    viewer = opened(login("viewer"), page)
    viewer.get_by_role("link", name="raw.visits").click()
    before = viewer.get_by_role("region", name="Before it runs")
    expect(before).to_contain_text("takes the right to trigger the DAG", timeout=PATIENCE)
    expect(before.get_by_role("button")).to_have_count(0)


def test_the_lag_of_each_partition_is_shown(login: Login, page: PageServer):
    frame = opened(login("viewer"), page)
    frame.get_by_role("link", name="raw.clicks").click()
    lag = frame.get_by_role("region", name="Lag by partition")
    expect(lag.get_by_role("term")).to_have_text(["0", "1", "2", "3", "4", "5"], timeout=PATIENCE)
    expect(lag.get_by_role("definition").last).to_have_text("8.5K offsets")
    expect(frame.get_by_role("region", name="Is it keeping up?")).to_contain_text("Furthest: 5 (8.5K offsets), 4")


@pytest.mark.statement("X7")
def test_a_viewer_sees_and_cannot_steer(login: Login, page: PageServer):
    """X7: no button is offered; that the API refuses as well is tested beside this."""
    frame = orders(login("viewer"), page)
    expect(frame.get_by_text("You may look, and not steer")).to_be_visible()
    expect(frame.get_by_role("button", name="Pause …")).to_be_hidden()


def test_the_map_leads_to_the_ranges_by_keyboard(login: Login, page: PageServer):
    frame = orders(login("viewer"), page)
    failed = frame.get_by_role("button", name="Range 168: failed")
    expect(failed).to_be_attached(timeout=PATIENCE)
    first = frame.locator(".tile").first
    first.focus()
    first.press("ArrowRight")
    frame.locator(".tile:focus").press("Enter")
    one = frame.get_by_role("region", name="One range")
    expect(one).to_contain_text("committed", timeout=PATIENCE)
    expect(one.get_by_role("button")).to_have_count(0)
    rows = frame.get_by_role("region", name="Ranges", exact=True).last.get_by_role("row")
    frame.get_by_label("Ranges that are").select_option("failed")
    expect(rows.nth(1)).to_contain_text("the target hung up", timeout=PATIENCE)
    expect(rows).to_have_count(2)


def test_the_tab_of_a_dag_shows_its_own(login: Login, page: PageServer):
    frame = opened(login("viewer"), page, "/dags/orders/plugin/backpressure-of-dag")
    expect(frame.get_by_role("heading", name="Hydrations of orders")).to_be_visible(timeout=PATIENCE)
    expect(frame.get_by_role("link", name="raw.orders")).to_be_visible(timeout=PATIENCE)
    expect(frame.get_by_role("link", name="raw.invoices")).to_have_count(0)


def test_it_says_so_when_there_is_nothing_and_when_nobody_answers(login: Login, page: PageServer):
    tab = login("viewer")
    tab.goto(f"{page.airflow.url}/backpressure/?dag=nobody")
    expect(tab.get_by_role("heading", name="This DAG has no hydration yet")).to_be_visible(timeout=PATIENCE)
    tab.route("**/backpressure/api/**", lambda route: route.abort())
    expect(tab.get_by_role("alert").first).to_have_text("Airflow does not answer.", timeout=PATIENCE)
    tab.unroute("**/backpressure/api/**")
    expect(tab.get_by_role("alert").first).to_be_hidden(timeout=PATIENCE)


@pytest.mark.statement("X7")
def test_names_are_shown_as_text(login: Login, page: PageServer):
    """X7: who names a table, or gives a reason, writes no element, no link and no script into the page."""
    markup = '<img src=x onerror="window.hacked = 1"><a href="https://elsewhere.example">log in</a>'
    made = registered(page.ledger, f"raw.{markup}", owner="orders")
    page.ledger.save_plan(made, make_plan(total=30), cut(3))
    commit(page.ledger, plan_of(page, made), take(page.ledger, made).seq)
    course(page.ledger, made, plan_of(page, made))
    page.ledger.pause(made, who=f"ada {markup}", why=markup)
    try:
        tab = login("viewer")
        frame = opened(tab, page)
        frame.get_by_role("link", name=markup).click()
        expect(frame.get_by_role("heading", level=1)).to_contain_text(markup, timeout=PATIENCE)
        expect(frame.get_by_text(f"paused by ada {markup}").first).to_be_visible(timeout=PATIENCE)
        inner(tab).wait_for_selector(".plot .u-label")
        legends = " ".join(inner(tab).locator(".plot .u-label").all_text_contents())
        assert markup in legends, "the charts' library shows it as it is too"
        theirs = "img[src='x'], a[href*='elsewhere'], .plot svg a, a[*|href*='elsewhere']"
        assert inner(tab).evaluate("(theirs) => [document.querySelectorAll(theirs).length, window.hacked]", theirs) == [
            0,
            None,
        ]
    finally:
        page.ledger.forget(made)


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.long)])
def test_it_can_be_heard_and_read_and_used_without_a_mouse(login: Login, page: PageServer, theme: str):
    """Names for whatever is not text, headings in order, contrast, focus that is kept, a dialog that gives it back."""
    fresh(page)
    tab = login("admin")
    tab.evaluate(f"localStorage.setItem('theme', '{theme}')")
    for path, ready in (
        ("", tab.get_by_role("link", name="raw.orders").first),
        (f"#/hydration/{page.hydration_id}/range/3", tab.locator(".plot canvas").last),
        ("?dag=nobody", tab.get_by_role("heading", name="This DAG has no hydration yet")),
    ):
        tab.goto(f"{page.airflow.url}/backpressure/{path}")
        tab.reload()
        expect(ready).to_be_visible(timeout=PATIENCE)
        expect(tab.locator("html")).to_have_attribute("data-theme", theme)
        assert faults(tab) == []
    tab.goto(f"{page.airflow.url}/backpressure/#/hydration/{page.hydration_id}")
    expect(tab.get_by_role("button", name="Pause …")).to_be_visible(timeout=PATIENCE)
    tab.evaluate("document.activeElement.blur()")
    reached = []
    for _ in range(12):
        tab.keyboard.press("Tab")
        reached.append(tab.evaluate("document.activeElement.textContent.trim() || document.activeElement.ariaLabel"))
    wanted = ["Skip to the content", "All hydrations", "Pause …", "Change …"]
    assert [each for each in reached if each in wanted][: len(wanted)] == wanted
    top = tab.get_by_role("link", name="All hydrations")
    top.focus()
    for _ in range(2):
        with tab.expect_response(re.compile(f"/api/hydrations/{page.hydration_id}$")):
            page.ledger.pause(page.hydration_id, who="ada")
            page.ledger.resume(page.hydration_id, who="ada")
    expect(top).to_be_focused()
    pause = tab.get_by_role("button", name="Pause …")
    pause.focus()
    pause.press("Enter")
    expect(tab.get_by_label("Reason")).to_be_focused()
    tab.keyboard.press("Escape")
    expect(tab.get_by_role("dialog")).to_be_hidden()
    expect(pause).to_be_focused()


@pytest.mark.parametrize("theme", [pytest.param("light", marks=pytest.mark.long), "dark"])
def test_it_follows_airflow_s_theme(login: Login, page: PageServer, pictures: Path, theme: str):
    """And a picture of each is kept, to be looked at."""
    fresh(page)
    tab = login("admin")
    tab.evaluate(f"localStorage.setItem('theme', '{theme}')")
    frame = orders(tab, page)
    expect(frame.locator("html")).to_have_attribute("data-theme", theme, timeout=PATIENCE)
    expect(frame.locator(".plot canvas").first).to_be_visible(timeout=PATIENCE)
    expect(frame.locator("#pulse")).to_have_text("Live, as it happens", timeout=PATIENCE)
    picture = tab.screenshot(path=pictures / f"{theme}.png")
    assert len(picture) > SMALLEST
    tab.goto(f"{page.airflow.url}/backpressure/#/hydration/{page.hydration_id}")
    expect(tab.locator(".plot canvas").first).to_be_visible(timeout=PATIENCE)
    tab.screenshot(path=pictures / f"{theme}-whole.png", full_page=True)
    for name in ("raw.visits", "raw.clicks"):
        tab.goto(f"{page.airflow.url}/backpressure/")
        expect(tab.get_by_role("link", name="raw.orders").first).to_be_visible(timeout=PATIENCE)
        tab.screenshot(path=pictures / f"{theme}-overview.png", full_page=True)
        tab.get_by_role("link", name=name).first.click()
        expect(tab.get_by_role("heading", name=name)).to_be_visible(timeout=PATIENCE)
        tab.screenshot(path=pictures / f"{theme}-{name.partition('.')[2]}.png", full_page=True)
