"""Calls that are due later, by one thread of the process."""

import multiprocessing
import threading
import time

import pytest

from airflow_provider_backpressure.core import delayed_calls as module
from airflow_provider_backpressure.core.delayed_calls import Timers, start_timer
from tests.support.waiting import until

NAME = "backpressure-timers"


def list_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == NAME]


def test_calls_are_made_when_they_are_due() -> None:
    """In the order of their times, whatever the order in which they were asked for."""
    timers, made = Timers(), []
    for seconds in (0.3, 0.1, 0.2):
        timers.set(seconds, lambda seconds=seconds: made.append(seconds))  # type: ignore[misc]
    until(lambda: len(made) == 3)
    assert made == [0.1, 0.2, 0.3]


def test_one_thread_waits_for_all_and_ends_with_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    before, timers = len(list_threads()), Timers()
    every = [timers.set(60 + number, lambda: None) for number in range(100)]
    assert len(list_threads()) == before + 1
    for timer in every:
        timer.cancel()
    # The next one wakes the thread up, which finds nothing else.
    timers.set(0.0, lambda: None)
    until(lambda: len(list_threads()) == before)
    made = threading.Event()
    timers.set(0.0, made.set)
    assert made.wait(10)


def test_what_was_called_off_never_comes() -> None:
    timers, made, over = Timers(), [], threading.Event()
    timer = timers.set(0.1, lambda: made.append(1))
    timers.set(0.3, over.set)
    timer.cancel()
    assert over.wait(10)
    assert made == []


def test_calling_off_waits_for_a_call_that_is_under_way() -> None:
    """What it works on may be closed after that."""
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        may_end.wait(10)
        ended.set()

    timer = Timers().set(0.0, work)
    assert begun.wait(10)
    threading.Timer(0.2, may_end.set).start()
    timer.cancel()
    assert ended.is_set()


def test_a_call_that_fails_keeps_no_other_one_from_coming(caplog: pytest.LogCaptureFixture) -> None:
    timers, made = Timers(), threading.Event()
    timers.set(0.0, lambda: 1 // 0)
    timers.set(0.1, made.set)
    assert made.wait(10)
    assert "What was due has failed" in caplog.text


def test_a_forked_child_has_timers_of_its_own() -> None:
    """The parent's thread is not there, and its lock may be held."""
    kept = start_timer(60.0, lambda: None)
    fork = multiprocessing.get_context("fork")
    made = fork.Event()

    def work() -> None:
        start_timer(0.0, made.set)
        time.sleep(10)

    with module._timers._changed:
        child = fork.Process(target=work, daemon=True)
        child.start()
    try:
        assert made.wait(10)
    finally:
        child.kill()
        child.join()
        kept.cancel()
