"""A mark is a record by what no other record at its offset has, and survives as text."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from airflow_provider_backpressure.connectors.kafka.headers import UNREADABLE
from airflow_provider_backpressure.connectors.kafka.source.partition_offsets import UNKNOWN_EPOCH, Mark


@dataclass(frozen=True)
class Record:
    """What the client gives."""

    offset: Any = lambda: 41
    leader_epoch: Any = lambda: 3
    timestamp: Any = lambda: (1, 1_700_000_000_123)
    held: Any = (("trace", b"1"),)
    key: Any = lambda: b"k"
    value: Any = lambda: b"v"

    def headers(self) -> Any:
        """Return its headers."""
        return self.held


MARK = Mark.from_record(Record())  # type: ignore[arg-type]


def test_a_mark_is_kept_as_text() -> None:
    """Offset, epoch and digest, of which the digest shows nothing of the record."""
    assert Mark.parse(str(MARK)) == MARK
    assert str(MARK).startswith("41@3/")
    assert MARK.is_of(Mark.from_record(Record()))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes",
    [
        {"leader_epoch": lambda: 4},
        {"timestamp": lambda: (1, 1_700_000_000_124)},
        {"held": None},
        {"held": [("trace", None)]},
        {"held": UNREADABLE},
        {"key": lambda: None},
        {"key": lambda: b""},
        {"value": lambda: b"w"},
        {"value": lambda: None},
    ],
)
def test_whatever_differs_is_another_record(changes: dict[str, Any]) -> None:
    """Nothing and an empty text are two things."""
    assert not MARK.is_of(Mark.from_record(replace(Record(), **changes)))


def test_an_epoch_that_a_broker_does_not_keep_says_nothing() -> None:
    """Records of brokers before leader epochs, and of those that imitate a broker."""
    unknown = Mark.from_record(replace(Record(), leader_epoch=lambda: None))  # type: ignore[arg-type]
    assert unknown.epoch == UNKNOWN_EPOCH
    assert unknown.is_of(MARK)
    assert MARK.is_of(unknown)
