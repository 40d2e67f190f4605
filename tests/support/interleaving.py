"""Ranges and windows of a changing source in random turns, in memory: which rule leaves the target right.

The source has two tables. Its transactions commit, are in the log, and are seen by readers some time later. The target
is filled by ranges, each read in a snapshot, and by windows of the log between them. Attempts are given up and commit
nevertheless. A range and a window do what the tasks do.
"""

import random
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from airflow_provider_backpressure.core.snapshot.transaction_snapshot import TransactionSnapshot

TABLES, KEYS, CUT = 2, 8, 4
"""Tables, keys of each, and keys of each range."""
SLICES = [(table, first) for table in range(TABLES) for first in range(0, KEYS, CUT)]
UNCHANGED, UNKNOWN = "unchanged", "unknown"
WHOLE = -1
"""The key of a lock of a whole table."""
STEP = 10
"""Positions of the log from one commit to the next."""
Key = tuple[int, int]
Row = tuple[int, Any]
"""A short value, and a long one that the log leaves out where it did not change."""
Rows = dict[Key, Row]


class Change(NamedTuple):
    """A change as the log has it. ``row``: ``None`` for a delete. ``table`` with a key of ``WHOLE``: a truncate."""

    key: Key
    row: Row | None
    moved: bool = False
    """Whether the row had another key before."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What is heeded beside taking turns. The default is the product's rule."""

    fences: bool = True
    """Windows raise the epoch, and the target refuses attempts of an earlier one."""
    waits: bool = True
    """A window goes in once readers see all of it."""


@dataclass(kw_only=True)
class Transaction:
    """A transaction of the source."""

    number: int
    changes: list[Change] = field(default_factory=list)
    effects: list[Change] = field(default_factory=list)
    """The changes with all values, as readers see them."""
    logged: bool = False


