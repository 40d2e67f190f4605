"""The part of the ledger on a database that those use who look at sources. See ``core.ports.observed``."""

from collections.abc import Collection, Mapping

from airflow_provider_backpressure.core.gate.signals import MemoryReading
from airflow_provider_backpressure.core.progress.alerts import Notice, note_alerts
from airflow_provider_backpressure.core.progress.lag import Course, Sight, advance
from airflow_provider_backpressure.core.progress.samples import Sample
from airflow_provider_backpressure.core.progress.source_position import Seen, Upstream
from airflow_provider_backpressure.core.progress.statistics import PLAN_WORKER
from airflow_provider_backpressure.core.transitions import statistics as tallies
from airflow_provider_backpressure.ledger.database import Database, repeatable
from airflow_provider_backpressure.ledger.tables import hydration as hydrations
from airflow_provider_backpressure.ledger.tables import range as ranges
from airflow_provider_backpressure.ledger.tables import sample as samples
from airflow_provider_backpressure.ledger.tables import source_position as upstreams
from airflow_provider_backpressure.ledger.tables import statistics
from airflow_provider_backpressure.ledger.tables.sampling import keep_sample


class SqlObserving:
    """Methods of :class:`..store.SqlLedger`, which has the database."""

    _database: Database

    def upstream(self, source_identity: str) -> Seen | None:
        """See ``ObservedReader.upstream``."""
        with self._database.read() as connection:
            return upstreams.read_position(connection, source_identity)

    def course(self, hydration_id: str) -> Course | None:
        """See ``ObservedReader.course``."""
        with self._database.read() as connection:
            return hydrations.course(connection, hydration_id)

    def samples(self, hydration_id: str, *, seconds: float) -> list[Sample]:
        """See ``ObservedReader.samples``."""
        with self._database.read() as connection:
            return samples.latest(connection, hydration_id, seconds=seconds)

    @repeatable
    def claim_look(self, source_identity: str, *, seconds: float) -> bool:
        """See ``Observed.claim_look``."""
        with self._database.write() as connection:
            return upstreams.claim(connection, source_identity, seconds=seconds)

    @repeatable
    def keep_upstream(self, source_identity: str, upstream: Upstream) -> None:
        """See ``Observed.keep_upstream``."""
        with self._database.write() as connection:
            upstreams.keep(connection, source_identity, upstream)

    @repeatable
    def record_sight(self, hydration_id: str, sight: Sight, *, least_seconds: float) -> Course:
        """See ``Observed.record_sight``."""
        with self._database.write() as connection:
            figures = hydrations.lock(connection, hydration_id)
            before = hydrations.course(connection, hydration_id)
            course = advance(before, sight, least_seconds=least_seconds)
            if course is before:
                return course
            hydrations.keep_course(connection, hydration_id, course)
            row = statistics.worker(connection, hydration_id, PLAN_WORKER)
            statistics.save(connection, tallies.with_course(row, course))
            keep_sample(connection, figures, ranges.now(connection))
            return course

    @repeatable
    def record_memory(self, hydration_id: str, reading: MemoryReading) -> None:
        """See ``Observed.record_memory``."""
        with self._database.write() as connection:
            figures = hydrations.lock(connection, hydration_id)
            keep_sample(connection, figures, ranges.now(connection), memory=reading)

    @repeatable
    def note(self, hydration_id: str, present: Mapping[str, float], *, looked: Collection[str]) -> Notice:
        """See ``Observed.note``."""
        with self._database.write() as connection:
            hydrations.lock(connection, hydration_id)
            before = hydrations.read_alerts(connection, hydration_id)
            after, notice = note_alerts(before, present, frozenset(looked), ranges.now(connection))
            if after != before:
                hydrations.keep_occurring(connection, hydration_id, after)
            return notice

    @repeatable
    def prune_samples(self, hydration_id: str, *, seconds: float, rows: int, most: int = 1000) -> int:
        """See ``Observed.prune_samples``."""
        with self._database.write() as connection:
            return samples.prune(connection, hydration_id, seconds=seconds, rows=rows, most=most)
