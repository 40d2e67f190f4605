"""A real Chromium, and who is logged in to Airflow in it."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from dev.airflow import Airflow

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARTEFACTS = Path(__file__).resolve().parents[2] / "artefacts"
REQUIRED = "BROWSER_TESTS"


def chromium() -> str | None:
    """Return where a Chromium is: what ``CHROMIUM`` names, or the first on the path."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def opened_browser() -> Iterator[Browser]:
    """Open a browser; without one the test fails where it is required, as in CI, and is skipped elsewhere.

    Close it with the module: Playwright keeps an event loop running in this thread, and no other test could run one.
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


def log_in(tab: Page, airflow: Airflow, user: str) -> None:
    """Log in through Airflow's own form."""
    tab.set_default_timeout(60_000)
    tab.goto(f"{airflow.url}/auth/login")
    tab.fill("input[name=username]", user)
    tab.fill("input[name=password]", airflow.password)
    tab.keyboard.press("Enter")
    tab.wait_for_url(lambda url: "/auth/login" not in url)


def picture_folder() -> Path:
    """Return where pictures are kept, to be looked at: what ``PICTURES`` names, or ``artefacts/pictures``."""
    folder = Path(os.environ.get("PICTURES") or ARTEFACTS / "pictures")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
