"""A real Chromium, logged in through Airflow's own form."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.support.page import PageServer

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARTEFACTS = Path(__file__).resolve().parents[2] / "artefacts"
REQUIRED = "BROWSER_TESTS"


def chromium() -> str | None:
    """Return where a Chromium is: what ``CHROMIUM`` names, or the first on the path."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The browser; a test that needs it fails without one where it is required, as in CI, and is skipped elsewhere.

    It ends with its module: Playwright keeps an event loop running in this thread, and no other test could run one.
    """
    place = chromium()
    if place is None:
        sentence = "There is no Chromium: install one (Debian: `apt-get install chromium`), or name it by CHROMIUM."
        if os.environ.get(REQUIRED) == "required":
            pytest.fail(sentence)
        pytest.skip(sentence)
    with sync_playwright() as driver:
        # In a container there is neither a sandbox for root nor a large /dev/shm.
        made = driver.chromium.launch(executable_path=place, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield made
        made.close()


@pytest.fixture
def login(browser: Browser, page: PageServer) -> Iterator[Callable[[str], Page]]:
    """Log in as a user and return the tab. It fails where the page asks another host, or a script has a fault."""
    opened: list[Page] = []
    faults: list[str] = []

    def enter(user: str) -> Page:
        tab = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
        tab.set_default_timeout(60_000)
        tab.on("pageerror", lambda error: faults.append(str(error)))
        tab.on("request", lambda request: _inside(request.url, page.airflow.url, faults))
        tab.goto(f"{page.airflow.url}/auth/login")
        tab.fill("input[name=username]", user)
        tab.fill("input[name=password]", page.airflow.password)
        tab.keyboard.press("Enter")
        tab.wait_for_url(lambda url: "/auth/login" not in url)
        opened.append(tab)
        return tab

    yield enter
    for tab in opened:
        tab.context.close()
    assert faults == []


def _inside(url: str, own: str, faults: list[str]) -> None:
    if not url.startswith((own, "data:", "blob:")):
        faults.append(f"asked {url}")


@pytest.fixture(scope="session")
def pictures() -> Path:
    """Where pictures are kept, to be looked at: the folder that ``PICTURES`` names, or ``artefacts/pictures``."""
    folder = Path(os.environ.get("PICTURES") or ARTEFACTS / "pictures")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
