"""The part of the ledger on a database that pages read. See ``core.progress.views``."""

from collections.abc import Collection

from airflow_provider_backpressure.core.progress.samples import Sample
from airflow_provider_backpressure.core.progress.summary import HydrationSummary
from airflow_provider_backpressure.core.progress.views import FlowAt, Tile, stretches
from airflow_provider_backpressure.ledger.database import Database
from airflow_provider_backpressure.ledger.queries import charts
from airflow_provider_backpressure.ledger.queries import overview as glances
from airflow_provider_backpressure.ledger.tables import flow as flows
from airflow_provider_backpressure.ledger.tables import hydration as hydrations


class SqlViews:
    """Methods of :class:`..store.SqlLedger`, which has the database."""

    _database: Database

    def owners(self) -> set[str]:
        """See ``Views.owners``."""
        with self._database.read() as connection:
            return hydrations.owners(connection)

    def find_owners(self, ids: Collection[str]) -> dict[str, str]:
        """See ``Views.find_owners``."""
        with self._database.read() as connection:
            return hydrations.find_owners(connection, ids)

    def clusters(self) -> dict[str, set[str]]:
        """See ``Views.clusters``."""
        with self._database.read() as connection:
            return hydrations.clusters(connection)

    def glances(
        self, *, owners: Collection[str] | None = None, ids: Collection[str] | None = None, limit: int, offset: int = 0
    ) -> list[HydrationSummary]:
        """See ``Views.glances``."""
        with self._database.read() as connection:
            found = hydrations.chosen(connection, owners=owners, ids=ids, limit=limit, offset=offset)
            return glances.read_summaries(connection, found)

    def how_many(self, *, owners: Collection[str]) -> int:
        """See ``Views.how_many``."""
        with self._database.read() as connection:
            return hydrations.how_many(connection, owners)

    def history(self, hydration_id: str, *, seconds: float, most: int = 600) -> list[Sample]:
        """See ``Views.history``."""
        with self._database.read() as connection:
            return charts.history(connection, hydration_id, seconds=seconds, most=most)

    def flows(self, hydration_id: str, *, seconds: float, most: int = 120) -> list[FlowAt]:
        """See ``Views.flows``."""
        with self._database.read() as connection:
            return stretches(flows.since(connection, hydration_id, seconds=seconds), seconds=seconds, most=most)

    def tiles(self, plan_id: str, *, most: int = 2_000) -> list[Tile]:
        """See ``Views.tiles``."""
        with self._database.read() as connection:
            return charts.tiles(connection, plan_id, most=most)
