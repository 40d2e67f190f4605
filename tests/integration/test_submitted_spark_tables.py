"""Tables of the cluster's catalogs by spark-submit: each range an application, and one that answers a task's questions.

Each application costs some ten seconds, so there are few tests, and each looks at several things.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.failpoints import VARIABLE, Step
from airflow_provider_backpressure.ledger.migration import migrate
from airflow_provider_backpressure.operators import HydrateOperator, PlanSnapshotOperator, VerifyHydrationOperator
from airflow_provider_backpressure.sinks import PostgresSink, SparkTableSink
from airflow_provider_backpressure.sources import PostgresSource, SparkSource
from dev.downloads import Downloads, default_folder
from dev.lake_connectors import SMALL, make_connector_conf
from tests.support.composed import difference
from tests.support.lakes import Cluster
from tests.support.postgres import connected, run
from tests.support.world import context

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(1200)]

ORDERS = (
    "CREATE TABLE orders (id bigint PRIMARY KEY, code text, price numeric(12, 2))",
    "INSERT INTO orders SELECT i, md5(i::text), i * 1.5 FROM generate_series(1, 5000) i",
    "ANALYZE orders",
)


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """A hydration of ``orders`` over a connection of type ``spark``, by its tasks."""

    database: Endpoint
    cluster: Cluster
    place: dict[str, Any]
    capsys: pytest.CaptureFixture[str]

    def execute(self, operator: Callable[..., Any], **more: Any) -> tuple[dict[str, Any], int]:
        """Run a task; return what it returns, and how many applications it has submitted."""
        self.capsys.readouterr()
        sink = {name: self.place[name] for name in ("table", "format")}
        flow: dict[str, Any] = {
            "source": PostgresSource(conn_id="shop_db", table="public.orders"),
            "sink": SparkTableSink(spark_conn_id="spark_submit", tasks=2, **sink),
            "spark_conn_id": "spark_submit",
            "budget": Budget(credits=2, range_rows=2500),
        }
        found = operator(task_id="task", **{**flow, **more}).execute(context())
        return found, self.capsys.readouterr().out.count("Spark-Submit cmd")

    def differs(self) -> bool:
        """Whether the table's rows, read without Spark, are not those of the source."""
        with connected(self.database) as connection:
            ours = connection.execute("SELECT id, code, price FROM orders ORDER BY id").fetchall()
        return [tuple(row) for row in ours] != self.cluster.rows(self.place)


@pytest.fixture(params=["iceberg", "delta"])
def submitted(
    request: pytest.FixtureRequest,
    database: Endpoint,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Submitted:
    """Iceberg in a catalog of files; Delta in Hive's metastore, for another application must find the table.

    ``memory``: Delta in the session's own catalog.
    """
    run(database, *ORDERS)
    ledger = tmp_path / "ledger.sqlite"
    migrate(f"sqlite:///{ledger}")
    login = {"host": database.host, "port": database.port, "schema": database.database, "login": database.user}
    conf = {
        **SMALL,
        **make_connector_conf(tmp_path),
        **(make_metastore_conf(database) if request.param == "delta" else {}),
        "spark.driver.memory": "1g",
        "spark.ui.enabled": False,
    }
    conf["spark.driver.extraClassPath"] += "".join(
        f":{file}" for file in Downloads(folder=default_folder()).group("jars-postgres")
    )
    connections: dict[str, Any] = {
        "SHOP_DB": {"conn_type": "postgres", **login, "password": database.password},
        "BACKPRESSURE_DEFAULT": {"conn_type": "backpressure", "extra": {"path": str(ledger)}},
        "SPARK_SUBMIT": {"conn_type": "spark", "host": "local[2]", "extra": {"conf": conf}},
    }
    for name, values in connections.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(values))
    cluster = Cluster(url="", ui_url="", folder=tmp_path)
    return Submitted(
        database=database,
        cluster=cluster,
        place=cluster.place("iceberg" if request.param == "iceberg" else "delta", "orders"),
        capsys=capsys,
    )


def make_metastore_conf(database: Endpoint) -> dict[str, str]:
    """Return the settings of a metastore that several applications use at once."""
    options = {
        "javax.jdo.option.ConnectionUserName": database.user,
        "javax.jdo.option.ConnectionPassword": database.password,
        "javax.jdo.option.ConnectionDriverName": "org.postgresql.Driver",
        "javax.jdo.option.ConnectionURL": f"jdbc:postgresql://{database.host}:{database.port}/{database.database}",
        # Without constraints: to make one Hive waits for a transaction of its own in PostgreSQL.
        "datanucleus.schema.autoCreateTables": "true",
        "datanucleus.schema.autoCreateColumns": "true",
        "datanucleus.schema.autoCreateConstraints": "false",
        "hive.metastore.schema.verification": "false",
    }
    return {
        "spark.sql.catalogImplementation": "hive",
        **{f"spark.hadoop.{name}": value for name, value in options.items()},
    }


