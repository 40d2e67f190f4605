"""A real Chromium, logged in through Airflow's own form."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from tests.support.browser import log_in, opened_browser, picture_folder
from tests.support.page import PageServer


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The browser of a module."""
    with opened_browser() as made:
        yield made


@pytest.fixture
def login(browser: Browser, page: PageServer) -> Iterator[Callable[[str], Page]]:
    """Log in as a user and return the tab. It fails where the page asks another host, or a script has a fault."""
    opened: list[Page] = []
    faults: list[str] = []

    def enter(user: str) -> Page:
        tab = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
        tab.on("pageerror", lambda error: faults.append(str(error)))
        tab.on("console", lambda said: "Content Security Policy" in said.text and faults.append(said.text))
        tab.on("request", lambda request: _inside(request.url, page.airflow.url, faults))
        log_in(tab, page.airflow, user)
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
    """Where pictures are kept."""
    return picture_folder()
