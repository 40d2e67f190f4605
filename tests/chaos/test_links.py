"""Fault 9: one of the three links is reset again and again, half-open, or slow."""

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest
from sqlalchemy.engine import make_url

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.exceptions import SinkUnavailable, SourceUnavailable
from airflow_provider_backpressure.ledger.repository import SqlLedger
from airflow_provider_backpressure.sinks import PostgresSink
from airflow_provider_backpressure.sources import PostgresSource
from dev.proxy import Proxy
from dev.services import Server
from tests.chaos.drained import Drained, Session, planned
from tests.support.composed import Composed
from tests.support.postgres import run
from tests.support.waiting import beside, until

pytestmark = [pytest.mark.integration, pytest.mark.fault(9), pytest.mark.timeout(300)]

LINKS, WAYS = ("source", "sink", "ledger"), ("reset", "half-open", "slow")
SAMPLE = [("ledger", "reset")]
EVERY = [
    pytest.param(link, way, marks=() if (link, way) in SAMPLE else pytest.mark.long) for link in LINKS for way in WAYS
]
ROWS, RANGE_ROWS, CREDITS = 12_000, 1_000, 2
SILENCE = 4.0
"""Seconds for which a link says nothing before it breaks."""


@pytest.fixture
def proxy(database: Endpoint) -> Iterator[Proxy]:
    made = Proxy(database.host, database.port)
    yield made
    made.close()


def through(composed: Composed, link: str, proxy: Proxy) -> Composed:
    """Return the hydration with one of its links through the proxy."""
    if link == "ledger":
        url = make_url(composed.ledger_url).set(host="127.0.0.1", port=proxy.port)
        return replace(composed, ledger_url=url.render_as_string(hide_password=False))
    return replace(composed, **{link: replace(getattr(composed, link), host="127.0.0.1", port=proxy.port)})


def disturb(proxy: Proxy, way: str, drained: Drained) -> None:
    """Do it in mid-run; in the end the link is whole."""
    until(lambda: drained.committed() >= 2)
    if way == "slow":
        proxy.latency = 0.03
        time.sleep(SILENCE)
        proxy.latency = 0.0
    elif way == "half-open":
        proxy.silent = True
        time.sleep(SILENCE)
        proxy.reset()
        proxy.silent = False
    else:
        for wanted in (2, 4, 6):
            until(lambda wanted=wanted: drained.committed() >= wanted)
            until(proxy.reset)


@pytest.mark.statement("X2", "T1")
@pytest.mark.parametrize(("link", "way"), EVERY)
def test_a_link_that_fails_loses_and_doubles_nothing(
    database: Endpoint, proxy: Proxy, connect: Server, ledger_url: str, session: Session, link: str, way: str
) -> None:
    """X2, T1: the lane's next tries go on, never more is in flight than credits, and everything is there once."""
    run(
        database,
        "CREATE TABLE t (id bigint PRIMARY KEY, body text NOT NULL)",
        f"INSERT INTO t SELECT i, repeat(md5(i::text), 3) FROM generate_series(1, {ROWS}) i",
        "ANALYZE t",
    )
    plain = Composed(
        source=database,
        sink=database,
        ledger_url=ledger_url,
        remote=connect.url,
        ui_url=connect.ui_url,
        budget=Budget(credits=CREDITS, range_rows=RANGE_ROWS),
    )
    composed, most = through(plain, link, proxy), 0

    def watch(over: threading.Event) -> None:
        nonlocal most
        with closing(SqlLedger(ledger_url)) as ledger:
            (found,) = ledger.hydrations()
            while not over.wait(0.02):
                most = max(most, ledger.gate(found.id).in_flight)

    runner = session(composed)
    drained = planned(composed, runner, direct=ledger_url)
    with beside(watch), beside(lambda _: disturb(proxy, way, drained)):
        drained.run()
    drained.check()
    assert 1 <= most <= CREDITS


@pytest.mark.statement("X5")
@pytest.mark.parametrize("link", ["source", "sink"])
def test_a_host_that_accepts_and_says_nothing_is_given_up_in_time(database: Endpoint, proxy: Proxy, link: str) -> None:
    """X5: bounded by a time-out of seconds, which a connection may declare; one sentence, without the password."""
    proxy.silent = True
    silent = replace(database, host="127.0.0.1", port=proxy.port, options={"connect_timeout": "2"})
    began = time.monotonic()
    with pytest.raises((SourceUnavailable, SinkUnavailable)) as caught:
        asked(link, silent)
    assert time.monotonic() - began < 20
    assert database.password not in str(caught.value)


def asked(link: str, endpoint: Endpoint) -> object:
    """Ask one side for the first thing that a plan asks."""
    if link == "source":
        return PostgresSource(conn_id="test", table="t").open(endpoint).snapshot()
    return PostgresSink(conn_id="test", table="raw.t").open(endpoint).held()
