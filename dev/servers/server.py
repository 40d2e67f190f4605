"""What a server is, what it takes to start one, and what every kind of server has to declare."""

import secrets
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from dev.downloads import Downloads

HOST = "127.0.0.1"


class ServiceError(Exception):
    """A server could not be started, asked or ended; the first sentence says what to do."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """One server as it is now. `pid` is None where it does not run; its port and data are kept all the same."""

    name: str
    kind: str
    host: str
    port: int
    pid: int | None
    log: Path
    url: str = field(repr=False)
    """`postgresql://…` and `mysql://…` with user and password, `sc://…`, `spark://…`, Kafka's bootstrap server."""
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    ui_port: int | None = None
    """Port of Spark's page and REST interface."""
    login_port: int | None = None
    """Port of Kafka's listener that asks for a login."""

    @property
    def running(self) -> bool:
        """Whether its process was alive when this was read."""
        return self.pid is not None

    @property
    def jdbc_url(self) -> str:
        """JDBC address of a database, without user and password."""
        return f"jdbc:{self.url.partition(':')[0]}://{self.host}:{self.port}/{self.url.rpartition('/')[2]}"

    @property
    def ui_url(self) -> str:
        """Address of Spark's page."""
        return f"http://{self.host}:{self.ui_port}"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a caller may choose. Each kind looks only at what concerns it."""

    workers: int = 2
    worker_cores: int = 2
    worker_memory: str = "1g"
    apart: bool = False
    """Whether each worker has a loopback address of its own, so that Spark takes them for several machines."""
    master: str = "local[4]"
    """Master of the Connect server; the word `standalone` means the one started here."""
    driver_memory: str = "1g"
    spark_python: str = sys.executable
    """Interpreter of the Connect server's own and its executors' Python, which has PySpark."""
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    jars: tuple[str, ...] = ("postgres",)
    """Connector jars by the name of their source, or paths of jars."""
    fsync: bool = False
    """Whether PostgreSQL survives a crash of the machine; that of a process it survives without."""
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Further settings by kind (`postgres`, `mysql`, `kafka`), as its configuration file spells them."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where one server lives."""

    name: str
    folder: Path
    home: Path
    downloads: Downloads
    mark: str
    """What helpers that prepare the server are marked with, as its processes are."""

    @property
    def log(self) -> Path:
        """What the server says."""
        return self.folder / "server.log"

    def password(self) -> str:
        """Return this server's password, made once and kept in a file that only the owner can read."""
        kept = self.folder / "password"
        if not kept.exists():
            kept.touch(mode=0o600)
            kept.write_text(secrets.token_urlsafe(12))
        return kept.read_text()


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A prepared server: only the spawn is left."""

    command: list[str]
    cwd: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    """Account to run as, where it cannot be the caller's."""
    url: str = ""
    login: str | None = None
    password: str | None = field(default=None, repr=False)


class Kind(Protocol):
    """One kind of server."""

    ports: tuple[str, ...]
    """Names of the ports it needs; the first is where it serves, `ui_port` is Spark's page."""
    stop_signal: signal.Signals
    patience: float
    """Seconds it gets to end by itself before it is killed."""
    deadline: float
    """Seconds until it must answer."""

    def chosen(self, options: Options) -> dict[str, Any]:
        """Return the options that make a running server another one."""

    def prepare(self, place: Place, options: Options, ports: Mapping[str, int]) -> Launch:
        """Fetch what is needed, initialise the data where there is none, and say how to start."""

    def answers(self, server: Server) -> bool:
        """Whether it answers a real request."""
