"""When the log that a slot keeps is warned of, and what a declaration says of it."""

from dataclasses import replace

import pytest

from airflow_provider_backpressure.connectors.postgres.replication_slots import Slot, position
from airflow_provider_backpressure.connectors.postgres.source.config import DROP_AND_RESTART
from airflow_provider_backpressure.core.health_signal_declarations import WalHeadroom
from airflow_provider_backpressure.sources import PostgresSource

SLOT = Slot(
    name="s",
    database="d",
    plugin="pgoutput",
    active_pid=None,
    confirmed=position("0/0"),
    lost=False,
    status="reserved",
    safe_bytes=None,
    held_bytes=0,
    flushed=position("0/64"),
)


@pytest.mark.parametrize(
    ("held", "safe", "most", "level"),
    [
        (49, None, 100, 0.0),
        (50, None, 100, 0.5),
        (80, None, 100, 0.8),
        (50, 50, None, 0.5),
        (80, 20, 1000, 0.8),
        (10**12, None, None, 0.0),
    ],
)
def test_the_log_is_warned_of_at_half_and_at_four_fifths(
    held: int, safe: int | None, most: int | None, level: float
) -> None:
    """FINEPRINT 42: of the declared limit or the server's own, whichever is tighter."""
    assert replace(SLOT, held_bytes=held, safe_bytes=safe).reach_level(most) == level


def test_what_is_safe_is_the_default() -> None:
    source = PostgresSource(conn_id="shop_db", table="public.orders")
    assert source.at_wal_limit == DROP_AND_RESTART
    assert source.safety_signals("catch_up") == (WalHeadroom(hours=2.0),)
    assert source.safety_signals(None) == ()


def test_what_others_hold_is_no_reason_to_drop_the_slot() -> None:
    """What was replayed is not needed: dropping it would free nothing while their transaction is open."""
    replayed = replace(SLOT, held_bytes=1000, confirmed=position("0/3C"))
    assert not replayed.endangers(50)
    assert replayed.reach_level(50) == 0.8
    assert replayed.endangers(40)
    assert replace(replayed, safe_bytes=1).endangers(None), "the server gives it up all the same"


def test_two_declarations_of_one_log_keep_what_one_of_them_wants_to_keep() -> None:
    kept = PostgresSource(conn_id="shop_db", table="public.orders", at_wal_limit="stop_and_keep", wal_limit=100)
    watched = PostgresSource(conn_id="shop_db", table="public.orders", wal_limit=200)
    for agreed in (watched.agree_on_limit(kept), kept.agree_on_limit(watched)):
        assert (agreed.at_wal_limit, agreed.wal_limit) == ("stop_and_keep", 100)
    assert watched.agree_on_limit(watched) == watched
