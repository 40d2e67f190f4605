"""Tables that one task asks the catalogue for one by one, many soon after each other: they are looked up together."""

import threading
import time
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import psycopg

from airflow_provider_backpressure.connectors.postgres.catalog import Relation, find, read_relations
from airflow_provider_backpressure.connectors.postgres.connect import Connection, Session
from airflow_provider_backpressure.connectors.postgres.identifiers import QualifiedName
from airflow_provider_backpressure.connectors.postgres.source.refused_types import read_uncarried

TOGETHER = 25
"""Tables of one look."""
FRESH_SECONDS = 30.0
"""Longest time for which an answer holds. The table may change as it may behind any look, and a range looks again."""


class _Expected:
    """Names that are expected, and answers that nobody has asked for yet. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._names: dict[QualifiedName, None] = {}
        self._waiting: dict[Hashable, dict[QualifiedName, None]] = {}
        """Names of which no look was taken yet, by where it would lead to."""
        self._found: dict[tuple[Hashable, QualifiedName], tuple[float, Relation]] = {}

    @contextmanager
    def expect(self, names: Sequence[QualifiedName]) -> Iterator[None]:
        """Expect these, and nothing any more at the end."""
        with self._lock:
            self._names.update(dict.fromkeys(names))
        try:
            yield
        finally:
            with self._lock:
                self._names.clear()
                self._waiting.clear()
                self._found.clear()

    def take(self, key: Hashable, name: QualifiedName) -> Relation | None:
        """Return the answer about a table, for the first that asks; ``None`` where there is none that still holds."""
        with self._lock:
            at, found = self._found.pop((key, name), (0.0, None))
        return found if time.monotonic() < at + FRESH_SECONDS else None

    def choose(self, key: Hashable, name: QualifiedName) -> list[QualifiedName]:
        """Return the tables to look up together with one: those that were expected to be asked for next."""
        with self._lock:
            waiting = self._waiting.setdefault(key, dict(self._names))
            if name not in waiting:
                return []
            del waiting[name]
            others = [each for each, _ in zip(waiting, range(TOGETHER - 1), strict=False)]
            for each in others:
                del waiting[each]
            return others

    def keep(self, key: Hashable, found: dict[QualifiedName, Relation]) -> None:
        """Keep answers for those that will ask."""
        at = time.monotonic()
        with self._lock:
            self._found.update({(key, name): (at, relation) for name, relation in found.items() if name in self._names})


_expected = _Expected()
expect = _expected.expect


def find_expected(session: Session, name: QualifiedName) -> Relation | None:
    """Return what bears this name, or ``None``; the first that asks for one of many has the others looked up too.

    Each answer is given once: the next question about the table is a look of its own.
    """
    key = session.key
    relation = _expected.take(key, name)
    if relation is not None:
        return relation
    others = _expected.choose(key, name)
    if not others:
        return find(session, name)

    def read(connection: Connection) -> dict[QualifiedName, Relation] | None:
        try:
            found = read_relations(connection, [name, *others])
            uncarried = read_uncarried(connection, [each.oid for each in found.values()])
        except psycopg.DatabaseError as error:
            if isinstance(error, psycopg.OperationalError):
                raise
            # One of the others may have gone in the middle of it: each is looked up by itself then.
            return None
        return {each: replace(relation, uncarried=uncarried[relation.oid]) for each, relation in found.items()}

    found = session.read(read)
    if found is None:
        return find(session, name)
    relation = found.pop(name, None)
    _expected.keep(key, found)
    return relation
