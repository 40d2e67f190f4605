"""Our own code inside the function of a job, for a Python worker that has none of it.

Files of a session would do the same, but Spark starts a daemon of Python workers for each session that has any, and
keeps it for as long as the executor lives, also when the session is long over (SPARK-54055, seen on 4.1.3). So all
sessions share the workers, and code comes with the job: a worker reads it once, and takes this job's where it has
served another release before.

What is under ``_Sources`` and ``_take`` reaches the worker by value: it may use nothing else of this package.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import json
import pickle
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from pyspark import cloudpickle

Function = Callable[[Any], Any]

_PACKAGE = __name__.partition(".")[0]
_cargo: ContextVar[tuple[str, bytes] | None] = ContextVar("cargo", default=None)


@contextmanager
def carry_code(digest: str, packed: bytes) -> Iterator[None]:
    """Let the functions of jobs that this thread makes meanwhile carry this code.

    ``packed``: ``{"package/module.py": source}`` as zlib-compressed JSON; ``digest`` distinguishes two of them.
    """
    token = _cargo.set((digest, packed))
    try:
        yield
    finally:
        _cargo.reset(token)


def aboard(function: Function) -> Function:
    """Return the function with the code that it needs, if any is carried: a worker unpacks that code first."""
    cargo = _cargo.get()
    if cargo is None:
        return function
    digest, packed = cargo
    pickled = cloudpickle.dumps(function)  # type: ignore[no-untyped-call]

    def run(batches: Any) -> Any:
        _take(digest, packed)
        return pickle.loads(pickled)(batches)

    run.__name__ = function.__name__
    return run


class _Sources(importlib.abc.MetaPathFinder, importlib.abc.ExecutionLoader):
    """Finds our modules in texts that came along: nothing is left on the executor's disk."""

    def __init__(self, digest: str, packed: bytes) -> None:
        self.backpressure_digest = digest
        self._texts = json.loads(zlib.decompress(packed))

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        """Return where a shipped module of this package is; ``None`` for any other."""
        place = fullname.replace(".", "/")
        known = f"{place}.py" in self._texts or f"{place}/__init__.py" in self._texts
        return importlib.util.spec_from_loader(fullname, self) if known else None

    def is_package(self, fullname: str) -> bool:
        """Whether it has modules below it."""
        return fullname.replace(".", "/") + "/__init__.py" in self._texts

    def get_filename(self, fullname: str) -> str:
        """Return what a trace names; there is no such file."""
        return f"/{self.backpressure_digest}/{self._file(fullname)}"

    def get_source(self, fullname: str) -> str:
        """Return the text of a module."""
        return str(self._texts[self._file(fullname)])

    def _file(self, fullname: str) -> str:
        place = fullname.replace(".", "/")
        return f"{place}/__init__.py" if self.is_package(fullname) else f"{place}.py"


def _take(digest: str, packed: bytes) -> None:
    """Make this code the one that is imported; modules of another release, or of an installed one, are forgotten."""
    if any(getattr(finder, "backpressure_digest", None) == digest for finder in sys.meta_path):
        return
    others = [finder for finder in sys.meta_path if not hasattr(finder, "backpressure_digest")]
    sys.meta_path[:] = [_Sources(digest, packed), *others]
    for name in [name for name in sys.modules if name == _PACKAGE or name.startswith(f"{_PACKAGE}.")]:
        del sys.modules[name]


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
