"""A TCP proxy in front of a server that is made slow, silent or unreliable while it runs."""

import socket
import struct
import threading
import time
from contextlib import suppress

PIECE = 16 * 1024
_RESET = struct.pack("ii", 1, 0)


class Proxy:
    """Passes bytes on in both ways; those to the server no faster than :attr:`bytes_per_second`, all together."""

    def __init__(self, host: str, port: int) -> None:
        self.target = (host, port)
        self.bytes_per_second: float | None = None
        """``None`` for as fast as they come; 0 holds them."""
        self.bytes = 0
        """Handed on to the server so far, about: several connections may count at one moment."""
        self.latency = 0.0
        """Seconds that each piece takes, in each way."""
        self.silent = False
        """Pass nothing on in either way, without an error: half-open, as behind a firewall that has forgotten."""
        self._turn = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._open) // 2

    def reset(self) -> int:
        """Break every connection with a reset, in both ways; return how many there were. New ones are taken."""
        broken = list(self._open)
        for each in broken:
            with suppress(OSError):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                each.shutdown(socket.SHUT_RDWR)
        return len(broken) // 2

    def close(self) -> None:
        """End every connection."""
        self.bytes_per_second, self.silent = None, False
        self._listener.close()
        for each in list(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(self.target)
                except OSError:
                    client.close()
                    continue
                self._open |= {client, server}
                threading.Thread(target=self._serve, args=(client, server), daemon=True).start()

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        with client, server:
            back = threading.Thread(target=self._pump, args=(server, client, False), daemon=True)
            back.start()
            self._pump(client, server, True)
            back.join()
        self._open -= {client, server}

    def _pump(self, source: socket.socket, sink: socket.socket, held: bool) -> None:
        with suppress(OSError):
            while piece := source.recv(PIECE):
                if held:
                    self.bytes += len(piece)
                    self._wait(len(piece))
                if self.latency:
                    time.sleep(self.latency)
                while self.silent:
                    time.sleep(0.05)
                sink.sendall(piece)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def _wait(self, size: int) -> None:
        """Take the time that so many bytes need, one connection after the other."""
        with self._turn:
            while (pace := self.bytes_per_second) == 0:
                time.sleep(0.05)
            if pace:
                time.sleep(size / pace)
