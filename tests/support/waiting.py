"""Waiting for a condition, and work beside a test."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


def late() -> str:
    """Return what is said of a condition of which nothing else is known."""
    return "the condition did not come true in time"


def until(
    found: Callable[[], T], timeout: float = 30.0, *, pause: float = 0.02, told: Callable[[], object] = late
) -> T:
    """Return what ``found`` gives as soon as it is true; fail after ``timeout`` seconds with what ``told`` gives."""
    deadline = time.monotonic() + timeout
    while not (value := found()):
        assert time.monotonic() < deadline, told()
        time.sleep(pause)
    return value


@contextmanager
def beside(work: Callable[[threading.Event], object]) -> Iterator[None]:
    """Do something in a thread while the block lasts. Its end sets the event, and waits for the work to be done.

    What goes wrong in the thread is raised at the end of the block, or told with what went wrong there.
    """
    over = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(work, over)
        try:
            yield
        except BaseException as error:
            over.set()
            if beside := done.exception():
                error.add_note(f"Beside it: {beside!r}")
            raise
        over.set()
        done.result()
