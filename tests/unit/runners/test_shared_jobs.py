"""Pieces of work that share jobs while every slot is taken."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_provider_backpressure.runners.shared_jobs import SharedJobs


class Cluster:
    """Runs jobs that last until they are let go, and notes them."""

    def __init__(self, slots: int | None) -> None:
        self.pool = ThreadPoolExecutor(16)
        self.jobs: list[list[int]] = []
        self.begun, self.over = threading.Semaphore(0), threading.Event()
        self.shared: SharedJobs[int, int] = SharedJobs(run=self.run, submit=self.pool.submit, slots=lambda: slots)

    def run(self, pieces: Sequence[int]) -> list[int | BaseException]:
        self.jobs.append([*pieces])
        self.begun.release()
        assert self.over.wait(10)
        if 13 in pieces:
            raise ValueError("13 is refused")
        return [ValueError("7 is bad") if piece == 7 else piece * piece for piece in pieces]

    def wait_begun(self, jobs: int) -> None:
        for _ in range(jobs):
            assert self.begun.acquire(timeout=10)


def test_pieces_have_jobs_of_their_own_while_slots_are_free_and_share_one_when_they_are_not() -> None:
    cluster = Cluster(slots=2)
    futures = [cluster.shared.ask(number) for number in range(6)]
    cluster.wait_begun(2)
    assert cluster.jobs == [[0], [1]]
    cluster.over.set()
    assert [future.result(10) for future in futures] == [0, 1, 4, 9, 16, 25]
    assert [2, 3, 4, 5] in cluster.jobs


def test_a_piece_that_fails_fails_no_other_one_of_its_job() -> None:
    cluster = Cluster(slots=1)
    futures = [cluster.shared.ask(number) for number in (1, 12, 13, 14)]
    cluster.over.set()
    assert [futures[n].result(10) for n in (0, 1, 3)] == [1, 144, 196]
    with pytest.raises(ValueError, match="13 is refused"):
        futures[2].result(10)


def test_what_has_not_begun_is_cancelled_at_the_end() -> None:
    cluster = Cluster(slots=1)
    first, second = cluster.shared.ask(1), cluster.shared.ask(2)
    cluster.wait_begun(1)
    cluster.shared.close()
    cluster.over.set()
    assert first.result(10) == 1
    assert second.cancelled()


@pytest.mark.statement("L3", "L4")
def test_an_error_that_a_job_returns_for_one_piece_is_the_piece_s_own() -> None:
    """Nothing is repeated for it."""
    cluster = Cluster(slots=1)
    futures = [cluster.shared.ask(number) for number in (1, 6, 7, 8)]
    cluster.over.set()
    assert [futures[n].result(10) for n in (0, 1, 3)] == [1, 36, 64]
    with pytest.raises(ValueError, match="7 is bad"):
        futures[2].result(10)
    assert cluster.jobs == [[1], [6, 7, 8]]


def test_a_piece_that_was_ended_in_its_job_is_not_repeated() -> None:
    """It would run on behind the lane that has settled it; those beside it are repeated."""
    cluster = Cluster(slots=1)
    first, ended, other = (cluster.shared.ask(number) for number in (1, 13, 2))
    cluster.wait_begun(1)
    first.add_done_callback(lambda _: cluster.over.clear())
    cluster.over.set()
    cluster.wait_begun(1)
    cluster.shared.end(ended)
    cluster.over.set()
    assert other.result(10) == 4
    with pytest.raises(ValueError, match="13 is refused"):
        ended.result(10)
    assert cluster.jobs == [[1], [13, 2], [2]]


def test_a_piece_that_was_ended_before_its_job_has_none() -> None:
    cluster = Cluster(slots=1)
    first, second, third = (cluster.shared.ask(number) for number in (1, 2, 3))
    cluster.wait_begun(1)
    cluster.shared.end(second)
    cluster.over.set()
    assert (first.result(10), third.result(10)) == (1, 9)
    assert second.cancelled()
    assert cluster.jobs == [[1], [3]]


def test_what_ended_with_its_session_is_not_repeated() -> None:
    """The ledger has the session by which such a range is found: another one would not be."""
    cluster = Cluster(slots=1)
    cluster.shared.repeats = lambda error: not isinstance(error, ValueError)
    futures = [cluster.shared.ask(number) for number in (1, 12, 13)]
    cluster.over.set()
    assert futures[0].result(10) == 1
    for future in futures[1:]:
        with pytest.raises(ValueError, match="13 is refused"):
            future.result(10)
    assert cluster.jobs == [[1], [12, 13]]
