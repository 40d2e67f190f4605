"""The version of a ledger: read, and refused where it is another release's."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError

from airflow_provider_backpressure.exceptions import LedgerRefused

VERSION_TABLE = "alembic_version_backpressure"
REVISION = "0014"
"""Of the newest migration. Revisions are numbers of four digits, so that they compare as text."""

_VERSION: sa.Select[Any] = sa.select(sa.column("version_num")).select_from(sa.table(VERSION_TABLE))


def found(engine: Engine) -> str | None:
    """Return a database's revision; ``None`` where none is written down, or our role may not read it."""
    with engine.connect() as connection:
        try:
            return connection.execute(_VERSION).scalars().first()
        except DBAPIError as error:
            if error.connection_invalidated:
                raise
            return None


def refuse_newer(revision: str | None, *, address: str) -> None:
    """Raise ``LedgerRefused`` for a ledger that a later release has migrated: this one does not know its rules."""
    if revision is not None and revision > REVISION:
        raise LedgerRefused(
            f"The ledger in {address} is of version {revision}, and this release knows {REVISION} at most: upgrade "
            "airflow-provider-backpressure here."
        )


def refuse_other(revision: str | None, *, address: str) -> None:
    """Raise ``LedgerRefused`` for a ledger of a later release, and for one that is still to be migrated."""
    refuse_newer(revision, address=address)
    if revision is not None and revision < REVISION:
        raise LedgerRefused(
            f"The ledger in {address} is of version {revision}, and this release needs {REVISION}: run "
            "`airflow db migrate`."
        )
