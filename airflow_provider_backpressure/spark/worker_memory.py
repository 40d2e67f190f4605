"""The most memory that this Python worker has used for a slice, as the kernel counts it."""

import contextlib
import resource
from pathlib import Path

_RESET_PEAK = "5"


def reset_peak() -> None:
    """Begin a new peak: Spark reuses worker processes, and the peak of an earlier slice is not this one's.

    Where the kernel does not allow it the peak stays that of the process's life.
    """
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text(_RESET_PEAK)


def peak_bytes() -> int:
    """Return the peak since :func:`reset_peak`, in bytes."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
