"""PostgreSQL 18 with its own data folder, run as `nobody` where the caller is root."""

import platform
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dev.servers import account, process
from dev.servers.server import HOST, Kind, Launch, Options, Place, Server, ServiceError

USER = "postgres"
# The builtin provider needs no locale of the system.
INITDB = ["--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--no-sync"]
# Tests log in thousands of times: 4,096 iterations would be most of what a login costs.
SCRAM = ["--auth-local=scram-sha-256", "--auth-host=scram-sha-256", "--set=scram_iterations=1"]
SETTINGS = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "wal_level": "logical",
    "max_replication_slots": "16",
    "max_wal_senders": "16",
    "max_connections": "200",
    "shared_buffers": "256MB",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] %a ",
}


class Postgres(Kind):
    """PostgreSQL; its processes may be killed at any time, its machine only with `fsync`."""

    ports = ("port",)
    stop_signal = signal.SIGINT  # "fast": disconnects the clients and ends in order
    patience = 15.0
    deadline = 120.0

    def chosen(self, options: Options) -> dict[str, Any]:
        """Durability and further settings."""
        return {"fsync": options.fsync, "settings": dict(options.settings.get("postgres", {}))}

    def prepare(self, place: Place, options: Options, ports: Mapping[str, int]) -> Launch:
        """Unpack the program, make the data folder once, and write the settings."""
        user = account.unprivileged()
        binaries = _binaries(place, user)
        data = data_folder(place.home, place.folder)
        if not data.exists():
            _initialise(binaries, data, place, user)
        settings = {**SETTINGS, "port": str(ports["port"])}
        if not options.fsync:
            settings |= {"fsync": "off", "full_page_writes": "off"}
        _write_settings(data, {**settings, **options.settings.get("postgres", {})})
        return Launch(
            command=[str(binaries / "postgres"), "-D", str(data)],
            cwd=data,
            environment={"TZ": "UTC", "LC_ALL": "C"},
            user=user,
            url=f"postgresql://{USER}:{place.password()}@{HOST}:{ports['port']}/postgres",
            login=USER,
            password=place.password(),
        )

    def answers(self, server: Server) -> bool:
        """Whether a query comes back."""
        import psycopg

        try:
            with psycopg.connect(server.url, connect_timeout=2) as connection:
                return connection.execute("SELECT 1").fetchone() == (1,)
        except psycopg.OperationalError:
            return False


def data_folder(home: Path, folder: Path) -> Path:
    """Return where the data is; outside of the home where `nobody` cannot reach that."""
    user = account.unprivileged()
    return account.reachable(folder, home, user) / "data"


def _binaries(place: Place, user: str | None) -> Path:
    machine = platform.machine()
    if machine not in ("x86_64", "aarch64"):
        raise ServiceError(f"There is no PostgreSQL to fetch for {machine}: use docker-compose.yml.")
    cache = place.downloads.folder / "unpacked"
    cache.mkdir(parents=True, exist_ok=True)
    into = cache if user is None or account.open_to_all(cache / "x") else account.shared()
    return place.downloads.unpacked(f"postgres-{machine}", member=".txz", into=into) / "bin"


def _initialise(binaries: Path, data: Path, place: Place, user: str | None) -> None:
    """Make the data folder, complete or not at all."""
    account.make_way(data.parent, user)
    scratch = data.with_name("initdb")
    shutil.rmtree(scratch, ignore_errors=True)
    account.give(scratch, user)
    secret = scratch.with_name("initdb.password")
    secret.touch(mode=0o600)
    secret.write_text(place.password())
    if user:
        shutil.chown(secret, user)
    command = [str(binaries / "initdb"), "-D", str(scratch), "-U", USER, f"--pwfile={secret}", *INITDB, *SCRAM]
    done = process.run(command, mark=place.mark, cwd=scratch, user=user)
    secret.unlink()
    if done.returncode != 0:
        raise ServiceError(f"initdb failed:\n{done.stdout[-800:]}{done.stderr[-800:]}")
    with (scratch / "postgresql.conf").open("a") as settings:
        settings.write("include 'services.conf'\n")
    scratch.rename(data)


def _write_settings(data: Path, settings: Mapping[str, str]) -> None:
    """Write a file of its own, which `ALTER SYSTEM` still overrides; arguments of the program it could not."""
    lines = (f"{name} = '{value.replace(chr(39), chr(39) * 2)}'" for name, value in settings.items())
    file = data / "services.conf"
    file.write_text("\n".join(lines) + "\n")
    file.chmod(0o644)
