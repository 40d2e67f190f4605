"""Each state of a hydration as its reader sees it, of real hydrations in a real Airflow."""

import os
import signal
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from airflow_provider_backpressure.core.default_limits import HYDRATIONS_AT_ONCE
from airflow_provider_backpressure.core.gate.cluster_queue import Shared
from tests.support.browser import log_in, opened_browser, picture_folder
from tests.system.installation import Installation, Run

pytestmark = [pytest.mark.system, pytest.mark.browser, pytest.mark.long, pytest.mark.statement("C1")]

PATIENCE = 180_000
STATES = ("slow", "planning", "throttled", "failed", "killed", "paused", "queued", "following")
LANE = "hydrate.hydrate_ranges"
CLUSTER = "spark_connect_default"
TABLE = "(l_id bigint PRIMARY KEY, amount numeric(15,2), comment text)"


@pytest.fixture(scope="module")
def tables(installation: Installation) -> None:
    """A table of each state in the source, and two in the target: one that is locked later, one with a rule."""
    with installation.open("shop") as link:
        for state in STATES:
            link.execute(f"CREATE TABLE state_{state} {TABLE}")
            link.execute(f"INSERT INTO state_{state} SELECT i, i, 'x' FROM generate_series(1, 1000) i")
            link.execute(f"ANALYZE state_{state}")
    with installation.open("warehouse") as link:
        link.execute("CREATE SCHEMA IF NOT EXISTS raw")
        for state in ("throttled", "killed"):
            link.execute(f"CREATE TABLE raw.state_{state} {TABLE}")
        link.execute(f"CREATE TABLE raw.state_failed {TABLE.replace('(15,2)', '(15,2) CHECK (amount <= 450)')}")


@pytest.fixture(scope="module")
def tab(installation: Installation) -> Iterator[Page]:
    """A person who is logged in."""
    with opened_browser() as browser:
        tab = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
        log_in(tab, installation.airflow, "admin")
        yield tab


class Seen:
    """What the page shows of the hydration of a state's DAG."""

    def __init__(self, installation: Installation, tab: Page) -> None:
        """Look at nothing yet."""
        self.installation, self.tab, self.pictures = installation, tab, picture_folder()

    def shows(self, state: str, word: str, note: str = "") -> None:
        """Wait until overview and detail show the word and the note; keep a picture of the detail."""
        target = f"raw.state_{state}"
        self.tab.goto(f"{self.installation.airflow.url}/backpressure/#/?q={target}")
        row = self.tab.get_by_role("row").filter(has=self.tab.get_by_role("link", name=target, exact=True))
        expect(row.locator(".badge")).to_have_text(word, timeout=PATIENCE)
        expect(row).to_contain_text(note, timeout=PATIENCE)
        expect(row).not_to_contain_text("#")
        row.get_by_role("link", name=target, exact=True).click()
        expect(self.tab.locator(".head .badge")).to_have_text(word, timeout=PATIENCE)
        expect(self.tab.get_by_role("main")).to_contain_text(note)
        expect(self.tab.get_by_role("main")).not_to_contain_text("the server was restored")
        self.tab.screenshot(path=self.pictures / f"real-{word.lower()}-{state}.png")


@pytest.fixture
def seen(installation: Installation, tables: None, tab: Page) -> Seen:
    return Seen(installation, tab)


def begin(installation: Installation, state: str) -> Run:
    return installation.run(f"state_{state}")


def test_a_hydration_that_is_at_work_and_ends(installation: Installation, seen: Seen) -> None:
    run = begin(installation, "slow")
    seen.shows("slow", "Running", "in flight")
    seen.shows("slow", "Verifying", "of 10 ranges")
    assert run.ends() == "success", run.states()
    seen.shows("slow", "Succeeded")
    expect(seen.tab.get_by_role("main")).not_to_contain_text("behind")


def test_a_plan_that_waits_for_the_source(installation: Installation, seen: Seen) -> None:
    with installation.open("shop") as link, link.transaction():
        link.execute("LOCK TABLE state_planning IN ACCESS EXCLUSIVE MODE")
        run = begin(installation, "planning")
        seen.shows("planning", "Planning")
    assert run.ends() == "success", run.states()


def test_a_target_that_does_not_commit(installation: Installation, seen: Seen) -> None:
    with installation.locked("raw.state_throttled"):
        run = begin(installation, "throttled")
        seen.shows("throttled", "Throttled", "by oldest uncommitted range")
    assert run.ends() == "success", run.states()


@pytest.mark.statement("C2")
def test_a_plan_that_fails(installation: Installation, seen: Seen) -> None:
    assert begin(installation, "unplanned").ends() == "failed"
    seen.shows("unplanned", "Failed", "no table public.state_unplanned")


@pytest.mark.statement("C2")
def test_a_range_that_fails(installation: Installation, seen: Seen) -> None:
    assert begin(installation, "failed").ends() == "failed"
    seen.shows("failed", "Failed", 'violates check constraint "state_failed_amount_check"')
    failure = seen.tab.get_by_role("alert", name="What has failed")
    expect(failure.get_by_role("link", name="Log of the task hydrate.hydrate_ranges, try 1")).to_be_visible()


def test_a_task_that_is_killed(installation: Installation, seen: Seen) -> None:
    with installation.locked("raw.state_killed"):
        run = begin(installation, "killed")
        seen.shows("killed", "Running", "2 ranges in flight")
        lane = installation.airflow.request("GET", f"{run.path}/taskInstances/{LANE}")
        os.kill(lane["pid"], signal.SIGKILL)
        seen.shows("killed", "Stale", "nothing heard for")


def test_a_hydration_that_is_paused(installation: Installation, seen: Seen) -> None:
    held = installation.paused("state_paused", "state_paused", "raw.state_paused")
    run = begin(installation, "paused")
    run.reaches(LANE, ["deferred"])
    seen.shows("paused", "Paused", "by ada: release night")
    installation.ledger.resume(held.id, who="ada")
    assert run.ends() == "success", run.states()


def test_a_hydration_that_waits_its_turn(installation: Installation, seen: Seen) -> None:
    installation.ledger.share(Shared.HYDRATIONS, CLUSTER, 0, who="ada")
    try:
        run = begin(installation, "queued")
        seen.shows("queued", "Queued", f"number 1 on {CLUSTER}")
    finally:
        installation.ledger.share(Shared.HYDRATIONS, CLUSTER, HYDRATIONS_AT_ONCE, who="ada")
    assert run.ends() == "success", run.states()


def test_a_source_that_is_followed(installation: Installation, seen: Seen) -> None:
    assert begin(installation, "following").ends() == "success"
    seen.shows("following", "Following", "caught up")
