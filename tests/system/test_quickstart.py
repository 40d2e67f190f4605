"""The quickstart, followed by the letter: its commands in their order, its DAG as it stands there."""

import re
import shlex
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from dev.airflow import Airflow
from dev.services import Server, Services

pytestmark = [pytest.mark.system, pytest.mark.long]

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = FENCE.findall((ROOT / "docs/quickstart.md").read_text())
DATABASES = {"shop_db": "quickstart_shop", "warehouse": "quickstart_warehouse"}
ROWS = 20_000
MINUTES = 10


def commands() -> Iterator[list[str]]:
    """Yield every command line of Airflow's in the page's order."""
    for language, block in BLOCKS:
        if language == "sh":
            lines = block.replace("\\\n", " ").splitlines()
            yield from (words[1:] for words in map(shlex.split, lines) if words[:1] == ["airflow"])


def database(server: Server, name: str) -> "psycopg.Connection[tuple[object, ...]]":
    """Open a database of the server."""
    return psycopg.connect(
        host=server.host, port=server.port, user=server.user, password=server.password, dbname=name, autocommit=True
    )


@pytest.fixture
def airflow(tmp_path: Path, services: Services, postgres: Server) -> Iterator[Airflow]:
    """An Airflow on its own SQLite file that nobody has set up yet, and two databases.

    Connections of type postgres are in its secrets backend: the provider of that type is not installed with the tests.
    """
    login = {"conn_type": "postgres", "host": postgres.host, "port": postgres.port}
    login |= {"login": postgres.user, "password": postgres.password}
    with database(postgres, "postgres") as link:
        for name in DATABASES.values():
            link.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
            link.execute(f"CREATE DATABASE {name}")
    with database(postgres, DATABASES["shop_db"]) as link:
        link.execute("CREATE TABLE public.orders (id bigint PRIMARY KEY, amount numeric(15,2), note text)")
        link.execute(f"INSERT INTO orders SELECT n, n / 7.0, 'order ' || n FROM generate_series(1, {ROWS}) n")
    (dags := tmp_path / "dags").mkdir()
    (code,) = (block for language, block in BLOCKS if language == "python")
    (dags / "orders.py").write_text(code)
    made = Airflow(
        home=services.guest("quickstart"),
        dags=dags,
        metadata_url=f"sqlite:///{tmp_path}/airflow.db",
        connections={conn_id: {**login, "schema": name} for conn_id, name in DATABASES.items()},
    )
    yield made
    made.stop()
    with database(postgres, "postgres") as link:
        for name in DATABASES.values():
            link.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_the_quickstart_leads_to_a_verified_table(airflow: Airflow, postgres: Server, connect: Server):
    """From an empty Airflow to an own table, copied and verified, in less than ten minutes; a second run skips."""
    began = time.monotonic()
    real = {"localhost": connect.host, "15002": str(connect.port)}
    real['{"ui_url": "http://localhost:4040"}'] = f'{{"ui_url": "http://{connect.host}:{connect.ui_port}"}}'
    for words in commands():
        match words:
            case ["connections", "add", _, "--conn-type", "postgres", *_]:
                continue
            case ["backpressure", "status", "--watch"]:
                _wait(airflow)
                assert "100.0 %" in airflow.command("backpressure", "status")
                continue
            case ["dags", "unpause", dag_id]:
                airflow.start()
                airflow.wait_for_dag(dag_id)
        said = airflow.command(*(real.get(word, word) for word in words))
        if words[:2] == ["backpressure", "doctor"]:
            assert "problem" not in said
    with database(postgres, DATABASES["warehouse"]) as link:
        assert link.execute("SELECT count(*), min(note), max(id) FROM raw.orders").fetchone() == (ROWS, "order 1", ROWS)
    assert time.monotonic() - began < MINUTES * 60
    airflow.trigger("orders")
    _wait(airflow)
    with database(postgres, DATABASES["warehouse"]) as link:
        assert link.execute("SELECT count(*) FROM raw.backpressure_plan").fetchone() == (1,)


def _wait(airflow: Airflow) -> None:
    """Wait until every run of the DAG has ended well."""
    deadline = time.monotonic() + MINUTES * 60
    while (states := _states(airflow)) != {"success"}:
        assert time.monotonic() < deadline, states
        assert "failed" not in states, states
        time.sleep(1)


def _states(airflow: Airflow) -> set[str]:
    runs = airflow.request("GET", "/api/v2/dags/orders/dagRuns")["dag_runs"]
    return {run["state"] for run in runs}
