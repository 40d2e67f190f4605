"""MySQL 8.0, and MariaDB, which also serves where there is no MySQL to fetch; both with a binary log.

``BACKPRESSURE_MYSQLD`` names a MySQL server's program to take instead, such as another version or one with its plugins.
"""

import os
import platform
import shutil
import signal
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dev.servers import debian, libaio, process
from dev.servers.server import HOST, Kind, Launch, Options, Place, Server, ServiceError

USER = "root"
CHOSEN = "BACKPRESSURE_MYSQLD"
COMMON = {
    "bind_address": HOST,
    "server_id": "1",
    "log_bin": "binlog",
    "binlog_format": "ROW",
    "binlog_row_image": "FULL",
    "binlog_row_metadata": "FULL",
    "innodb_buffer_pool_size": "128M",
    "innodb_use_native_aio": "0",
    "innodb_flush_log_at_trx_commit": "2",
    "sync_binlog": "0",
    "skip_name_resolve": "1",
    "performance_schema": "OFF",
    "character_set_server": "utf8mb4",
    "default_time_zone": "+00:00",
    # Relative to the data folder: a socket's whole path may not exceed 107 characters.
    "socket": "mysql.sock",
}
MYSQL = {
    "mysqlx": "0",
    "gtid_mode": "ON",
    "enforce_gtid_consistency": "ON",
    # Every client can log in without TLS and without fetching a key first. MySQL 9 does not know this any more.
    "loose_default_authentication_plugin": "mysql_native_password",
    "auto_generate_certs": "OFF",
    "caching_sha2_password_auto_generate_rsa_keys": "OFF",
}


PACKAGES = (("mariadb-server-core",), ("mariadb-client-core",), ("liburing2",), ("libnuma1",))
"""Of Debian and its like."""
LACKING = "There is no MariaDB on this host: install it (`apt-get install mariadb-server`)."


class Mysql(Kind):
    """MySQL, or MariaDB in its place."""

    name = "mysql"
    ports = ("port",)
    stop_signal = signal.SIGTERM
    patience = 15.0
    deadline = 120.0

    def chosen(self, options: Options) -> dict[str, Any]:
        """Further settings."""
        return {"settings": dict(options.settings.get(self.name, {}))}

    def prepare(self, place: Place, options: Options, ports: Mapping[str, int]) -> Launch:
        """Fetch or find the program, make the data folder once, and write settings and account."""
        program = self.program(place)
        folders = [libaio.folder(place), *program.libraries] if program.fetched else []
        environment = {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, folders))} if folders else {}
        data, settings = place.folder / "data", place.folder / "my.cnf"
        _write(settings, {**program.settings, "port": str(ports["port"]), **options.settings.get(self.name, {})}, data)
        if not data.exists():
            program.initialise(settings, data, environment, place.mark)
        # A killed server leaves it behind, and its number may be another process's by now, or a zombie's.
        (data / f"{COMMON['socket']}.lock").unlink(missing_ok=True)
        account = place.folder / "account.sql"
        account.touch(mode=0o600)
        account.write_text(_account(place.password()))
        return Launch(
            command=[str(program.path), f"--defaults-file={settings}", f"--init-file={account}", *_as_root()],
            cwd=data,
            environment=environment,
            url=f"mysql://{USER}:{place.password()}@{HOST}:{ports['port']}/mysql",
            login=USER,
            password=place.password(),
        )

    def answers(self, server: Server) -> bool:
        """Whether the server greets (protocol 10): it does so once the account is made and clients may log in."""
        try:
            with socket.create_connection((HOST, server.port), timeout=2.0) as client:
                return client.recv(5)[4:] == b"\x0a"
        except OSError:
            return False

    def program(self, place: Place) -> "Program":
        """Return the program, fetched where it is missing."""
        return _mysql(place) if platform.machine() == "x86_64" or CHOSEN in os.environ else _mariadb(place)


