"""Results that outlive a run, as lines of JSON with their commit: a long run goes on where it was stopped."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any


@cache
def head() -> str:
    """Return the commit at which this process asked first: a commit during a long run does not change what it ran."""
    said = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return said.stdout.strip()


class Results:
    """What a file holds that an environment variable names; nothing where it is not set."""

    def __init__(self, variable: str) -> None:
        self._path = Path(os.environ[variable]) if os.environ.get(variable) else None
        self._commit = head()

    def known(self, **fields: Any) -> list[dict[str, Any]]:
        """Return those of this commit with these fields that did not fail."""
        if self._path is None or not self._path.exists():
            return []
        wanted = {"commit": self._commit, **fields}
        lines: list[dict[str, Any]] = [json.loads(line) for line in self._path.read_text().splitlines()]
        return [line for line in lines if wanted.items() <= line.items() and line["outcome"] != "failed"]

    def add(self, **fields: Any) -> None:
        """Keep one; ``outcome`` says how it ended."""
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a") as file:
                file.write(json.dumps({"commit": self._commit, **fields}) + "\n")

    @contextmanager
    def recording(self, **fields: Any) -> Iterator[None]:
        """Keep what the block does: ``equal`` where it ends well, ``failed`` with the error's first line where not."""
        try:
            yield
        except BaseException as error:
            self.add(**fields, outcome="failed", error=f"{type(error).__name__}: {str(error)[:200]}")
            raise
        self.add(**fields, outcome="equal")
