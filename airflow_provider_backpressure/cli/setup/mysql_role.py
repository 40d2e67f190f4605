"""The restricted role on a metadata database that is MySQL."""

from contextlib import closing

from sqlalchemy.engine import URL

from airflow_provider_backpressure.exceptions import BackpressureError
from airflow_provider_backpressure.hooks.backpressure import MYSQL_OPTIONS
from airflow_provider_backpressure.ledger.database import Database
from airflow_provider_backpressure.ledger.grants import write_grants_on_mysql


def make_role(address: URL, role: str, password: str) -> None:
    """Make the role for any host, or give it a new password, and let it use the ledger's tables.

    ``MissingRight`` where the account of ``address`` may not do that, otherwise the ledger's other errors. MySQL
    commits     each of the statements by itself; all may be run again.
    """
    try:
        with closing(Database(address)) as database:
            _grant(database, role, password)
    except BackpressureError as error:
        # Its causes show the statement, and that the password.
        raise type(error)(str(error)) from None


def _grant(database: Database, role: str, password: str) -> None:
    account = f"'{role}'@'%%'"
    schema = database.engine.dialect.identifier_preparer.quote_identifier(str(database.engine.url.database))
    with database.write() as link:
        # Literals, since not every driver takes parameters here. The server hides passwords in its logs.
        link.exec_driver_sql(f"CREATE USER IF NOT EXISTS {account} IDENTIFIED BY '{password}'")
        link.exec_driver_sql(f"ALTER USER {account} IDENTIFIED BY '{password}'")
        for statement in write_grants_on_mysql(account, schema=schema):
            link.exec_driver_sql(statement)


def extras(address: URL) -> dict[str, str]:
    """Return the extras that the ledger's connection needs to reach the same server."""
    return {"dialect": "mysql", **{name: str(address.query[name]) for name in MYSQL_OPTIONS if name in address.query}}