class Mariadb(Mysql):
    """MariaDB, the system's own or Debian's."""

    name = "mariadb"

    def program(self, place: Place) -> "Program":
        """Return the program, fetched where it is missing."""
        return _mariadb(place)


class Program:
    """A MySQL server's program, its settings and how its data folder is made."""

    def __init__(self, path: Path, *, fetched: bool, installer: str | None = None, libraries: tuple[str, ...] = ()):
        """With an installer it is MariaDB, which does not initialise itself. ``libraries``: where else it finds any."""
        self.path, self.fetched, self.installer, self.libraries = path, fetched, installer, libraries
        self.settings = dict(COMMON)
        root = path.parent.parent
        if fetched:
            messages = root / "share" / "mysql" if installer else root / "share"
            self.settings |= {"basedir": str(root), "lc_messages_dir": str(messages)}
        if not installer:
            self.settings |= MYSQL

    def initialise(self, settings: Path, data: Path, environment: Mapping[str, str], mark: str) -> None:
        """Make the data folder, complete or not at all."""
        scratch = data.with_name("initialise")
        shutil.rmtree(scratch, ignore_errors=True)
        if self.installer:
            how = ["--auth-root-authentication-method=normal", "--skip-test-db"]
            command = [self.installer, f"--defaults-file={settings}", f"--datadir={scratch}", *how, *_as_root()]
            if self.fetched:
                command.append(f"--basedir={self.path.parent.parent}")
        else:
            command = [str(self.path), f"--defaults-file={settings}", f"--datadir={scratch}", "--initialize-insecure"]
            command += ["--skip-log-bin", *_as_root()]
        done = process.run(command, mark=mark, environment=environment, cwd=data.parent)
        if done.returncode != 0:
            raise ServiceError(f"MySQL's data folder could not be made:\n{done.stdout[-800:]}{done.stderr[-800:]}")
        scratch.rename(data)


def _mysql(place: Place) -> Program:
    if chosen := os.environ.get(CHOSEN):
        return Program(Path(chosen), fetched=False)
    root = place.downloads.unpacked("mysql-x86_64", member="Linux-amd64.tar.gz")
    return Program(next(root.rglob("mysqld")), fetched=True)


def _mariadb(place: Place) -> Program:
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"))
    server, installer = shutil.which("mariadbd", path=path), shutil.which("mariadb-install-db", path=path)
    if server is not None and installer is not None:
        return Program(Path(server), fetched=False, installer=installer)
    tree = debian.unpacked(place.downloads.folder, "mariadb", PACKAGES, mark=place.mark, lacking=LACKING) / "usr"
    libraries = tuple(str(folder) for folder in tree.glob("lib/*-linux-gnu"))
    installer = str(tree / "bin" / "mariadb-install-db")
    return Program(tree / "sbin" / "mariadbd", fetched=True, installer=installer, libraries=libraries)


def _write(file: Path, settings: Mapping[str, str], data: Path) -> None:
    # MariaDB removes other servers' temporary tables from a folder that it shares with them when it starts.
    temporary = data.with_name("tmp")
    temporary.mkdir(exist_ok=True)
    places = {"datadir": str(data), "tmpdir": str(temporary)}
    lines = (f"{name}={value}" for name, value in {**settings, **places}.items())
    file.write_text("[mysqld]\n" + "\n".join(lines) + "\n")


def _account(password: str) -> str:
    """Return what makes the account for connections over TCP; run at every start, so it may be there."""
    return (
        # MariaDB makes these, without a password, and they come before any other host.
        f"DROP USER IF EXISTS '{USER}'@'127.0.0.1', '{USER}'@'::1';\n"
        f"CREATE USER IF NOT EXISTS '{USER}'@'%' IDENTIFIED BY '{password}';\n"
        f"GRANT ALL PRIVILEGES ON *.* TO '{USER}'@'%' WITH GRANT OPTION;\n"
    )


def _as_root() -> list[str]:
    return ["--user=root"] if os.geteuid() == 0 else []
