"""psycopg's errors as one plain sentence, without secrets: refused for good, or unavailable for now."""

from dataclasses import dataclass

import psycopg

from airflow_provider_backpressure.connectors.relational.errors import DriverErrors, where
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.exceptions import Terminal, Transient

_PASSING = ("08", "40", "53", "55006", "55P03", "57014", "57P", "58")
"""Classes and codes of SQLSTATE that may be gone the next time: connection, conflict, resources, lock, shutdown."""
_HELD_UP = ("40P01", "55006", "55P03", "57014")
"""Of those what is about the tables of a statement: the server serves others meanwhile."""
_REFUSED_AT_THE_DOOR = (
    *("authentication failed", "no password supplied", "does not exist", "pg_hba.conf", "permission"),
    *("certificate", "does not support SSL"),
)
"""At the door there is no SQLSTATE yet, only libpq's words."""


@dataclass(frozen=True, kw_only=True)
class Errors(DriverErrors):
    """psycopg's errors."""

    raised = (psycopg.Error,)

    def translate(self, error: psycopg.Error, endpoint: Endpoint) -> Terminal | Transient:
        """See :meth:`..relational.errors.DriverErrors.translate`."""
        if is_lost(error):
            return self.unavailable(f"The connection to {where(endpoint)} was lost: {words(error)}.")
        if (error.sqlstate or "").startswith(_PASSING):
            return self.unavailable(f"PostgreSQL at {where(endpoint)} could not answer: {words(error)}.")
        return self.refused(f"PostgreSQL at {where(endpoint)} refused: {words(error)}.")

    def at_the_door(self, error: psycopg.Error, endpoint: Endpoint) -> Terminal | Transient:
        """See :meth:`..relational.errors.DriverErrors.at_the_door`."""
        said = words(error)
        if isinstance(error, psycopg.ProgrammingError):
            return self.refused(f"The connection {endpoint.conn_id} has an option that cannot be used: {said}.")
        if any(sign in said for sign in _REFUSED_AT_THE_DOOR):
            return self.refused(f"PostgreSQL at {where(endpoint)} does not let {endpoint.user} in: {said}.")
        return self.unavailable(f"PostgreSQL at {where(endpoint)} cannot be reached: {said}.")


def is_lost(error: psycopg.Error) -> bool:
    """Whether an error says that the connection itself is gone."""
    if isinstance(error, psycopg.InterfaceError | psycopg.errors.IdleInTransactionSessionTimeout):
        return True
    return isinstance(error, psycopg.OperationalError) and (error.sqlstate or "57P01") in {"57P01", "57P02", "57P05"}


def is_held_up(error: Exception) -> bool:
    """Whether a translated error says that the tables of a statement are in use: the server serves others meanwhile."""
    cause = error.__cause__
    return isinstance(cause, psycopg.Error) and not is_lost(cause) and cause.sqlstate in _HELD_UP


def words(error: psycopg.Error) -> str:
    """Return what PostgreSQL or libpq says, as part of one sentence."""
    text = error.diag.message_primary or str(error).split("\n", 1)[0]
    for noise in ("connection failed: ", " failed: FATAL:  ", " failed: "):
        if noise in text:
            text = text.split(noise, 1)[1]
    return " ".join(text.split()).removesuffix(".") or type(error).__name__
