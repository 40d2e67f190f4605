"""A topic that gets ten times what its target takes: the figures of ``make demo-backpressure``."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dev import backpressure
from dev.services import Services

pytestmark = [pytest.mark.integration, pytest.mark.long]

SECONDS = 40.0


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory, services: Services) -> Iterator[backpressure.Figures]:
    """Played once, on servers of its own."""
    own = Services(
        Path(tmp_path_factory.mktemp("backpressure")), owner_pid=services.owner.pid if services.owner else None
    )
    try:
        yield backpressure.play(own, seconds=SECONDS)
    finally:
        own.down()


@pytest.mark.statement("F1", "F2", "F3", "F4", "F6", "F9")
@pytest.mark.timeout(600)
def test_the_target_sets_the_pace(figures: backpressure.Figures) -> None:
    """F1: admitted and committed as the target takes it, the lag grows by the rest. F2: it stays in Kafka.

    F3, F4: the gate is held back and the sink busy. F6: the sink is the bottleneck. F9: freed, it no longer is.
    """
    wrong = {title: (expected, found) for title, expected, found, well in figures.rows() if not well}
    assert wrong == {}
