"""How long a commit is tried again that another one has overtaken."""

import random
import time
from collections.abc import Iterator

SECONDS = 300.0
"""Longest; ranges in flight are few, and each commit of another is a step ahead."""
_FIRST, _MOST = 0.02, 2.0


def tries() -> Iterator[int]:
    """Yield numbers from 0 on, with growing and uneven pauses between them, until the time is up."""
    deadline, pause, number = time.monotonic() + SECONDS, _FIRST, 0
    while time.monotonic() < deadline:
        yield number
        number += 1
        time.sleep(random.uniform(0, pause))
        pause = min(pause * 2, _MOST)
