"""Hydrations of several tables whose log is one stream's, run after run, on real parts without Airflow and Spark."""

import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from airflow_provider_backpressure.core.admission.permits_and_reservations import Limiter
from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.execution.lane_runner import Hydrator
from airflow_provider_backpressure.core.planning.catch_up_windows import stand
from airflow_provider_backpressure.core.planning.plan_result import Planned
from airflow_provider_backpressure.core.planning.planner import Planner
from airflow_provider_backpressure.core.planning.shared_log_windows import (
    Member,
    StreamPlanned,
    StreamPlanner,
    check_followed_by,
)
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.ledger.repository import SqlLedger
from airflow_provider_backpressure.sinks import PostgresSink
from airflow_provider_backpressure.sources import PostgresSource
from tests.support.composed import Composed, Ports, difference
from tests.support.ledgers import new_ledger
from tests.support.local_runner import LocalRunner
from tests.support.postgres import run
from tests.support.streaming import TABLE

BUDGET = Budget(credits=2, range_rows=40)


@dataclass
class Group:
    """Tables of ``public`` into those of ``raw``, all by one log."""

    database: Endpoint
    ledger_url: str
    names: tuple[str, ...] = ("a", "b", "c")
    stream: str = field(default_factory=lambda: uuid.uuid4().hex)
    wal_policy: str = "stop_and_keep"

    def __post_init__(self) -> None:
        """Make the tables, each with some rows."""
        logins = {name: replace(self.database, conn_id=name) for name in ("source", "sink")}
        self.source, self.sink, self.runner = logins["source"], logins["sink"], LocalRunner(logins=logins)
        for name in self.names:
            self.make(name)

    def make(self, name: str) -> None:
        """Make a table."""
        self.do(*TABLE.format(name).split(";"))
        self.do(f"INSERT INTO {name} SELECT g, 0, repeat('x', 3000) FROM generate_series(1, 100) g", f"ANALYZE {name}")

    def composed(self, name: str) -> Composed:
        """Return the hydration of a table."""
        return Composed(
            source=self.database,
            sink=self.database,
            ledger_url=self.ledger_url,
            remote="",
            table=f"public.{name}",
            target=f"raw.{name}",
            mode="upsert",
            consistency="catch_up",
            budget=BUDGET,
            lane=f"lane {name}",
            reading={"at_wal_limit": self.wal_policy},
        )

    @contextmanager
    def ports(self, name: str) -> Iterator[Ports]:
        """Open those of a table."""
        with self.composed(name).open(self.runner) as ports:
            yield ports

    def planner(self, ports: Ports) -> Planner:
        """Return the planner of a table that shares the log."""
        return replace(ports.planner(), stream=self.stream)

    def plan(self, *names: str, restart: bool = False) -> list[Planned]:
        """Plan tables; all of them where none is named."""
        planned = []
        for name in names or self.names:
            with self.ports(name) as ports:
                planned.append(self.planner(ports).plan(restart=restart))
        return planned

    def drain(self, *names: str) -> None:
        """Read what is planned of tables."""
        for name in names or self.names:
            with self.ports(name) as ports:
                ports.hydrator().run()
                assert not self.planner(ports).follow()

    @contextmanager
    def stream_planner(self) -> Iterator[StreamPlanner]:
        """Open the stream."""
        declared = PostgresSource(conn_id="source", table="public.any", at_wal_limit=self.wal_policy)
        with ExitStack() as stack:
            ledger = stack.enter_context(closing(SqlLedger(self.ledger_url)))
            tables = [f"public.{name}" for name in self.names]
            source = stack.enter_context(closing(declared.open_stream(self.source, self.stream, tables)))
            sink = PostgresSink(conn_id="sink", table="raw.any").open_stream(self.sink, self.stream)
            stack.callback(sink.close)
            yield StreamPlanner(
                stream=self.stream,
                source=source,
                sink=sink,
                runner=self.runner,
                ledger=ledger,
                budget=BUDGET,
                owner="test",
                cluster="spark",
            )

    def begin(self) -> Plan:
        """Let the log be kept from now on."""
        with self.stream_planner() as planner:
            return planner.begin()

    @contextmanager
    def members(self, names: Sequence[str]) -> Iterator[list[Member]]:
        """Open tables as those of the stream."""
        with ExitStack() as stack:
            every = [stack.enter_context(self.ports(name)) for name in names]
            yield [Member(hydration=each.hydration, source=each.source, sink=each.sink) for each in every]

    def windows(self, *names: str) -> StreamPlanned:
        """Plan what the stream replays next."""
        with self.stream_planner() as planner, self.members(names or self.names) as members:
            return planner.follow(members)

    @contextmanager
    def hydrator(self) -> Iterator[Hydrator]:
        """Return the lane of the stream."""
        with self.stream_planner() as planner:
            plan = planner.ledger.hydration(self.stream).plan
            assert plan is not None
            yield Hydrator(
                hydration_id=self.stream,
                plan=plan,
                lane="lane of the stream",
                ledger=planner.ledger,
                source=planner.source,
                sink=planner.sink,
                runner=self.runner,
                limiter=Limiter(
                    ledger=planner.ledger, hydration_id=self.stream, budget=BUDGET, memory=self.runner.memory
                ),
                budget=BUDGET,
            )

    def replay(self) -> None:
        """Replay the windows that are planned."""
        with self.hydrator() as hydrator:
            hydrator.run()

    def advance(self, times: int) -> None:
        """Replay so many plans of windows, while somebody writes: a row that is read again moves the goal."""
        for _ in range(times):
            if self.windows().planned is not None:
                self.replay()

    def follow(self, *names: str) -> dict[str, str]:
        """Replay until the targets are as the sources were; return the names of tables that are left out, and why."""
        found = self.windows(*names)
        left_out = dict(found.left_out)
        while found.planned is not None:
            self.replay()
            if self.caught_up(*names):
                break
            found = self.windows(*names)
        with self.members(names or self.names) as members:
            ids = {member.hydration.id: name for member, name in zip(members, names or self.names, strict=True)}
        return {ids[id_]: str(error) for id_, error in left_out.items()}

    def caught_up(self, *names: str) -> bool:
        """Whether the stream's plan has reached what it has to, and each of these tables with it."""
        with self.stream_planner() as planner, self.members(names or self.names) as members:
            plan = planner.ledger.hydration(self.stream).plan
            assert plan is not None
            streamed = stand(plan, planner.sink.markers(plan.plan_id).values())
            if not streamed.reached:
                return False
            for member in members:
                if any(table.plan_id == member.plan.plan_id for table in plan.tables):
                    own = stand(member.plan, member.sink.markers(member.plan.plan_id).values())
                    check_followed_by(plan, streamed, member.plan, own)
            planner.sink.complete(plan)
            planner.ledger.finish(self.stream)
            for member in members:
                member.sink.complete(member.plan)
                planner.ledger.finish(member.hydration.id)
        return True

    def hydrate(self) -> None:
        """Do the first run."""
        self.begin()
        self.plan()
        self.drain()
        assert self.follow() == {}

    def without_ledger(self, folder: Path) -> "Group":
        """Return the group with a ledger that knows nothing; its tables are those that are there."""
        other = object.__new__(Group)
        vars(other).update({**vars(self), "ledger_url": new_ledger(folder / "fresh.db")})
        return other

    def do(self, *statements: str) -> list[tuple[Any, ...]]:
        """Do things to the source, or the target."""
        return run(self.database, *statements)

    def slots(self) -> list[str]:
        """Return the names of the database's slots."""
        query = "SELECT slot_name::text FROM pg_replication_slots WHERE database = current_database() ORDER BY 1"
        return [name for (name,) in self.do(query)]

    def published(self) -> list[tuple[str, str]]:
        """Return publications with their tables."""
        return [
            (pub, table) for pub, table in self.do("SELECT pubname, tablename FROM pg_publication_tables ORDER BY 2")
        ]

    def differs(self, *names: str) -> dict[str, tuple[int, int]]:
        """Return how many rows only the source and only the target has, of the tables that are not the same."""
        found = {
            name: difference(self.database, f"public.{name}", self.database, f"raw.{name}")
            for name in names or self.names
        }
        return {name: each for name, each in found.items() if each != (0, 0)}

    def close(self) -> None:
        """Let every log go, and end the threads."""
        for name in self.slots():
            self.do(f"SELECT pg_drop_replication_slot('{name}')")
        self.runner.close()
