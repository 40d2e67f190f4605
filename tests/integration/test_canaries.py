"""Logins of every kind, through runs that go well and runs that fail: all that was written, and what processes showed
meanwhile, is searched.
"""

import json
import logging
import traceback
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.exceptions import BackpressureError
from airflow_provider_backpressure.runners.connect_runner import ConnectRunner
from dev.services import Server, Services
from tests.integration.test_connect_runner import read_page
from tests.integration.test_tls import everything_in
from tests.support import mysql as on_mysql
from tests.support.composed import Composed
from tests.support.kafka import ComposedKafka, Topic, login_of
from tests.support.kept import spellings
from tests.support.postgres import new_role, run
from tests.support.processes import Processes

pytestmark = [pytest.mark.integration, pytest.mark.long]

ROWS = 400
TABLE = "CREATE TABLE t (id bigint PRIMARY KEY, name varchar(40))"
EVENTS = {"spark.eventLog.enabled": "true", "spark.eventLog.compress": "false"}
TESTS = str(Path(__file__).parents[1])
ODD = "'\"\\@:/?#%+&= <>;$`{}"
"""What addresses, JSON, SQL, shells and pages write otherwise: a login survives that, and is found all the same."""


def canary(kind: str) -> str:
    """A password that stands nowhere else on the machine: what is found is a leak of this very login."""
    return f"canary-{kind}-{ODD}-{uuid.uuid4().hex}"


def in_sql(secret: str) -> str:
    """Return a password as it stands between quotes."""
    return secret.replace("'", "''")


@pytest.fixture
def spark(services: Services, tmp_path: Path) -> Iterator[tuple[Server, Path]]:
    """A server of its own that keeps an event log, and where that is."""
    folder = tmp_path / "events"
    folder.mkdir()
    name = "connect:canaries"
    yield services.up(name, spark_conf={**EVENTS, "spark.eventLog.dir": folder.as_uri()})[name], folder
    services.down(name)


@pytest.fixture
def sink(database: Endpoint) -> Iterator[Endpoint]:
    """A role that may make its own targets."""
    with new_role(database) as role:
        run(database, f"GRANT CREATE ON DATABASE {database.database} TO {role.user}", TABLE)
        run(database, f"INSERT INTO t SELECT i, 'row ' || i FROM generate_series(1, {ROWS}) i")
        secret = canary("postgres")
        run(
            database,
            f"GRANT SELECT ON t TO {role.user}",
            "ANALYZE t",
            f"ALTER ROLE {role.user} PASSWORD '{in_sql(secret)}'",
        )
        yield replace(role, password=secret)


@pytest.fixture
def erp(mysql_database: Endpoint) -> Iterator[Endpoint]:
    """An account that may read a table."""
    values = ", ".join(f"({number}, 'row {number}')" for number in range(ROWS))
    on_mysql.run(mysql_database, TABLE, f"INSERT INTO t VALUES {values}")
    with on_mysql.new_role(mysql_database) as role:
        secret, account = canary("mysql"), f"'{role.user}'@'%'"
        on_mysql.run(mysql_database, f"GRANT SELECT ON `{mysql_database.database}`.* TO {account}")
        # MySQL takes backslashes for escapes.
        spelled = in_sql(secret).replace("\\", "\\\\")
        on_mysql.run(mysql_database, f"ALTER USER {account} IDENTIFIED BY '{spelled}'")
        yield replace(role, password=secret)


