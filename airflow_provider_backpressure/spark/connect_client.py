"""Clients of Spark Connect as this product opens them: tried for seconds, and closed by nobody but their owner."""

import atexit
import socket
from typing import Any

from pyspark.sql.connect.client import DefaultChannelBuilder
from pyspark.sql.connect.client.retries import DefaultPolicy
from pyspark.sql.connect.session import SparkSession

AT_EXIT = ("_cleanup_ml", "_cleanup_ml_cache", "_on_exit")
"""What a client of PySpark 4.0, 4.1, and from 4.2 on does when the interpreter ends."""
CONNECT_SECONDS = 5.0
# Spark's own policy tries for ten minutes, silently; this one gives up after about twelve seconds.
_RETRIES: dict[str, Any] = {"max_retries": 6, "initial_backoff": 100, "max_backoff": 5000, "jitter": 0}


class _Session(SparkSession):
    def __del__(self) -> None:
        """Close nothing: its owner closes it.

        PySpark's own closes the client, and that ends a pool which all clients of the process share; collected in a
        thread that is just handing work to that pool, it waits for itself for ever (seen on 4.1.3).
        """


def open_session(channel: DefaultChannelBuilder) -> SparkSession:
    """Return a session of the channel's id; nothing is asked of the server yet."""
    session = _Session(channel)
    let_go(session.client)
    session.client.set_retry_policies([DefaultPolicy(**_RETRIES)])
    return session


def let_go(client: Any) -> None:
    """Have nothing done for it when the interpreter ends: PySpark keeps every client until then."""
    for name in AT_EXIT:
        if hasattr(client, name):
            atexit.unregister(getattr(client, name))


def hang_up(client: Any) -> None:
    """Close the channel alone: a client's own ``close`` ends the pool that the clients of other sessions work with."""
    client._channel.close()


def knock(host: str, port: int) -> None:
    """Raise ``OSError`` where nothing listens."""
    socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