@pytest.mark.statement("K1", "X1", "X2")
@pytest.mark.fault(3)
def test_ranges_are_in_once_where_applications_are_killed_around_their_commit(
    submitted: Submitted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K1, X1, X2: by count and checksum, and by value without Spark; as many applications as the docs say."""
    points = tmp_path / "points"
    points.mkdir()
    kills = (Step.BEFORE_SINK_COMMIT, Step.AFTER_SINK_COMMIT)
    (points / "points").write_text(",".join(f"{step.value}=kill@1" for step in kills))
    monkeypatch.setenv(VARIABLE, str(points))
    planned, applications = submitted.execute(PlanSnapshotOperator, consistency="static")
    assert (planned["ranges"], applications) == (2, 1)
    drained, applications = submitted.execute(HydrateOperator)
    assert (drained["committed"], applications) == (2, 4)
    journal = (points / "journal").read_text()
    passes = [journal.count(f"{step.value} ") for step in kills]
    assert passes == [3, 2], "one was killed before its commit and made again, the lane has found the mark of the other"
    verified, applications = submitted.execute(VerifyHydrationOperator)
    assert (verified["rows"], verified["verified"], applications) == (5000, "target", 2)
    assert not submitted.differs()
    assert list(tmp_path.rglob("bp-session-*")) == []
    if submitted.place["format"] == "iceberg":
        check_reading_back(submitted)


def check_reading_back(submitted: Submitted) -> None:
    """Fail unless the table arrives in PostgreSQL, read by applications too."""
    back: dict[str, Any] = {
        "source": SparkSource(table=submitted.place["table"], spark_conn_id="spark_submit", split_column="id"),
        "sink": PostgresSink(conn_id="shop_db", table="public.copied"),
    }
    planned, applications = submitted.execute(PlanSnapshotOperator, **back)
    assert (planned["ranges"], applications) == (3, 1), "of rows without a value there is a range too"
    assert submitted.execute(HydrateOperator, **back)[0]["committed"] == 3
    assert submitted.execute(VerifyHydrationOperator, **back)[0]["rows"] == 5000
    assert difference(submitted.database, "orders", submitted.database, "copied") == (0, 0)


@pytest.mark.statement("K1", "T8", "X2")
@pytest.mark.fault(3)
def test_windows_of_changes_are_merged_by_applications(
    submitted: Submitted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K1, T8, X2: ranges as upserts, then a window; the application of the window is killed behind its commit."""
    points = tmp_path / "points"
    points.mkdir()
    (points / "points").write_text("")
    monkeypatch.setenv(VARIABLE, str(points))
    follow = {"mode": "upsert", "consistency": "catch_up"}
    submitted.execute(PlanSnapshotOperator, **follow)
    submitted.execute(HydrateOperator)
    submitted.execute(VerifyHydrationOperator)
    assert not submitted.differs()
    run(
        submitted.database,
        "UPDATE orders SET price = -1 WHERE id <= 100",
        "DELETE FROM orders WHERE id > 4900",
        "UPDATE orders SET id = id + 10000 WHERE id BETWEEN 200 AND 210",
        "INSERT INTO orders VALUES (20000, 'new', NULL)",
    )
    before = (points / "journal").read_text().count(f"{Step.AFTER_SINK_COMMIT.value} ")
    (points / "points").write_text(f"{Step.AFTER_SINK_COMMIT.value}=kill@1")
    _, planning = submitted.execute(PlanSnapshotOperator, **follow)
    _, draining = submitted.execute(HydrateOperator)
    submitted.execute(VerifyHydrationOperator)
    assert not submitted.differs()
    assert (points / "journal").read_text().count(f"{Step.AFTER_SINK_COMMIT.value} ") == before + 1
    assert (planning, draining) == (1, 2)


@pytest.mark.parametrize("submitted", ["memory"], indirect=True)
def test_a_table_in_the_memory_of_one_application_is_refused(submitted: Submitted) -> None:
    """Each range is another application, which would not find the table that the plan has made."""
    with pytest.raises(AirflowFailException, match=r"^[\w.]* would be known to one application alone[^\n]*$"):
        submitted.execute(PlanSnapshotOperator, consistency="static")
