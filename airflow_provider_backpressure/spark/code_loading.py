"""Our own code inside the function of a job, for a Python worker that has none of it.

Files of a session would do the same, but Spark starts a daemon of Python workers for each session that has any, and
keeps it for as long as the executor lives, also when the session is long over (SPARK-54055, seen on 4.1.3). So all
sessions share the workers, and code comes with the job: a worker reads it once, and takes this job's where it has
served another release before.

What is under ``_Sources`` and all below it reaches the worker by value: it may use nothing else of this package.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import io
import json
import pickle
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from pyspark import cloudpickle

Function = Callable[[Any], Any]

_PACKAGE = __name__.partition(".")[0]
Cargo = tuple[str, str, bytes]
"""A package's name, what distinguishes two versions of it, and its texts: zlib-compressed JSON of them by path."""
_cargo: ContextVar[tuple[Cargo, ...]] = ContextVar("cargo", default=())


@contextmanager
def carry_code(digest: str, packed: bytes, others: Sequence[Cargo] = ()) -> Iterator[None]:
    """Let the functions of jobs that this thread makes meanwhile carry our code, and other packages in pure Python.

    ``packed``: ``{"package/module.py": source}`` as zlib-compressed JSON; ``digest`` distinguishes two of them.
    """
    token = _cargo.set(((_PACKAGE, digest, packed), *others))
    try:
        yield
    finally:
        _cargo.reset(token)


def aboard(function: Function) -> Function:
    """Return the function with the code that it needs, if any is carried: a worker unpacks that code first."""
    cargo = _cargo.get()
    if not cargo:
        return function
    pickled = cloudpickle.dumps(function)  # type: ignore[no-untyped-call]

    def run(batches: Any) -> Any:
        for package, digest, packed in cargo:
            _take(package, digest, packed)
        return pickle.loads(pickled)(batches)

    run.__name__ = function.__name__
    return run


class _Sources(importlib.abc.MetaPathFinder, importlib.abc.ExecutionLoader):
    """Finds a package's modules in texts that came along: nothing is left on the executor's disk."""

    def __init__(self, package: str, digest: str, packed: bytes) -> None:
        self.backpressure_package, self.backpressure_digest = package, digest
        self._texts = json.loads(zlib.decompress(packed))

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        """Return where a shipped module is; ``None`` for any other."""
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

    def get_resource_reader(self, fullname: str) -> Any:
        """Return what reads the texts beside a package's modules."""
        return _Resources(fullname.replace(".", "/"), self._texts)

    def _file(self, fullname: str) -> str:
        place = fullname.replace(".", "/")
        return f"{place}/__init__.py" if self.is_package(fullname) else f"{place}.py"


class _Resources:
    """Texts beside modules, as ``importlib.resources`` asks for them."""

    def __init__(self, folder: str, texts: Mapping[str, str]) -> None:
        self._folder, self._texts = folder, texts

    def open_resource(self, name: str) -> io.BytesIO:
        if not self.is_resource(name):
            raise FileNotFoundError(name)
        return io.BytesIO(self._texts[f"{self._folder}/{name}"].encode())

    def is_resource(self, name: str) -> bool:
        return f"{self._folder}/{name}" in self._texts

    def contents(self) -> list[str]:
        inside = (name.removeprefix(f"{self._folder}/") for name in self._texts if name.startswith(f"{self._folder}/"))
        return [name for name in inside if "/" not in name]

    def resource_path(self, name: str) -> str:
        raise FileNotFoundError(name)


def _take(package: str, digest: str, packed: bytes) -> None:
    """Make this code the one that is imported; modules of another release, or of an installed one, are forgotten.

    Another package than ours is only found where none is installed.
    """
    if any(getattr(finder, "backpressure_digest", None) == digest for finder in sys.meta_path):
        return
    others = [finder for finder in sys.meta_path if not _brings(finder, package)]
    new = _Sources(package, digest, packed)
    sys.meta_path[:] = [new, *others] if package == _PACKAGE else [*others, new]
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        del sys.modules[name]


def _brings(finder: Any, package: str) -> bool:
    """Whether a finder brings this package, be it one of a release that brought only ours."""
    if not hasattr(finder, "backpressure_digest"):
        return False
    return str(getattr(finder, "backpressure_package", _PACKAGE)) == package


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
