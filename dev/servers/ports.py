"""Free ports that stay free while their server is down for a moment."""

import random
import socket
from collections.abc import Iterable
from functools import partial

from dev.servers.process import until
from dev.servers.server import HOST

# Below the kernel's ephemeral range: otherwise a stranger's outgoing connection could take the port during a restart.
LOWEST, HIGHEST = 20_000, 32_000
LETTING_GO = 3.0
"""Seconds that a port may take to be free after the end of its server."""
_given: set[int] = set()


def accepts(port: int) -> bool:
    """Whether something listens there."""
    with socket.socket() as client:
        client.settimeout(1.0)
        return client.connect_ex((HOST, port)) == 0


def free(port: int) -> bool:
    """Whether a server can bind the port now."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind((HOST, port))
        except OSError:
            return False
    return True


def choose(names: Iterable[str], former: dict[str, int]) -> dict[str, int]:
    """Return a free port per name: the former one where it is still free.

    It may be so only in a moment: a killed JVM counts as dead before its last thread has let go of its sockets.
    """
    kept = {name: port for name, port in former.items() if until(partial(free, port), timeout=LETTING_GO)}
    return {name: kept.get(name) or _another() for name in names}


def _another() -> int:
    while True:
        port = random.randrange(LOWEST, HIGHEST)
        if port not in _given and free(port):
            _given.add(port)
            return port
