"""The ledger's tables within Airflow's metadata database: ``airflow db migrate``, ``check-migrations``, ``reset``."""

from typing import Any

from airflow.utils.db_manager import BaseDBManager
from alembic import command
from alembic.config import Config

from airflow_provider_backpressure.ledger import revision as versions
from airflow_provider_backpressure.ledger.migration import ALEMBIC_INI, MIGRATIONS
from airflow_provider_backpressure.ledger.models import metadata
from airflow_provider_backpressure.ledger.revision import VERSION_TABLE


class BackpressureDBManager(BaseDBManager):
    """Named in provider info as ``db-managers``; Airflow calls it."""

    metadata = metadata
    version_table_name = VERSION_TABLE
    migration_dir = str(MIGRATIONS)
    alembic_file = str(ALEMBIC_INI)
    supports_table_dropping = True

    def get_alembic_config(self) -> Config:
        """Return the configuration with Airflow's own engine, so that its connect arguments hold here too."""
        config: Config = super().get_alembic_config()  # type: ignore[no-untyped-call]
        config.attributes["engine"] = self.session.get_bind().engine
        return config

    def upgradedb(self, *args: Any, **values: Any) -> None:
        """Bring the tables to the newest revision; ``LedgerRefused`` where a later release has been here."""
        versions.refuse_newer(self.get_current_revision(), address="the metadata database")  # type: ignore[no-untyped-call]
        super().upgradedb(*args, **values)  # type: ignore[no-untyped-call]

    def downgrade(self, to_revision: str, from_revision: str | None = None, show_sql_only: bool = False) -> None:
        """Go back to an earlier revision, or print the statements that would."""
        config = self.get_alembic_config()
        if show_sql_only:
            command.downgrade(config, revision=f"{from_revision or 'head'}:{to_revision}", sql=True)
        else:
            command.downgrade(config, revision=to_revision)
