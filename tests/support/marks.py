"""Marks: which cases run each time, and which tests need Spark."""

from collections.abc import Iterable
from typing import Any

import pytest


def mark_long(cases: Iterable[Any], *, quick: Iterable[Any]) -> list[Any]:
    """Return the cases for ``parametrize``: all but the quick ones run with ``make test-long`` alone."""
    kept = [str(case) for case in quick]
    made = [case if str(case) in kept else pytest.param(*_values(case), marks=pytest.mark.long) for case in cases]
    assert len(made) - sum(hasattr(case, "marks") for case in made) == len(kept), "a quick case is none of the cases"
    return made


def _values(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)


def without_spark(node: Any) -> bool:
    """Return whether the ranges of a test, or of a module, are carried out by threads: its subject is not Spark."""
    return bool(node.get_closest_marker("in_process")) and not node.get_closest_marker("on_spark")
