"""What a topic's configuration says of how long it keeps a record."""

import math
from unittest.mock import Mock

import pytest

from airflow_provider_backpressure.connectors.kafka.source.retention_and_lag import Kept, _share_by_size


@pytest.mark.statement("F7")
@pytest.mark.parametrize(
    ("config", "kept"),
    [
        ({"retention.ms": "604800000"}, Kept(seconds=7 * 86400.0)),
        ({"retention.ms": "1500", "retention.bytes": "1000"}, Kept(seconds=1.5, bytes=1000)),
        ({"retention.ms": "-1"}, Kept(seconds=math.inf)),
        ({"cleanup.policy": "compact"}, Kept(seconds=math.inf)),
        ({"cleanup.policy": "compact,delete", "retention.ms": "3600000"}, Kept(seconds=3600.0)),
    ],
)
def test_retention_is_told_in_milliseconds_and_kept_in_seconds(config: dict[str, str], kept: Kept) -> None:
    """F7: a week is a week; below zero, and for a compacted topic, it is for ever."""
    usual = {"retention.ms": "86400000", "retention.bytes": "-1", "cleanup.policy": "delete"}
    assert Kept.from_config({**usual, **config}) == kept


@pytest.mark.parametrize(
    ("kept", "starts", "share"),
    [
        (Kept(seconds=math.inf), {0: 150}, math.inf),
        (Kept(seconds=math.inf, bytes=1000), {0: 150, 1: 40}, 0.5),
        (Kept(seconds=math.inf, bytes=1000), {0: 110, 1: 40}, 0.1),
        (Kept(seconds=math.inf, bytes=1000), {1: 0}, math.inf),
    ],
    ids=["no size", "half way", "near the end", "not full yet"],
)
def test_what_is_left_by_size_is_a_share_of_the_partition(kept: Kept, starts: dict[int, int], share: float) -> None:
    """Partition 0 has lost its first hundred offsets, partition 1 none yet."""
    now = Mock(beginning={0: 100, 1: 0}, high={0: 200, 1: 80})
    assert _share_by_size(kept, now, starts) == pytest.approx(share)
