"""The part of the ledger on a database that only looks. See ``core.ports.ledger.LedgerReader``."""

from collections.abc import Collection, Sequence

from airflow_provider_backpressure.core.gate.hydration_record import GateState, Hydration, RangeCounts, Span
from airflow_provider_backpressure.core.progress.rates_and_eta import Sample, WorkerStatistics
from airflow_provider_backpressure.core.progress.summary import FlowAt, HydrationSummary, Tile, stretches
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord, RangeState
from airflow_provider_backpressure.core.stage_metrics import Stage, StageTime
from airflow_provider_backpressure.ledger import chart_data, gate_and_summary_queries
from airflow_provider_backpressure.ledger.database import Database
from airflow_provider_backpressure.ledger.tables import hydration as hydrations
from airflow_provider_backpressure.ledger.tables import phase as phases
from airflow_provider_backpressure.ledger.tables import range as ranges
from airflow_provider_backpressure.ledger.tables import sample as samples
from airflow_provider_backpressure.ledger.tables import statistics


class SqlReader:
    """Methods of :class:`..repository.SqlLedger`, which has the database. Implements ``LedgerReader``."""

    _database: Database

    def hydration(self, hydration_id: str) -> Hydration:
        with self._database.read() as connection:
            return hydrations.by_id(connection, hydration_id)

    def find(self, *, environment: str, source_identity: str, sink_identity: str) -> Hydration | None:
        digest = hydrations.identity(
            environment=environment, source_identity=source_identity, sink_identity=sink_identity
        )
        with self._database.read() as connection:
            return hydrations.by_identity(connection, digest)

    def hydrations(self, *, owner: str | None = None) -> list[Hydration]:
        with self._database.read() as connection:
            return hydrations.latest_first(connection, owner)

    def gate(self, hydration_id: str) -> GateState:
        with self._database.read() as connection:
            return gate_and_summary_queries.state(connection, hydration_id)

    def counts(self, plan_id: str) -> RangeCounts:
        with self._database.read() as connection:
            return ranges.count(connection, plan_id)

    def ranges(
        self, plan_id: str, *, states: Sequence[RangeState] | None = None, after_seq: int = -1, limit: int | None = None
    ) -> list[RangeRecord]:
        with self._database.read() as connection:
            return ranges.page(connection, plan_id, states=states, after_seq=after_seq, limit=limit)

    def range(self, plan_id: str, seq: int) -> RangeRecord:
        with self._database.read() as connection:
            return ranges.one(connection, plan_id, seq)[0]

    def find_abandoned(self, hydration_id: str, *, lane: str | None = None) -> list[RangeRecord]:
        with self._database.read() as connection:
            return ranges.find_abandoned(connection, hydration_id=hydration_id, lane=lane)

    def statistics(self, hydration_id: str) -> list[WorkerStatistics]:
        with self._database.read() as connection:
            return statistics.read_statistics(connection, hydration_id)

    def rate(self, hydration_id: str, *, seconds: float = 60.0) -> float | None:
        with self._database.read() as connection:
            return samples.rate(connection, hydration_id, seconds=seconds)

    def flow(self, hydration_id: str, *, seconds: float = 60.0) -> dict[Stage, StageTime]:
        with self._database.read() as connection:
            return statistics.read_flow(connection, hydration_id, seconds=seconds)

    def probe(self, hydration_id: str) -> str | None:
        with self._database.read() as connection:
            return hydrations.probe(connection, hydration_id)

    def preview(self, hydration_id: str) -> str | None:
        with self._database.read() as connection:
            return hydrations.preview(connection, hydration_id)

    def spans(self, hydration_id: str) -> list[Span]:
        with self._database.read() as connection:
            return phases.read_spans(connection, hydration_id)

    def push_counts(self) -> list[str]:
        with self._database.read() as connection:
            return statistics.latest(connection)


class SqlViews:
    """Methods of :class:`..repository.SqlLedger`, which has the database. Implements ``Views``."""

    _database: Database

    def owners(self) -> set[str]:
        with self._database.read() as connection:
            return hydrations.owners(connection)

    def find_owners(self, ids: Collection[str]) -> dict[str, str]:
        with self._database.read() as connection:
            return hydrations.find_owners(connection, ids)

    def clusters(self) -> dict[str, set[str]]:
        with self._database.read() as connection:
            return hydrations.clusters(connection)

    def glances(
        self, *, owners: Collection[str] | None = None, ids: Collection[str] | None = None, limit: int, offset: int = 0
    ) -> list[HydrationSummary]:
        with self._database.read() as connection:
            found = hydrations.chosen(connection, owners=owners, ids=ids, limit=limit, offset=offset)
            return gate_and_summary_queries.read_summaries(connection, found)

    def how_many(self, *, owners: Collection[str]) -> int:
        with self._database.read() as connection:
            return hydrations.how_many(connection, owners)

    def history(self, hydration_id: str, *, seconds: float, most: int = 600) -> list[Sample]:
        with self._database.read() as connection:
            return chart_data.history(connection, hydration_id, seconds=seconds, most=most)

    def flows(self, hydration_id: str, *, seconds: float, most: int = 120) -> list[FlowAt]:
        with self._database.read() as connection:
            return stretches(statistics.since(connection, hydration_id, seconds=seconds), seconds=seconds, most=most)

    def tiles(self, plan_id: str, *, most: int = 2_000) -> list[Tile]:
        with self._database.read() as connection:
            return chart_data.tiles(connection, plan_id, most=most)
