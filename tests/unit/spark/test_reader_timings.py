"""F4: reader and writer of one Spark task meet as two processes do, and whoever is killed leaves nothing behind."""

import contextlib
import multiprocessing
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from airflow_provider_backpressure.core.snapshot.messages import SliceResult
from airflow_provider_backpressure.core.stage_metrics import Ahead, Stage, State, flow_of
from airflow_provider_backpressure.spark import reader_timings as meter
from airflow_provider_backpressure.spark.reader_timings import ReaderTimings, Slates, time_items

pytestmark = pytest.mark.statement("F4")


@pytest.fixture
def name() -> str:
    """A place to meet of one's own."""
    return f"backpressure-test-{uuid.uuid4().hex}"


def until(slates: Slates, found: Callable[[Ahead], bool]) -> Ahead:
    """Look until it is found; fail after a deadline."""
    deadline = time.monotonic() + 20.0
    while not found(ahead := slates.look(time.monotonic())):
        assert time.monotonic() < deadline, ahead
        time.sleep(0.005)
    return ahead


def rows(line: Connection) -> Iterator[int]:
    """Read whenever one is told to."""
    while line.recv():
        yield 1


def reading(name: str, index: int, line: Connection) -> None:
    """A reader's process: it reads for as long as it is told to, and then hands over for as long."""
    for _ in time_items(rows(line), ReaderTimings(name, index)):
        line.send("handed over")
        line.recv()
    line.send("ended")


@contextlib.contextmanager
def reader(name: str, index: int) -> Iterator[tuple[Connection, multiprocessing.process.BaseProcess]]:
    """A reader of a slice in a process of its own."""
    spawning = multiprocessing.get_context("spawn")
    here, there = spawning.Pipe()
    process = spawning.Process(target=reading, args=(name, index, there), daemon=True)
    process.start()
    try:
        yield here, process
    finally:
        process.kill()
        process.join()


def test_the_writer_sees_another_process_as_of_now(name: str):
    """Also one that began before it listened; and when it is killed, what it did stays told."""
    with reader(name, 0) as (line, process), Slates(name, 1) as slates:
        assert slates.look(time.monotonic()) == Ahead()
        assert not slates.complete
        line.send(True)
        assert line.recv() == "handed over"
        first = until(slates, lambda ahead: ahead.held > 0.05)
        assert slates.complete
        assert first.begun is not None
        assert first.busy_since is None
        line.send(True)
        second = until(slates, lambda ahead: ahead.busy_since is not None and ahead.busy > first.busy + 0.05)
        assert second.held >= first.held
        process.kill()
        process.join()
        assert until(slates, lambda ahead: ahead.busy > second.busy).begun == first.begun


def test_slices_one_after_another_are_counted_together(name: str):
    """The last look of each counts on after its process has gone."""
    with Slates(name, 2) as slates:
        spent = Ahead()
        for index in range(2):
            with reader(name, index) as (line, process):
                line.send(True)
                line.recv()
                until(slates, lambda ahead, before=spent.held: ahead.held > before + 0.02)  # type: ignore[misc]
                line.send(True)
                line.send(False)
                assert line.recv() == "ended"
                process.join()
            spent = until(slates, lambda ahead: ahead.busy_since is None)
            assert spent == slates.look(time.monotonic()), "nothing runs on"
            assert slates.complete is (index == 1)
        assert spent.held > 0.04


def test_nothing_is_left_on_disk_or_open(name: str):
    """Neither by who ends nor by who does not: the place to meet has no file, and the memory no name."""
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with Slates(name, 1) as slates:
            slate = ReaderTimings(name, 0)
            slate.to(State.BACKPRESSURED)
            assert slates.look(time.monotonic()).begun is not None
            slate.end()
    ReaderTimings(name, 0).end()
    assert len(os.listdir("/proc/self/fd")) == before
    assert name not in Path("/proc/net/unix").read_text()


def test_a_reader_nobody_waits_for_reads_all_the_same(name: str):
    """Behind a shuffle there is no writer; elsewhere no place to meet."""
    assert list(time_items([1, 2, 3], ReaderTimings(name, 0))) == [1, 2, 3]
    assert list(time_items([1, 2, 3], ReaderTimings(None, 0))) == [1, 2, 3]
    with Slates(None, 1) as slates:
        assert slates.look(time.monotonic()) == Ahead()
        assert not slates.complete


def broken() -> Iterator[int]:
    """Breaks off."""
    yield 1
    raise LookupError("gone")


def test_a_reader_that_fails_says_so_itself(name: str):
    with Slates(name, 1) as slates:
        with pytest.raises(LookupError, match="gone"):
            list(time_items(broken(), ReaderTimings(name, 0)))
        ahead = slates.look(time.monotonic())
        assert ahead == slates.look(time.monotonic()), "nothing runs on"
        assert ahead.begun is not None


def test_a_place_that_is_taken_costs_the_figures_and_nothing_else(name: str):
    with Slates(name, 1), Slates(name, 1) as second:
        ReaderTimings(name, 0)
        assert second.look(time.monotonic()) == Ahead()
        assert not second.complete


@pytest.mark.parametrize("message", [b"", b"nonsense", b"\0" * 8])
def test_a_stranger_without_memory_is_not_counted(name: str, message: bytes):
    with Slates(name, 1) as slates:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.connect(f"\0{name}")
            line.send(message)
        slates.look(time.monotonic())
        assert not slates.complete


def test_clocks_that_break_do_not_break_the_range(name: str, monkeypatch: pytest.MonkeyPatch):
    """Figures are not worth a range: without memory to write on, reader and transform are told together."""

    def full(*_: object) -> None:
        raise OSError("no room")

    monkeypatch.setattr(os, "memfd_create", full)
    flow = worked(name)
    assert set(flow) == {Stage.READ_AND_TRANSFORM, Stage.SINK}


def worked(name: str) -> dict[Stage, object]:
    """Write two batches of a reader in this same thread."""
    with Slates(name, 1) as slates:
        batches = time_items(iter([1, 2]), ReaderTimings(name, 0))

        def work() -> SliceResult:
            assert list(meter.time_handovers(batches)) == [1, 2]
            return SliceResult(slice_id="0.0", rows=2, bytes=2, checksum="")

        return dict(flow_of(meter.time_slice(work, meter.Across(slates)).times))


def test_the_writer_tells_all_three(name: str):
    """F4: each of them, and together the same time."""
    flow = worked(name)
    assert list(flow) == [Stage.READ, Stage.TRANSFORM, Stage.SINK]
    seconds = [spent.seconds for spent in flow.values()]  # type: ignore[attr-defined]
    assert max(seconds) - min(seconds) < 0.02


def test_telling_costs_microseconds(name: str):
    """A batch is read and written in milliseconds: two switches and two looks are nothing beside it."""
    with Slates(name, 1) as slates:
        slate = ReaderTimings(name, 0)
        begun = time.perf_counter()
        for _ in range(1_000):
            slate.to(State.BACKPRESSURED)
            slate.to(State.BUSY)
            slates.look(time.monotonic())
            slates.look(time.monotonic())
        assert (time.perf_counter() - begun) / 1_000 < 0.001
        slate.end()