@pytest.fixture
def bucket() -> Iterator[Endpoint]:
    """A bucket."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    options = {"region_name": "us-east-1", "endpoint_url": f"http://{host}:{port}"}
    secret = canary("bucket")
    login = {"aws_access_key_id": "key", "aws_secret_access_key": secret}
    boto3.client("s3", **login, **options).create_bucket(Bucket="lake")
    yield Endpoint(conn_id="b", host="", port=0, database="", user="key", password=secret, options=options)
    server.stop()


def hydrated(composed: Composed, spark: Server) -> None:
    """Plan, drain and finish, with logins of its own in the session."""
    logins = {name: replace(getattr(composed, name), conn_id=name) for name in ("source", "sink")}
    with closing(ConnectRunner(spark.url, logins, ui_url=spark.ui_url)) as runner, composed.open(runner) as ports:
        ports.planner().plan()
        ports.hydrator().run()
        assert ports.sink.holds_rows()
        ports.ledger.finish(ports.hydration.id)


def failed(composed: Composed, spark: Server, **wrong: Endpoint) -> str:
    """Fail inside Spark, with other logins there if so wished, and return all that the error has to say."""
    logins = {name: replace(wrong.get(name, getattr(composed, name)), conn_id=name) for name in ("source", "sink")}
    with closing(ConnectRunner(spark.url, logins, ui_url=spark.ui_url)) as runner, composed.open(runner) as ports:
        ports.planner().plan()
        lane = ports.hydrator()
        with pytest.raises(BackpressureError) as raised:
            lane.run()
        # While the session is open: what PySpark's frames hold asks it what it looks like.
        return framed(raised.value)


def framed(error: BaseException) -> str:
    """Return all that an error and those behind it say and their frames held, but for tests: they know every login."""
    told = each = traceback.TracebackException.from_exception(error, capture_locals=True)
    while each is not None:
        each.stack[:] = [frame for frame in each.stack if not frame.filename.startswith(TESTS)]
        each = each.__cause__ or each.__context__
    assert any(frame.locals for frame in told.stack)
    return "".join(told.format())


def shown_by(spark: Server, events: Path) -> dict[str, bytes]:
    """All that Spark shows or writes: pages, REST interface, event log, its own log."""
    app = json.loads(read_page(f"{spark.ui_url}/api/v1/applications"))[0]["id"]
    api = f"{spark.ui_url}/api/v1/applications/{app}"
    pages = [f"{api}/{page}" for page in ("jobs", "stages?details=true", "environment", "executors")]
    pages += [f"{api}/sql?details=true&planDescription=true&length=200"]
    pages += [f"{spark.ui_url}/{page}/" for page in ("connect", "SQL", "jobs", "stages", "environment")]
    seen = {page: read_page(page) for page in pages}
    seen["events"] = b"".join(path.read_bytes() for path in events.rglob("*") if path.is_file())
    seen["log"] = spark.log.read_bytes()
    return seen


@pytest.mark.statement("X5")
def test_no_login_is_left_anywhere(
    spark: tuple[Server, Path],
    sink: Endpoint,
    erp: Endpoint,
    bucket: Endpoint,
    kafka: Server,
    database: Endpoint,
    ledger_url: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """X5: ledger, target, logs of all sides, errors with what their frames held, Spark's pages, `ps`."""
    server, events = spark
    topic = Topic(servers=kafka.url).create(1)
    topic.send(0, *({"id": number} for number in range(ROWS)))
    rest: dict[str, Any] = {"ledger_url": ledger_url, "remote": "", "budget": Budget(credits=2, range_rows=100)}
    of_table = {"table": "public.t", **rest}
    broker = login_of(kafka, kafka.password or "")
    lake = {"kind": "parquet", "path": "s3://lake/t", "conn_id": "sink"}
    run(sink, "CREATE SCHEMA raw", "CREATE TABLE raw.checked (id bigint PRIMARY KEY, name varchar(40) CHECK (id < 7))")
    refused = canary("refused")
    with caplog.at_level(logging.DEBUG), Processes().looking() as processes:
        hydrated(Composed(source=sink, sink=sink, **of_table), server)
        hydrated(Composed(source=erp, sink=sink, kind="mysql", table="t", target="raw.of_mysql", **rest), server)
        hydrated(ComposedKafka(source=broker, sink=sink, table=topic.name, target="raw.of_kafka", **rest), server)
        hydrated(Composed(source=sink, sink=bucket, into=lake, **of_table), server)
        errors = failed(Composed(source=sink, sink=sink, target="raw.checked", **of_table), server)
        late = Composed(source=sink, sink=sink, target="raw.late", **of_table)
        errors += failed(late, server, sink=replace(sink, password=refused))
        assert "violates check constraint" in errors
        assert f"does not let {sink.user} in" in errors
    seen = shown_by(server, events)
    seen["errors"], seen["logged"] = errors.encode(), caplog.text.encode()
    seen["ledger and target"] = everything_in(ledger_url, database).encode()
    assert b"raw.late" in seen["ledger and target"], "what failed is in the ledger too"
    assert b"SparkListenerJobEnd" in seen["events"]
    assert processes.commands("SparkConnectServer") >= processes.looks / 2, "the server was looked at all the time"
    assert processes.commands("pyspark.daemon") > 10, "so were the workers that copy ranges"
    logins = {
        "postgres": sink.password,
        "mysql": erp.password,
        "kafka": kafka.password or "",
        "bucket": bucket.password,
        "refused": refused,
        "ledger": database.password,
    }
    assert {name: leaks for name, secret in logins.items() if (leaks := around(secret, seen))} == {}
    assert processes.leaks(logins) == {}


def around(secret: str, seen: dict[str, bytes]) -> dict[str, str]:
    """Return where a secret stands, with the text before it, by which the place is found; never the secret itself."""
    found = {}
    for where, content in seen.items():
        text = content.decode(errors="replace")
        if places := [at for each in spellings(secret) if (at := text.find(each)) >= 0]:
            found[where] = text[max(0, min(places) - 200) : min(places)]
    return found
