"""What a page must have for those who hear it, or see little: looked for in the browser itself."""

import re
from pathlib import Path

from playwright.sync_api import Page

NAMED = (
    "button|link|textbox|spinbutton|combobox|radio|checkbox|img|progressbar|meter|dialog|group|navigation|region|table"
)
_NAMELESS = re.compile(rf"^\s*- (?:{NAMED})(?:\s*\[[^\]]*\])*:?$", re.MULTILINE)
_FAULTS = (Path(__file__).parent / "audit.js").read_text()


def faults(tab: Page) -> list[str]:
    """Return what has no name though it needs one, headings that skip a level, and text of too little contrast."""
    nameless = [line.strip() for line in _NAMELESS.findall(tab.locator("body").aria_snapshot())]
    return [*(f"{line} has no name" for line in nameless), *tab.evaluate(_FAULTS)]
