"""What axe finds on a page: for those who hear it, or see little."""

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page


def faults(tab: Page) -> list[str]:
    """Return each rule of axe that the page breaks, with its weight and where."""
    found = Axe().run(tab).response["violations"]
    return [f"{rule['impact']}: {rule['help']} ({node['html'][:120]})" for rule in found for node in rule["nodes"]]
