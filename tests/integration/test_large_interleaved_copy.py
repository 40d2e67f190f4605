"""What a source keeps of its log while five million rows are copied, and windows go in between their ranges."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.operators.shared_log_lane import StreamLane
from dev.services import Services
from dev.tpch import fingerprint
from tests.conftest import fresh_database
from tests.support.operator_flow import OperatorFlow
from tests.support.postgres import connected, run
from tests.support.waiting import beside, until

pytestmark = [pytest.mark.integration, pytest.mark.long]
ROWS = 5_000_000
RANGE_ROWS = 250_000
PERIOD = 0.1
"""Seconds between two looks at the slot."""
_LOOK = """
    SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint,
           pg_wal_lsn_diff(confirmed_flush_lsn, '0/0')::bigint, pg_wal_lsn_diff(restart_lsn, '0/0')::bigint
    FROM pg_replication_slots WHERE database = current_database()
"""
_WRITE = (
    "UPDATE {0} SET v = v + 1 WHERE id BETWEEN {1} AND {1} + 12",
    "INSERT INTO {0} SELECT g, 1, 'new' FROM generate_series({1}, {1} + 5) g ON CONFLICT (id) DO UPDATE SET v = 0",
    "DELETE FROM {0} WHERE id BETWEEN {1} AND {1} + 1",
)


@dataclass(frozen=True, kw_only=True)
class Look:
    """The slot at one moment; places in the log are bytes."""

    at: float
    written: int
    confirmed: int
    restart: int


@dataclass(kw_only=True)
class Watch:
    """Looks at the slot, and at what the lane does."""

    flow: OperatorFlow
    looks: list[Look] = field(default_factory=list)
    turns: list[tuple[str, float, float]] = field(default_factory=list)
    """What the lane did, ranges or windows, and from when to when."""

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Look until the block is left."""
        with beside(self._look):
            yield

    def _look(self, over: threading.Event) -> None:
        with connected(self.flow.database) as connection:
            while not over.wait(PERIOD):
                for written, confirmed, restart in connection.execute(_LOOK).fetchall():
                    at = time.monotonic()
                    self.looks.append(Look(at=at, written=written, confirmed=confirmed, restart=restart))

    def note(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        """Return the method of a lane, with its times noted."""

        def noted(*args: Any) -> Any:
            begun = time.monotonic()
            try:
                return real(*args)
            finally:
                self.turns.append((name, begun, time.monotonic()))

        return noted

    def most_written(self, name: str) -> int:
        """Return the log of the longest of the lane's doings of this name."""
        return max(self._written(begun, end) for kind, begun, end in self.turns if kind == name)

    def _written(self, begun: float, end: float) -> int:
        within = [look.written for look in self.looks if begun - 2 * PERIOD <= look.at <= end + 2 * PERIOD]
        return within[-1] - within[0] if within else 0

    @property
    def largest_window(self) -> int:
        """Log that was let go at once."""
        return max(two.confirmed - one.confirmed for one, two in itertools.pairwise(self.looks))


@pytest.fixture
def flow(services: Services, database: Endpoint, tmp_path: Path) -> Iterator[OperatorFlow]:
    # The target is another server, so that the source's log has no rows of it.
    with fresh_database(services.up("postgres:target")["postgres:target"]) as target:
        made = OperatorFlow.make(database, tmp_path, target=target, turn_seconds=0.0, range_rows=RANGE_ROWS)
        made.do(
            "TRUNCATE a",
            f"INSERT INTO a SELECT g, 0, 'n' || g FROM generate_series(1, {ROWS}) g",
            "CREATE TABLE foreign_table (id int)",
            "VACUUM ANALYZE a",
            "CHECKPOINT",
        )
        yield made
        made.close()


def write(flow: OperatorFlow, over: threading.Event) -> int:
    """Write to all tables, mostly to the large one, in transactions over two of them; return how many there were."""
    count = 0
    with connected(flow.database, autocommit=False) as connection:
        while not over.wait(0.005):
            key = count * 7_919 % ROWS + 1
            for name, first in (("a", key), (("b", "c")[count % 2], key % 100 + 1)):
                for statement in _WRITE:
                    connection.execute(statement.format(name, first))
            connection.commit()
            count += 1
    return count


@pytest.mark.timeout(1500)
@pytest.mark.statement("W4")
def test_the_log_of_a_range_and_a_window_is_kept_while_five_million_rows_are_copied(
    flow: OperatorFlow, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """W4: ``confirmed_flush_lsn`` trails by no more than that, and ``restart_lsn`` follows within a checkpoint.

    A foreign transaction is open for a part of the copy and holds ``restart_lsn``, but not what is confirmed.
    """
    watch = Watch(flow=flow)
    monkeypatch.setattr(StreamLane, "_drain", watch.note("ranges", StreamLane._drain))
    monkeypatch.setattr(StreamLane, "_replay", watch.note("windows", StreamLane._replay))
    held: list[int] = []

    def count_windows() -> int:
        return sum(kind == "windows" for kind, *_ in watch.turns)

    def hold(over: threading.Event) -> None:
        """Keep a transaction open for three turns, then let the server make a checkpoint."""
        with connected(flow.database, autocommit=False) as other:
            until(lambda: count_windows() >= 2 or over.is_set(), timeout=900)
            other.execute("INSERT INTO foreign_table VALUES (1)")
            held.append(watch.looks[-1].written)
            begun = count_windows()
            until(lambda: count_windows() >= begun + 3 or over.is_set(), timeout=900)
            other.commit()
            held.append(watch.looks[-1].written)
        run(flow.database, "CHECKPOINT")
        held.append(len(watch.looks))

    tables = flow.plan()
    with watch.looking(), beside(lambda over: write(flow, over)), beside(hold):
        flow.hydrate(tables)
    flow.verify(tables)
    flow.with_run("run 2").run()
    assert flow.target is not None
    for name in flow.names:
        with connected(flow.database) as source, connected(flow.target) as target:
            assert fingerprint(source, "public", name) == fingerprint(target, "raw", name)

    trail = max(look.written - look.confirmed for look in watch.looks)
    allowed = watch.most_written("ranges") + watch.largest_window
    first, last, place = held
    pinned = max(look.written - look.restart for look in watch.looks)
    followed = [look for look in watch.looks[place:] if look.restart >= last]
    seconds = followed[0].at - watch.looks[place].at if followed else None
    turns = [f"{kind} {end - begun:.1f} s" for kind, begun, end in watch.turns]
    with capsys.disabled():
        print(
            f"\n{count_windows()} times windows; confirmed_flush_lsn trails by {trail / 2**20:.1f} MiB at the most, "
            f"{allowed / 2**20:.1f} allowed (longest range {watch.most_written('ranges') / 2**20:.1f}, largest window "
            f"{watch.largest_window / 2**20:.1f}); log of the whole copy "
            f"{(watch.looks[-1].written - watch.looks[0].written) / 2**20:.1f}; restart_lsn by {pinned / 2**20:.1f}, "
            f"held by a foreign transaction, and followed {seconds} s behind a checkpoint after its end\n{turns}"
        )
    assert count_windows() > ROWS / RANGE_ROWS / 4
    assert trail <= allowed
    assert trail < (watch.looks[-1].written - watch.looks[0].written) / 3
    assert any(look.confirmed > first and look.restart <= first for look in watch.looks), "it was held"
    assert seconds is not None
    assert replace(flow).slots() == [f"backpressure_{flow.stream}"]
