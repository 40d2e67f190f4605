"""The servers that the other tests, the demo and the benchmarks stand on: they answer, and they always end."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pymysql
import pytest
from pyspark.sql.connect.session import SparkSession

from dev.downloads import REPOSITORY, Downloads
from dev.servers.process import Process, until
from dev.servers.records import Records
from dev.services import Server, ServiceError, Services

pytestmark = pytest.mark.integration
PLAIN = ("postgres", "postgres:sink", "kafka", "mysql")
EVERYTHING = (*PLAIN, "standalone", "connect")
CLUSTER = {"workers": 1, "master": "standalone"}


@pytest.fixture(
    scope="module", params=[PLAIN, pytest.param(EVERYTHING, marks=pytest.mark.long)], ids=["plain", "spark"]
)
def everything(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """One of each, and with Spark as a cluster; the last test takes it down."""
    services = Services(tmp_path_factory.mktemp("everything"), owner_pid=os.getpid())
    services.up(*request.param, **CLUSTER)
    yield services
    services.down(remove=True)


@pytest.fixture
def few(tmp_path: Path) -> Iterator[Services]:
    """A home of one test, without an owner."""
    services = Services(tmp_path / "services")
    yield services
    services.down(remove=True)


def test_postgres_answers_with_our_settings(everything: Services) -> None:
    """Two instances of PostgreSQL 18, each its own, as readers of changes need them."""
    servers = everything.status()
    for name in ("postgres", "postgres:sink"):
        with psycopg.connect(servers[name].url) as connection:
            shown = {s: connection.execute(f"SHOW {s}").fetchone()[0] for s in ("wal_level", "TimeZone", "fsync")}
            assert connection.info.server_version // 10_000 == 18
            assert shown == {"wal_level": "logical", "TimeZone": "UTC", "fsync": "off"}
    assert servers["postgres"].port != servers["postgres:sink"].port
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(servers["postgres"].url.replace(servers["postgres"].password, "wrong"))


def test_kafka_answers(everything: Services) -> None:
    """What is written is read."""
    from kafka import KafkaConsumer, KafkaProducer

    address = everything.status()["kafka"].url
    producer = KafkaProducer(bootstrap_servers=address)
    producer.send("topic", b"one").get(timeout=20)
    producer.close()
    consumer = KafkaConsumer(
        "topic", bootstrap_servers=address, auto_offset_reset="earliest", consumer_timeout_ms=20_000
    )
    assert next(consumer).value == b"one"
    consumer.close()


def test_mysql_answers_with_a_binary_log(everything: Services) -> None:
    """MySQL 8 with global transaction ids and full row metadata."""
    server = everything.status()["mysql"]
    login = {"host": server.host, "port": server.port, "user": server.user, "password": server.password}
    with pymysql.connect(**login) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@version, @@gtid_mode, @@binlog_row_metadata, @@time_zone")
        version, *rest = cursor.fetchone()
    assert version.startswith("8.")
    assert rest == ["ON", "FULL", "+00:00"]


@pytest.mark.parametrize("everything", [pytest.param(EVERYTHING, marks=pytest.mark.long, id="spark")], indirect=True)
def test_connect_answers_from_the_standalone_cluster(everything: Services) -> None:
    """Python runs on the cluster's worker, and a table is read with the connector that was asked for."""
    servers = everything.status()
    session = SparkSession.builder.remote(servers["connect"].url).create()
    try:
        postgres = servers["postgres"]
        options = {"url": postgres.jdbc_url, "user": postgres.user, "password": postgres.password}
        assert session.conf.get("spark.master") == servers["standalone"].url
        assert session.range(8).mapInArrow(lambda batches: batches, "id long").count() == 8
        reader = session.read.format("jdbc").options(**options, driver="org.postgresql.Driver", dbtable="pg_class")
        assert reader.load().count() > 100
    finally:
        session.stop()


def test_nothing_listens_beyond_loopback(everything: Services, services: Services, connect: Server) -> None:
    """Every socket that listens is bound to this machine alone; also those of the session's own Spark."""
    pids = {
        one.pid
        for home, names in ((everything.home, [*everything.status()]), (services.home, [connect.name]))
        for name in names
        for one in Records(home=home).processes(name)
    }
    assert connect.pid in pids
    assert {address for pid in pids for address in listening(pid)} <= {"0100007F", "0000000000000000FFFF00000100007F"}


def test_a_killed_server_comes_back_with_its_port_and_its_data(everything: Services) -> None:
    """The faults that other tests make: killed, restarted; its neighbour does not notice."""
    before, neighbour = everything.status()["postgres:sink"], everything.status()["postgres"]
    with psycopg.connect(before.url) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS one")
    everything.kill("postgres:sink")
    assert not everything.status()["postgres:sink"].running
    after = everything.restart("postgres:sink")
    with psycopg.connect(after.url) as connection:
        assert connection.execute("SELECT one FROM kept").fetchone() == (1,)
    assert (after.port, after.password) == (before.port, before.password)
    assert everything.status()["postgres"] == neighbour


