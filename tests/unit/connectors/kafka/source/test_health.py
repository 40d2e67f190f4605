"""What a topic's configuration says of how long it keeps a record."""

import math

import pytest

from airflow_provider_backpressure.connectors.kafka.source.health import Kept


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
