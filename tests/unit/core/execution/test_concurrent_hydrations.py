"""The pool that works on many hydrations: how many at once, who waits for whom, and who fails alone."""

import threading
from collections import Counter
from dataclasses import dataclass, field

import pytest

from airflow_provider_backpressure.core.execution.concurrent_hydrations import WorkPool
from airflow_provider_backpressure.core.poll_policy import SystemClock
from airflow_provider_backpressure.exceptions import SourceRefused

CLOSED, QUEUED, DONE = "closed", "queued", "done"


def pool(work, **values) -> WorkPool[str, str]:
    return WorkPool(
        work=work,
        must_wait=lambda result: result in (CLOSED, QUEUED),
        blocks_others=lambda result: result == QUEUED,
        pause=0.01,
        **values,
    )


def test_no_more_at_once_than_may_be():
    """The number is asked for again and again: it may change meanwhile."""
    lock, now, highest = threading.Lock(), Counter(), []
    meeting = threading.Barrier(3)

    def work(item: str) -> str:
        with lock:
            now["running"] += 1
            highest.append(now["running"])
        meeting.wait(timeout=10)
        with lock:
            now["running"] -= 1
        return DONE

    found = pool(work, most=lambda: 3).run(map(str, range(9)))
    assert found.done == {str(number): DONE for number in range(9)}
    assert max(highest) == 3


def test_one_that_fails_stops_alone():
    def work(item: str) -> str:
        if item == "b":
            raise SourceRefused("There is no table b.")
        return DONE

    ended = {}
    found = pool(work, on_end=ended.__setitem__).run("abc")
    assert found.done == {"a": DONE, "c": DONE}
    assert {item: str(error) for item, error in found.failed.items()} == {"b": "There is no table b."}
    assert set(ended) == {"a", "b", "c"}
    assert not found.waiting


def test_one_that_has_to_wait_is_tried_again_after_the_others():
    tries: Counter[str] = Counter()

    def work(item: str) -> str:
        tries[item] += 1
        return CLOSED if item == "a" and tries[item] < 3 else DONE

    found = pool(work, most=lambda: 1, inline_wait=5.0).run("abc")
    assert set(found.done) == {"a", "b", "c"}
    assert (tries["a"], tries["b"], tries["c"]) == (3, 1, 1)
    assert next(iter(found.done)) == "b"


def test_what_stays_closed_is_given_back():
    found = pool(lambda item: CLOSED if item in "ad" else DONE, inline_wait=0.05).run("abcd")
    assert set(found.done) == {"b", "c"}
    assert found.waiting == {"a": CLOSED, "d": CLOSED}


def test_nobody_takes_a_place_behind_one_that_waits_for_the_queue():
    """So that another DAG's hydration does not wait for all tables of this one."""
    asked = []

    def work(item: str) -> str:
        asked.append(item)
        return QUEUED

    found = pool(work, most=lambda: 2, inline_wait=0.05).run("abcdef")
    assert set(asked) <= {"a", "b"}
    assert set([*found.waiting][:2]) == {"a", "b"}
    assert {item for item, result in found.waiting.items() if result is None} == set("cdef")


@dataclass
class EndingClock(SystemClock):
    """A clock that is over after some looks."""

    left: int
    over: list[str] = field(default_factory=list)

    def monotonic(self) -> float:
        self.left -= 1
        if self.left < 0:
            raise TimeoutError("the task is over")
        return super().monotonic()


def test_a_task_that_ends_lets_its_work_end_first():
    """Nothing is left behind that still works when the error leaves."""
    over, ended = threading.Event(), []

    def work(item: str) -> str:
        over.wait(10)
        ended.append(item)
        return DONE

    with pytest.raises(TimeoutError):
        pool(work, most=lambda: 2, clock=EndingClock(3), cancel=over.set).run("abcd")
    assert set(ended) == {"a", "b"}