class Database:
    """The source."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._next, self._value = 100, 0
        self.running: dict[int, Transaction] = {}
        """Those that readers do not see, in the log or not."""
        self.log: list[Transaction] = []
        self.rows: Rows = {}
        """What readers see."""
        self._locks: dict[Key, int] = {}
        for table in range(TABLES):
            for key in draw.sample(range(KEYS), 5):
                self.rows[table, key] = (self._new(), self._new())
        self.first = dict(self.rows)

    def _new(self) -> int:
        self._value += 1
        return self._value

    @property
    def end(self) -> int:
        """Where the log ends."""
        return len(self.log) * STEP

    def snapshot(self) -> TransactionSnapshot:
        """Return what a reader sees now."""
        return TransactionSnapshot(end=self._next, running=frozenset(self.running))

    def at(self, end: int) -> Rows:
        """Return the rows by the log up to a position."""
        rows = dict(self.first)
        for each in self.log[: end // STEP]:
            apply(rows, each.effects)
        return rows

    def step(self) -> None:
        """Let one transaction begin, change something, commit, be seen, or be rolled back."""
        match self._draw.randint(0, 9):
            case 0 | 1 if len(self.running) < 4:
                self.running[self._next] = Transaction(number=self._next)
                self._next += 1
            case 2 | 3 | 4 | 5:
                self._each(logged=False, act=self._change)
            case 6 | 7:
                self._each(logged=False, act=self._commit)
            case 8:
                self._each(logged=True, act=self._show)
            case _ if self._draw.random() < 0.2:
                self._each(logged=False, act=self._end)

    def settle(self) -> None:
        """Let all transactions end, and be seen."""
        for each in list(self.running.values()):
            if not each.logged:
                self._commit(each)
        for each in list(self.running.values()):
            self._show(each)

    def _each(self, *, logged: bool, act: Any) -> None:
        found = [each for each in self.running.values() if each.logged is logged]
        if found:
            act(self._draw.choice(found))

    def _commit(self, transaction: Transaction) -> None:
        if transaction.changes:
            transaction.logged = True
            self.log.append(transaction)
        else:
            self._end(transaction)

    def _show(self, transaction: Transaction) -> None:
        apply(self.rows, transaction.effects)
        self._end(transaction)

    def _end(self, transaction: Transaction) -> None:
        del self.running[transaction.number]
        self._locks = {key: holder for key, holder in self._locks.items() if holder != transaction.number}

    def _lock(self, transaction: Transaction, *keys: Key) -> bool:
        """Take locks, as far as nobody else has them."""
        others = {key for key, holder in self._locks.items() if holder != transaction.number}
        for table, key in keys:
            if (table, key) in others or (table, WHOLE) in others or (key == WHOLE and table in {t for t, _ in others}):
                return False
        self._locks.update(dict.fromkeys(keys, transaction.number))
        return True

    def _change(self, transaction: Transaction) -> None:
        draw, table = self._draw, self._draw.randrange(TABLES)
        key, other = (table, draw.randrange(KEYS)), (table, draw.randrange(KEYS))
        rows = dict(self.rows)
        apply(rows, transaction.effects)
        before, kind = rows.get(key), draw.random()
        if kind < 0.02:
            if self._lock(transaction, (table, WHOLE)):
                self._did(transaction, Change((table, WHOLE), None))
        elif before is None:
            if self._lock(transaction, key):
                self._did(transaction, Change(key, (self._new(), self._new())))
        elif kind < 0.2:
            if self._lock(transaction, key):
                self._did(transaction, Change(key, None))
        elif kind < 0.5 and other not in rows:
            if self._lock(transaction, key, other):
                self._did(transaction, Change(key, None))
                self._did(transaction, Change(other, (self._new(), UNCHANGED), moved=True), before)
        elif self._lock(transaction, key):
            self._did(transaction, Change(key, (self._new(), UNCHANGED if kind < 0.85 else self._new())), before)

    @staticmethod
    def _did(transaction: Transaction, change: Change, before: Row | None = None) -> None:
        transaction.changes.append(change)
        row = change.row
        if row is not None and row[1] is UNCHANGED:
            assert before is not None, "a row that was there"
            row = (row[0], before[1])
        transaction.effects.append(change._replace(row=row))


@dataclass(kw_only=True, eq=False)
class Attempt:
    """An attempt to read a range."""

    slice: Key
    rows: Rows
    epoch: int
    read_at: int | None = None
    """Where the log ended after the rows were read; ``None``: the read has not begun."""
    given_up: bool = False


@dataclass(kw_only=True)
class Interleaving:
    """One random schedule. ``wrong`` says how often the target was taken for consistent and was not."""

    seed: int
    rule: Rule
    wrong: int = 0
    asked: int = 0
    refused: int = 0
    between: int = 0
    """Windows with changes that went in before the last range."""

    def __post_init__(self) -> None:
        self._draw = random.Random(self.seed)
        self._source = Database(self._draw)
        self._rows: Rows = {}
        self._frontier = 0
        self._goal, self._done = 0, set[Key]()
        self._attempts: list[Attempt] = []
        self._planned: int | None = None
        self._epoch = 0

    def run(self) -> "Interleaving":
        """Run it to its end."""
        turns = [self._source.step] * 6 + [
            self._start,
            self._begin,
            self._commit,
            self._give_up,
            self._plan,
            self._apply,
        ]
        for _ in range(150):
            self._draw.choice(turns)()
        self._source.settle()
        while self._goal > self._frontier or len(self._done) < len(SLICES) or self._frontier < self._source.end:
            for step in (self._start, self._begin, self._commit, self._plan, self._apply):
                step()
        for _ in range(60):
            self._draw.choice([*[self._source.step] * 6, self._begin, self._commit, self._plan, self._apply])()
        return self

    def _start(self) -> None:
        """Open an attempt's transaction, and its snapshot with it: what it will read is what readers see now."""
        tried = {each.slice for each in self._attempts if not each.given_up}
        left = [each for each in SLICES if each not in self._done and each not in tried]
        if not left or self._planned is not None:
            return
        table, first = self._draw.choice(left)
        rows = {key: row for key, row in self._source.rows.items() if key[0] == table and first <= key[1] < first + CUT}
        self._attempts.append(Attempt(slice=(table, first), rows=rows, epoch=self._epoch))

    def _begin(self) -> None:
        """Let an attempt begin to read."""
        if waiting := [each for each in self._attempts if each.read_at is None]:
            self._draw.choice(waiting).read_at = self._source.end

    def _commit(self) -> None:
        """Let an attempt commit its rows with its slice's marker, unless that is there."""
        ready = [each for each in self._attempts if each.read_at is not None]
        if not ready:
            return
        attempt = self._draw.choice(ready)
        self._attempts.remove(attempt)
        if attempt.slice in self._done:
            return
        if self.rule.fences and attempt.epoch != self._epoch:
            self.refused += 1
            return
        self._rows |= attempt.rows
        self._done.add(attempt.slice)
        self._goal = max(self._goal, attempt.read_at or 0)
        self._check()

    def _give_up(self) -> None:
        """Take an attempt for dead. It may begin, and commit, at any later time."""
        if self._attempts and self._draw.random() < 0.5:
            self._draw.choice(self._attempts).given_up = True

    def _plan(self) -> None:
        """Plan a window once no attempt is in flight that anybody knows of."""
        if self._planned is not None or any(not each.given_up for each in self._attempts):
            return
        end = self._source.end - self._draw.choice((0, 0, STEP))
        if end > self._frontier:
            self._epoch += 1
            self._planned = end

    def _apply(self) -> None:
        """Let the planned window in."""
        if self._planned is None or (self.rule.waits and not self._is_seen(self._planned)):
            return
        trusted = len(self._done) == len(SLICES) and self._goal <= self._frontier
        unknown = dict.fromkeys(
            key
            for each in self._source.log[self._frontier // STEP : self._planned // STEP]
            for key in fold(self._rows, each.changes, trusted=trusted)
        )
        lost = [key for key in unknown if (row := self._rows.get(key)) and row[1] is UNKNOWN]
        for key in lost:
            # The source's row of now; its snapshot sees all of the window.
            self._rows.pop(key)
            if key in self._source.rows:
                self._rows[key] = self._source.rows[key]
        if lost:
            self.asked += len(lost)
            self._goal = max(self._goal, self._source.end)
        self.between += len(self._done) < len(SLICES)
        self._frontier, self._planned = self._planned, None
        self._check()

    def _is_seen(self, end: int) -> bool:
        """Whether readers see the log up to a position."""
        numbers = [each.number for each in self._source.log[self._frontier // STEP : end // STEP]]
        return not self._source.snapshot().list_unseen(numbers)

    def _check(self) -> None:
        if len(self._done) == len(SLICES) and self._frontier >= self._goal:
            self.wrong += self._rows != self._source.at(self._frontier)


def apply(rows: Rows, changes: list[Change]) -> None:
    """Bring changes with all their values into rows."""
    for change in changes:
        table, key = change.key
        if key == WHOLE:
            for each in [each for each in rows if each[0] == table]:
                del rows[each]
        elif change.row is None:
            rows.pop(change.key, None)
        else:
            rows[change.key] = change.row


def fold(rows: Rows, changes: list[Change], *, trusted: bool) -> list[Key]:
    """Bring changes as the log has them into a target; return the keys of which a value is not known here.

    A row that moved has the value of its old key only where the target is the source as it was, or where the window
    has shown it; the simulation asks in the second case too.
    """
    unknown, moved_from = [], None
    for change in changes:
        row = change.row
        if row is not None and row[1] is UNCHANGED:
            before = moved_from if change.moved else rows.get(change.key)
            known = before is not None and (trusted or not change.moved)
            row = (row[0], before[1] if known and before is not None else UNKNOWN)
            unknown.append(change.key)
        moved_from = rows.get(change.key) if row is None else None
        apply(rows, [change._replace(row=row)])
    return unknown
