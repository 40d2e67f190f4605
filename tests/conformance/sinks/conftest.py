"""Every test of this folder runs over every kind of sink."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.sinks.cases import CASES, SPARK_CASES, Case


@pytest.fixture(params=sorted(CASES))
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Case]:
    """A kind of sink with a fresh target."""
    yield from (CASES | SPARK_CASES)[request.param](tmp_path, request)
