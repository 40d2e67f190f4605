"""A real Chromium, logged in through Airflow's own form."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page

from tests.support.browser import log_in, opened_browser, picture_folder
from tests.support.page import PageServer

Contexts = dict[str, BrowserContext]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The browser of a module."""
    with opened_browser() as made:
        yield made


@pytest.fixture(scope="module")
def contexts(browser: Browser) -> Contexts:
    """Return who is logged in. Their tabs share Airflow's scripts, which a new context would load again."""
    return {}


@pytest.fixture
def login(browser: Browser, page: PageServer, contexts: Contexts) -> Iterator[Callable[[str], Page]]:
    """Give a new tab of a user. It fails where the page asks another host, or a script has a fault."""
    opened: list[Page] = []
    faults: list[str] = []

    def enter(user: str) -> Page:
        known = contexts.get(user)
        tab = (known or browser.new_context(viewport={"width": 1440, "height": 900})).new_page()
        tab.set_default_timeout(60_000)
        tab.on("pageerror", lambda error: faults.append(str(error)))
        tab.on("console", lambda said: _is_fault(said) and faults.append(said.text))
        tab.on("request", lambda request: _inside(request.url, page.airflow.url, faults))
        opened.append(tab)
        if known is None:
            log_in(tab, page.airflow, user)
            contexts[user] = tab.context
        else:
            tab.goto(page.airflow.url, wait_until="commit")
        return tab

    yield enter
    for tab in opened:
        tab.evaluate("localStorage.clear()")
        for each in tab.context.pages:
            each.close()
    assert faults == []


def _is_fault(said: ConsoleMessage) -> bool:
    """Whether a script of ours has failed, or the browser did not allow it."""
    ours = "/backpressure/" in said.location.get("url", "") and "Failed to load resource" not in said.text
    return "Content Security Policy" in said.text or (said.type == "error" and ours)


def _inside(url: str, own: str, faults: list[str]) -> None:
    if not url.startswith((own, "data:", "blob:")):
        faults.append(f"asked {url}")


@pytest.fixture(scope="session")
def pictures() -> Path:
    """Where pictures are kept."""
    return picture_folder()
