"""Processes that this project started, found again with all they started in turn, whatever became of the starter."""

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path


def _facts(pid: int) -> tuple[str, int, int, str] | None:
    """Return state, parent, session and start time (in ticks since boot), or None where there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return fields[0], int(fields[1]), int(fields[3]), fields[19]


def start(
    command: Sequence[str], *, pid_file: Path, log: Path, environment: Mapping[str, str], cwd: Path
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own and note its pid and start time."""
    with log.open("ab") as sink:
        process = subprocess.Popen(
            command,
            env=environment,
            cwd=cwd,
            stdout=sink,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    facts = _facts(process.pid)
    pid_file.write_text(f"{process.pid} {facts[3] if facts else 0}")
    return process


def find(pid_file: Path) -> list[int]:
    """Return the living processes of the session that a pid file's process leads or led, and their descendants."""
    try:
        leader, started = pid_file.read_text().split()
    except (OSError, ValueError):
        return []
    every = {int(folder.name): _facts(int(folder.name)) for folder in Path("/proc").iterdir() if folder.name.isdigit()}
    living = {pid: facts for pid, facts in every.items() if facts and facts[0] != "Z" and pid != os.getpid()}
    head = living.get(int(leader))
    # A pid that was given to another process since has another start time, and its session is not ours either.
    if head is not None and head[3] != started:
        return []
    found = {pid for pid, facts in living.items() if facts[2] == int(leader)}
    while more := {pid for pid, facts in living.items() if facts[1] in found and pid not in found}:
        found |= more
    return sorted(found)


def leader(pid_file: Path) -> list[int]:
    """Return the pid file's own process, if it lives."""
    try:
        pid = int(pid_file.read_text().split()[0])
    except (OSError, ValueError):
        return []
    return [pid] if pid in find(pid_file) else []


def children(pid_file: Path, word: str) -> list[int]:
    """Return the living processes with this word on their command line that the pid file's process itself started."""
    return [pid for parent in leader(pid_file) for pid in children_of(parent, rf"(?:^|\s){re.escape(word)}(?:\s|$)")]


def children_of(pid: int, pattern: str) -> list[int]:
    """Return the living processes that a process itself started, with this on their command line."""
    every = (int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit())
    return [
        child for child in every if (_facts(child) or ("", 0))[1] == pid and re.search(pattern, " ".join(_words(child)))
    ]


def _words(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ").split()
    except OSError:
        return []


def end(pid_file: Path, *, patience: float = 6.0) -> int:
    """End them all, gently and then for good; return how many there were."""
    ours = find(pid_file)
    for wave in (signal.SIGTERM, signal.SIGKILL):
        # What was seen once is ended even where its parent has gone meanwhile and the session no longer shows it.
        for pid in sorted({*ours, *find(pid_file)}):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, wave)
        deadline = time.monotonic() + patience
        while any(_alive(pid) for pid in ours) and time.monotonic() < deadline:
            time.sleep(0.05)
    pid_file.unlink(missing_ok=True)
    return len(ours)


def _alive(pid: int) -> bool:
    facts = _facts(pid)
    return facts is not None and facts[0] != "Z"
