"""T9 under ``catch_up``: the ledger is lost while a log is followed, and is rebuilt with its place in the log."""

from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.gate.hydration_record import Phase
from airflow_provider_backpressure.core.planning.plan_result import Planned, Verdict
from airflow_provider_backpressure.core.ports import Runner
from airflow_provider_backpressure.exceptions import LogLost
from tests.support.catching_up import FILL, TABLE, Followed, follow
from tests.support.composed import Composed

pytestmark = [pytest.mark.integration, pytest.mark.in_process, pytest.mark.statement("T9")]


@pytest.fixture
def followed(hydration: Composed, runner: Runner, logins: dict[str, Endpoint]) -> Followed:
    """``public.t`` into ``raw.t``, by windows of at most a mebibyte."""
    return follow(hydration, runner, logins, Budget(credits=2, range_rows=1000, range_bytes=2**20))


def change(followed: Followed) -> None:
    """Change so much that the log of it is several windows."""
    followed.source(
        "UPDATE t SET v = v + 1, doc = repeat(md5(id::text), 20)",
        "DELETE FROM t WHERE id % 10 = 3",
        "UPDATE t SET id = id + 100000 WHERE id % 10 = 4",
        "UPDATE t SET v = v + 1, note = 'again'",
    )


def among_ranges(followed: Followed) -> None:
    """Ranges are open, and the table has changed since."""
    followed.plan()
    followed.stopped(2)
    change(followed)


def before_windows(followed: Followed) -> None:
    """Every range is in, no window is planned yet."""
    followed.plan()
    with followed.ports() as ports:
        ports.hydrator().run()
    change(followed)


def among_windows(followed: Followed) -> None:
    """The steady state, with one window in of several; more has come behind them."""
    followed.go()
    change(followed)
    followed.plan()
    followed.stopped(1)
    change(followed)


def after_windows(followed: Followed) -> None:
    """The steady state, and what has come since."""
    followed.go()
    change(followed)
    followed.go()
    change(followed)


@pytest.mark.fault(23)
@pytest.mark.parametrize(
    "moment",
    [
        among_windows,
        *(pytest.param(each, marks=pytest.mark.long) for each in (among_ranges, before_windows, after_windows)),
    ],
)
def test_a_lost_ledger_finds_its_place_in_the_log(
    followed: Followed, tmp_path: Path, moment: Callable[[Followed], None]
) -> None:
    """T9: slot and frontier are gone on with; nothing is skipped, and what is in is not brought again."""
    followed.source(TABLE, FILL.format(5000), "ANALYZE t")
    moment(followed)
    slots = followed.slots()
    with followed.ports() as ports:
        known, plan = ports.hydration, ports.plan
        there = ports.sink.markers(plan.plan_id)
    followed = followed.without_ledger(tmp_path)
    planned: Planned = followed.plan()
    assert planned.verdict is Verdict.RESUMED
    assert planned.hydration.id == known.id
    assert planned.plan.plan_id == plan.plan_id
    assert planned.hydration.phase is Phase.REHYDRATION
    assert f"{len(there)} of {planned.ranges} ranges are committed" in planned.note
    followed.drain()
    with followed.ports() as ports:
        now = ports.sink.markers(plan.plan_id)
        assert {name: now[name] for name in there} == there
    assert followed.finish().phase is Phase.STEADY_STATE
    followed.go()
    assert [name for name, _ in followed.slots()] == [name for name, _ in slots]
    assert followed.differs() == (0, 0)


def test_a_ledger_that_is_lost_with_the_slot_stops_by_name(followed: Followed, tmp_path: Path) -> None:
    """T9: nothing is gone on with behind what nobody has."""
    followed.source(TABLE, FILL.format(50))
    followed.go()
    followed.source("DELETE FROM t WHERE id = 7", f"SELECT pg_drop_replication_slot('{followed.slots()[0][0]}')")
    followed = followed.without_ledger(tmp_path)
    assert followed.plan().verdict is Verdict.RESUMED, "what is committed is known without the source"
    with pytest.raises(LogLost, match=r"is gone, .*restart"):
        followed.drain()
    followed.plan(restart=True)
    followed.drain()
    followed.finish()
    assert followed.differs() == (0, 0)
