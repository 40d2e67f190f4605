"""What a side is told, and what it has to be able to do."""

from dataclasses import dataclass, field
from typing import Any, Protocol

SCHEMA = "raw"
"""Where targets are; sources are in ``public``."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """One table to be copied from a database into another of the same server. ``l_id`` runs from 1 to ``rows``."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    source: str
    """Database of the source."""
    sink: str
    """Database of the target, which exists and is empty."""
    ledger: str
    """Database of the ledger."""
    table: str
    """Name of both tables."""
    rows: int
    remote: str = ""
    """Address of the Spark Connect server; empty for a side without Spark."""
    ui_url: str = ""
    credits: int
    range_rows: int

    def url(self, database: str) -> str:
        """Return the URL of a database, as libpq and asyncpg take it."""
        return f"postgresql://{self.user}:{self.password}@{self.host}:{self.port}/{database}"


class Side(Protocol):
    """One way to copy a table."""

    def open(self) -> None:
        """Do what is done once for many tables, up to a first answer."""
        ...

    def run(self) -> dict[str, Any]:
        """Copy; returns what is worth telling about it."""
        ...

    def close(self) -> None:
        """Give everything back."""
        ...
