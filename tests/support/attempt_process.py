"""An attempt at a slice in a process of its own, which a test may kill or freeze; imports little, to start soon."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.spark_messages import RangeSpec, Slice, SliceResult
from airflow_provider_backpressure.exceptions import BackpressureError
from tests.support.waiting import until

Attempt = Callable[[RangeSpec, Slice, Endpoint, Endpoint], SliceResult]


@contextmanager
def in_process(run: Attempt, spec: RangeSpec, source: Endpoint, sink: Endpoint) -> Iterator["Child"]:
    """Make an attempt at a range of one slice in a process of its own, which is killed at the end of the block."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_attempt, args=(there, run, spec, source, sink))
    process.start()
    there.close()
    try:
        yield Child(process=process, pipe=here)
    finally:
        process.kill()
        process.join()
        here.close()


@dataclass(frozen=True, kw_only=True)
class Child:
    """A process with one attempt."""

    process: Any
    pipe: Any

    def await_frozen(self) -> None:
        """Wait until it has stopped itself."""
        path = Path(f"/proc/{self.process.pid}/stat")
        until(lambda: path.read_text().rpartition(")")[2].split()[0] == "T", timeout=60)

    def freeze(self) -> None:
        """Stop it where it stands, as a host does that swaps or a virtual machine that is moved."""
        os.kill(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        os.kill(self.process.pid, signal.SIGCONT)

    def outcome(self, timeout: float = 60.0) -> SliceResult | BackpressureError:
        """Return what it returned or raised."""
        assert self.pipe.poll(timeout), "the attempt did not end in time"
        found: SliceResult | BackpressureError = self.pipe.recv()
        return found


def _attempt(pipe: Any, run: Attempt, spec: RangeSpec, source: Endpoint, sink: Endpoint) -> None:
    try:
        pipe.send(run(spec, spec.slices[0], source, sink))
    except BackpressureError as error:
        pipe.send(error)
