"""A topic, with transactions, gaps and tombstones, into a table of PostgreSQL."""

import random
from collections import Counter
from dataclasses import dataclass, field, replace

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.plan import Plan
from tests.chaos.subjects.subject import Different
from tests.support.composed import Composed
from tests.support.kafka import Topic
from tests.support.postgres import run

Place = tuple[int, int, int]
"""How often the topic was made again before, a partition, an offset."""


@dataclass(kw_only=True)
class KafkaSubject:
    """See ``subject.Subject``. Each record's value names itself, so that any loss and any mixture is seen."""

    seed: int
    servers: str
    target: Endpoint
    system: str = "kafka"
    restarts: bool = False
    history: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Draw what it is."""
        self.draw = draw = random.Random(f"kafka {self.seed}")
        self.mode, self.consistency = draw.choice(("append", "append", "upsert")), "offsets"
        self.partitions = draw.randint(1, 3)
        self.compacted = draw.random() < 0.3
        self.topic = Topic(servers=self.servers)
        self._number = self._made_anew = 0
        self._sent: dict[int, tuple[int, str | None, bool]] = {}
        """By number of the record: its partition, its key, and whether it is a tombstone; in the order of sending."""
        self._planned: set[int] = set()
        """Records that were there when something was planned."""

    def composed(self) -> Composed:
        """See ``Subject``."""
        policy = {"cleanup_policy": "compact"} if self.compacted else {}
        self.topic.create(self.partitions, **policy)
        self.history.append(f"a topic of {self.partitions} partitions {policy}")
        for _ in range(self.draw.randint(2, 5)):
            self._send(self.draw.randint(10, 120))
        return Composed(
            source=Endpoint(conn_id="source", host=self.servers, port=0, database="", user=""),
            sink=replace(self.target, conn_id="sink"),
            ledger_url="",
            remote="",
            kind="kafka",
            table=self.topic.name,
            target="raw.k",
            mode=self.mode,
            consistency=self.consistency,
            budget=Budget(range_rows=self.draw.randint(30, 90), credits=self.draw.choice((1, 1, 2, 3))),
            reading={"key": "text"},
        )

    def change(self, *, define: bool, between: bool) -> str:
        """See ``Subject``."""
        if define:
            return self.draw.choice((self._anew, self._grow, self._cut, self._cut))()
        return self.draw.choice((self._more, self._more, self._aborted, self._committed, self._tombstones))()

    def empty_target(self) -> str:
        """See ``Subject``."""
        return ""

    def capture(self, plan_id: str) -> None:
        """See ``Subject``."""
        self._planned |= set(self._sent)

    def check_finished(self, plan: Plan) -> None:
        """See ``Subject``."""

    def check_settled(self, plan_id: str) -> None:
        """See ``Subject``."""
        if self.mode == "upsert":
            self._check_last()
            return
        found = Counter(
            number for (number,) in run(self.target, "SELECT (value->>'n')::int FROM raw.k") if number is not None
        )
        wanted = Counter(number for number, (_, _, tombstone) in self._sent.items() if not tombstone)
        missing, surplus = wanted - found, found - wanted
        if missing or surplus:
            raise Different(
                f"{missing.total()} records missing, {surplus.total()} surplus of {wanted.total()}:"
                f" {sorted(missing)[:5]}, {sorted(surplus)[:5]}"
            )

    def _check_last(self) -> None:
        wanted: dict[str, int] = {}
        for number, (_, key, tombstone) in self._sent.items():
            assert key is not None
            wanted.pop(key, None)
            if not tombstone:
                wanted[key] = number
        found = dict(run(self.target, "SELECT key, (value->>'n')::int FROM raw.k"))
        differ = sorted(key for key in wanted.keys() | found.keys() if wanted.get(key) != found.get(key))
        if differ:
            samples = [(key, wanted.get(key), found.get(key)) for key in differ[:4]]
            raise Different(f"{len(differ)} of {len(wanted)} keys differ (key, wanted, found): {samples}")

    def _send(self, times: int, *, tombstones: bool = False, commit: bool | None = None) -> str:
        """Send records, each with a number of its own; those of an aborted transaction do not count."""
        partition = self.draw.randrange(self.partitions)
        keyed = self.mode == "upsert" or self.compacted
        keys = [f"key{partition}-{self.draw.randint(1, 60)}" if keyed else None for _ in range(times)]
        sent = []
        for key in keys:
            self._number += 1
            sent.append((self._number, key))
        with self.topic.producing() if commit is None else self.topic.transaction(commit=commit) as producer:
            for number, key in sent:
                value = None if tombstones else f'{{"n": {number}}}'.encode()
                producer.produce(self.topic.name, value, key and key.encode(), partition)
            producer.flush(30)
        if commit is not False:
            self._sent.update({number: (partition, key, tombstones) for number, key in sent})
        how = {None: "", True: " in a transaction", False: " in a transaction that was aborted"}[commit]
        return f"{times} {'tombstones' if tombstones else 'records'} to partition {partition}{how}"

    def _more(self) -> str:
        return self._send(self.draw.randint(1, 60))

    def _aborted(self) -> str:
        return self._send(self.draw.randint(1, 60), commit=False)

    def _committed(self) -> str:
        return self._send(self.draw.randint(1, 60), commit=True)

    def _tombstones(self) -> str:
        return self._send(self.draw.randint(1, 10), tombstones=True)

    def _anew(self) -> str:
        """Delete the topic and make it again; what was in it before the first plan is nobody's loss."""
        if not self._planned:
            self._sent.clear()
        self.topic.delete()
        self.topic.create(self.partitions, **({"cleanup_policy": "compact"} if self.compacted else {}))
        more = [self._send(self.draw.randint(10, 150)) for _ in range(self.draw.randint(0, 4))]
        return f"the topic was deleted and made again, with {more}"

    def _grow(self) -> str:
        self.partitions += 1
        self.topic.grow(self.partitions)
        return "a partition more"

    def _cut(self) -> str:
        """Delete records as retention does; before the first plan that is nobody's loss."""
        if self.compacted:
            return ""
        partition = self.draw.randrange(self.partitions)
        ends = [offset for place, offset in self.topic.committed() if place == partition]
        if not ends:
            return ""
        before = self.draw.choice(ends)
        kept = {offset for place, offset in self.topic.committed() if place == partition and offset >= before}
        if not self._planned:
            here = [number for number, (place, _, _) in self._sent.items() if place == partition]
            for number in here[: len(here) - len(kept)]:
                del self._sent[number]
        self.topic.cut(partition, before)
        return f"records of partition {partition} before {before} were deleted"
