"""PyMySQL's errors as one plain sentence, without secrets: refused for good, or unavailable for now."""

import ssl
from dataclasses import dataclass

import pymysql

from airflow_provider_backpressure.connectors.relational.errors import DriverErrors, where
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.exceptions import Terminal, Transient

_LOST = frozenset({0, 1053, 1077, 1079, 1927, 2006, 2013, 2014, 2055, 3169, 4031})
"""Codes that say that the connection is gone: shutdown, killed, idle for too long, broken off."""
_PASSING = frozenset({1040, 1203, 1205, 1213, 1317, 1907, 3024, 3572, 4025})
"""Codes of what may be gone the next time: too many connections, a lock, a deadlock, an interrupted statement."""
_UNREACHABLE = frozenset({*_LOST, 1040, 1129, 1203, 2002, 2003, 2005})
"""At the door, codes of what another try may get past; any other is the server's no."""
_NO_TLS = 2026
TEXT_REMEDY = "leave the column out, or let it be one of utf8mb4 or of bytes (varbinary)."
"""What to do about text that has no counterpart in Unicode."""


@dataclass(frozen=True, kw_only=True)
class Errors(DriverErrors):
    """PyMySQL's errors, and those of its socket."""

    raised = (pymysql.Error, OSError)

    def translate(self, error: Exception, endpoint: Endpoint) -> Terminal | Transient:
        """See :meth:`..relational.errors.DriverErrors.translate`."""
        if is_lost(error):
            return self.unavailable(f"The connection to {where(endpoint)} was lost: {words(error)}.")
        if code(error) in _PASSING:
            return self.unavailable(f"MySQL at {where(endpoint)} could not answer: {words(error)}.")
        return self.refused(f"MySQL at {where(endpoint)} refused: {words(error)}.")

    def at_the_door(self, error: Exception, endpoint: Endpoint) -> Terminal | Transient:
        """See :meth:`..relational.errors.DriverErrors.at_the_door`."""
        if isinstance(error, OSError) and not isinstance(error, pymysql.Error):
            return self.refused(f"The connection {endpoint.conn_id} has an option that cannot be used: {words(error)}.")
        cause = getattr(error, "original_exception", None)
        if code(error) == _NO_TLS or isinstance(cause, ssl.SSLCertVerificationError):
            return self.refused(
                f"MySQL at {where(endpoint)} cannot be reached with the encryption that is asked for: {words(error)}."
            )
        if isinstance(error, pymysql.Error) and code(error) in _UNREACHABLE:
            return self.unavailable(f"MySQL at {where(endpoint)} cannot be reached: {words(error)}.")
        return self.refused(f"MySQL at {where(endpoint)} does not let {endpoint.user} in: {words(error)}.")


def is_lost(error: Exception) -> bool:
    """Whether an error says that the connection itself is gone."""
    if isinstance(error, pymysql.Error):
        return isinstance(error, pymysql.InterfaceError) or code(error) in _LOST
    return isinstance(error, OSError)


def code(error: Exception) -> int:
    """Return MySQL's number of an error, 0 where it has none."""
    first = error.args[0] if error.args else 0
    return first if isinstance(first, int) else 0


def words(error: Exception) -> str:
    """Return what MySQL or the driver says, as part of one sentence."""
    text = str(error.args[1] if isinstance(error, pymysql.Error) and len(error.args) > 1 else error)
    return " ".join(text.split()).removesuffix(".") or type(error).__name__
