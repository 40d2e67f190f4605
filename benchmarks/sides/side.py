"""The order of a side, and what a side has to be able to do."""

import json
from dataclasses import dataclass, field
from typing import Any, Protocol

SCHEMA = "raw"
"""Where targets are; sources are in ``public``."""
CORES = 4
"""Tasks that a Spark Connect server runs at once (``local[4]``)."""


@dataclass(frozen=True, kw_only=True)
class Login:
    """A server's address and account."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Order:
    """One table or topic to be copied. A table's ``l_id`` runs from 1 to ``rows``."""

    postgres: Login
    """The server of targets and ledger, and of a source that is in PostgreSQL."""
    sink_at: Login | None = None
    """How the target's writer reaches its server, where that is another way."""
    sink: str
    """Database of the target, which exists and is empty."""
    ledger: str
    """Database of the ledger."""
    source: str = ""
    """Database of the source, where that is one."""
    mysql: Login | None = None
    """The server of a source that is in MySQL."""
    brokers: str = ""
    """Address of a source that is in Kafka."""
    folder: str = ""
    """A folder that is not there yet: for a target of files, or for what a side keeps while it works."""
    table: str
    """Name of source and target; empty for every table of the source's schema ``public``, where the side knows that."""
    rows: int
    remote: str = ""
    """Address of the Spark Connect server; empty for a side without Spark."""
    ui_url: str = ""
    credits: int
    range_rows: int
    resumes: bool = False
    """Continue with what is left of an earlier turn, as a command that is given again does; otherwise start again."""

    def url(self, database: str) -> str:
        """Return the URL of a database of PostgreSQL, as libpq and asyncpg take it."""
        login = self.postgres
        return f"postgresql://{login.user}:{login.password}@{login.host}:{login.port}/{database}"


def read(line: str) -> Order:
    """Return the order of a line of JSON."""
    told = json.loads(line)
    mysql = Login(**told["mysql"]) if told["mysql"] else None
    sink_at = Login(**told["sink_at"]) if told["sink_at"] else None
    return Order(**{**told, "postgres": Login(**told["postgres"]), "mysql": mysql, "sink_at": sink_at})


class Side(Protocol):
    """One way to copy a table."""

    def open(self) -> None:
        """Do what is done once for many tables, up to a first answer."""
        ...

    def run(self) -> dict[str, Any]:
        """Copy; return what is worth reporting."""
        ...

    def close(self) -> None:
        """Give everything back."""
        ...
