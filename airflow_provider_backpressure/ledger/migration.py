"""Bringing a ledger outside Airflow's metadata database to the newest revision. Does not import Airflow."""

from collections.abc import Callable
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from sqlalchemy.engine import URL

from airflow_provider_backpressure.ledger import revision as versions
from airflow_provider_backpressure.ledger.database import Database
from airflow_provider_backpressure.ledger.models import metadata
from airflow_provider_backpressure.ledger.revision import VERSION_TABLE

HERE = Path(__file__).parent
MIGRATIONS = HERE / "migrations"
ALEMBIC_INI = HERE / "alembic.ini"


def migrate(url: str | URL, revision: str = "head") -> None:
    """Upgrade the ledger at ``url``, from nothing or from any earlier revision. Idempotent.

    ``LedgerUnavailable`` where the database does not answer, ``LedgerRefused`` where the role may not create tables and
    where a later release has migrated the ledger.
    """
    _run(url, revision, command.upgrade)


def downgrade(url: str | URL, revision: str) -> None:
    """Go back to an earlier revision; ``base`` drops the ledger's tables and all that they hold."""
    _run(url, revision, command.downgrade)


def drop(url: str | URL) -> None:
    """Drop the ledger's tables, of whatever revision, and all that they hold. Idempotent.

    ``LedgerRefused`` where the role does not own them.
    """
    database = Database(url)
    try:
        with database.translate_errors(), database.engine.begin() as connection:
            metadata.drop_all(connection)
            sa.Table(VERSION_TABLE, sa.MetaData()).drop(connection, checkfirst=True)
    finally:
        database.close()


def _run(url: str | URL, revision: str, run: Callable[[Config, str], None]) -> None:
    database = Database(url)
    config = Config(ALEMBIC_INI)
    config.attributes["engine"] = database.engine
    try:
        with database.translate_errors():
            versions.refuse_newer(versions.found(database.engine), address=database.address)
            run(config, revision)
    finally:
        database.close()
