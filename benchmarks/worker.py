"""The process in which a side runs, so that its CPU time is its own."""

import json
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.sides.side import Order

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 30.0
"""Seconds that a side gets to end."""


class SideFailed(Exception):
    """A side could not fulfil its order; the sentence is its own."""


class Worker:
    """One side at work on one order."""

    def __init__(self, side: str, order: Order, *, home: Path) -> None:
        """Start the process and wait until its libraries are loaded. ``home``: folder of its log and Airflow's own."""
        self._log = home / f"{side}.log"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW_")}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.sides", side],
                cwd=ROOT,
                env={**environment, "AIRFLOW_HOME": str(home / "airflow")},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.pid = self._process.pid
        self._answer(json.dumps(asdict(order)))

    def ask(self, command: str) -> dict[str, Any]:
        """Let it carry out ``open``, ``run`` or ``close``; :class:`SideFailed` where it could not."""
        answer = self._answer(command)
        if "error" in answer:
            raise SideFailed(answer["error"])
        return answer

    def end(self) -> None:
        """End the process, for good if it has to be."""
        try:
            self._process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def _answer(self, line: str) -> dict[str, Any]:
        """Send a line and return the answer to it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        text = self._process.stdout.readline()
        if not text:
            raise SideFailed(f"its process ended: {self._last_words()}")
        answer: dict[str, Any] = json.loads(text)
        return answer

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "it said nothing")
