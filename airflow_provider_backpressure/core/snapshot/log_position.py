"""Places between two transactions of a database's log."""

from dataclasses import dataclass, field
from typing import Self

from airflow_provider_backpressure.exceptions import InvalidDeclaration


@dataclass(frozen=True, kw_only=True, order=True)
class LogPosition:
    """A place in a database's log: what was committed before it has ``at`` below its own.

    Written as ``<at> <text>``, and so kept in plans, markers and windows.
    """

    at: int
    """Rises with the log: in bytes of it, as an LSN does; of a binlog it is the number of transactions."""
    text: str = field(compare=False)
    """As the database has it: ``0/1A2B3C``, or a binlog's GTIDs. What only the log's reader needs follows an ``@``:
    where in a binlog's files to look, or what marks a publication."""

    def __post_init__(self) -> None:
        """Refuse what lies before the beginning."""
        if self.at < 0:
            raise InvalidDeclaration(f"No log has a position {self.at}.")

    def __str__(self) -> str:
        """Return ``<at> <text>``."""
        return f"{self.at} {self.text}"

    @property
    def label(self) -> str:
        """Return the text as people read it."""
        return self.text.partition("@")[0]

    @classmethod
    def parse(cls, value: str) -> Self:
        """Read what ``str`` wrote."""
        at, _, text = value.partition(" ")
        return cls(at=int(at), text=text)