def test_what_runs_is_used_and_not_changed(everything: Services) -> None:
    """The same request is answered by the same servers; another one is refused by name."""
    before = everything.status()
    again = everything.up(*before, **CLUSTER)
    assert {name: one.pid for name, one in again.items()} == {name: before[name].pid for name in again}
    with pytest.raises(ServiceError, match="postgres runs with another fsync: `down postgres` first"):
        everything.up("postgres", fsync=True)


def test_down_leaves_no_process(everything: Services) -> None:
    """Not one, though one of them hangs: servers, their children, Spark's Python workers, the watcher."""
    records = Records(home=everything.home)
    everything.kill("kafka", signal.SIGSTOP)
    main = [Process.of(server.pid) for server in everything.status().values()]
    every = [one for name in everything.status() for one in records.processes(name)] + [*records.watchers().values()]
    assert len(every) > len(main)
    everything.down()
    assert not [one for one in every if one.alive]
    assert not records.marked()
    assert not any(server.running for server in everything.status().values())


def test_all_ends_with_its_owner(tmp_path: Path) -> None:
    """The owner is killed: server, guest and watcher are gone soon."""
    owner = subprocess.Popen(["sleep", "600"])
    (folder := Services(tmp_path).guest("other")).mkdir(parents=True)
    guest = subprocess.Popen(["sleep", "600"], cwd=folder, start_new_session=True)
    try:
        server = command("up", "postgres", "--owner-pid", str(owner.pid), home=tmp_path)
        assert server.returncode == 0, server.stderr
        records = Records(home=tmp_path)
        every = [*records.processes("postgres"), *records.watchers().values()]
        assert len(every) > 2
    finally:
        owner.kill()
        owner.wait()
    assert until(lambda: not any(one.alive for one in every), timeout=20)
    assert not records.marked()
    assert guest.wait(20) == -signal.SIGKILL


def test_a_starter_killed_half_way_leaves_nothing_that_down_does_not_find(tmp_path: Path) -> None:
    """Killed while the servers start, at different moments; what it had started is ended by `down`."""
    records = Records(home=tmp_path)
    for expected in ("connect", "postgres"):
        words = [sys.executable, "-m", "dev.services", "up", "postgres", "connect", "--home", str(tmp_path)]
        starter = subprocess.Popen(words, cwd=REPOSITORY)
        assert until(lambda name=expected: name in records.marked(), timeout=30, pause=0.01)
        starter.kill()
        starter.wait()
        done = command("down", "--remove", home=tmp_path)
        assert done.returncode == 0, done.stderr
        assert not records.marked()


def test_a_second_owner_is_refused(few: Services) -> None:
    """Else the servers of a running test could end with someone else."""
    other = subprocess.Popen(["sleep", "600"])
    try:
        Services(few.home, owner_pid=other.pid).up()
        with pytest.raises(ServiceError, match=f"belong to process {other.pid}: take another home"):
            Services(few.home, owner_pid=os.getpid()).up()
    finally:
        few.down()
        other.kill()
        other.wait()


def test_a_failed_start_says_why_and_leaves_nothing(few: Services) -> None:
    """The end of the log is in the message."""
    with pytest.raises(
        ServiceError, match=r"postgres ended while it started(?s:.*)unrecognized configuration parameter"
    ):
        few.up("postgres", settings={"postgres": {"no_such_setting": "1"}})
    assert not Records(home=few.home).marked()


def test_settings_that_nobody_would_read_are_refused(few: Services) -> None:
    """They go by kind: without it they would be passed over in silence."""
    with pytest.raises(ServiceError, match="there is no autovacuum"):
        few.up("postgres", settings={"autovacuum": "off"})
    assert not few.status()


def test_two_processes_fetch_the_same_at_once(tmp_path: Path) -> None:
    """Both get the whole file, and nothing but it and its stamp stays."""
    line = "import sys; from pathlib import Path; from dev.downloads import Downloads\n"
    line += "print(Downloads(folder=Path(sys.argv[1])).group('jars-postgres')[0])"

    def fetch(_: int) -> str:
        return subprocess.check_output([sys.executable, "-c", line, str(tmp_path)], cwd=REPOSITORY, text=True).strip()

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(fetch, range(2))
    assert first == second
    assert sorted(file.suffix for file in tmp_path.iterdir() if not file.name.startswith(".")) == [".jar", ".verified"]
    Path(first).write_bytes(b"damaged")
    assert Downloads(folder=tmp_path).group("jars-postgres")[0].stat().st_size > 1_000_000


def command(*words: str, home: Path) -> "subprocess.CompletedProcess[str]":
    """Run a command of `dev.services`."""
    line = [sys.executable, "-m", "dev.services", *words, "--home", str(home)]
    return subprocess.run(line, cwd=REPOSITORY, capture_output=True, text=True, check=False)


def listening(pid: int) -> set[str]:
    """Return the addresses (as the kernel writes them) where a process listens."""
    try:
        links = {os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    except OSError:
        return set()
    rows = [
        line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()
    ]
    return {row[1].partition(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in links}
