"""``uninstall`` on real databases and folders: what goes, what stays, and what it says of what it cannot reach."""

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from airflow.cli.cli_parser import get_parser

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.ledger.repository import SqlLedger
from airflow_provider_backpressure.testing import MemoryRunner, MemorySink, MemorySource
from tests.conformance.ledger.support import take
from tests.support import lakes
from tests.support.catching_up import FILL, TABLE
from tests.support.composed import Composed
from tests.support.postgres import run

pytestmark = pytest.mark.integration
STRANGE = f"backpressure_{'0' * 32}"
Airflow = Callable[..., tuple[int, str, str]]


@pytest.fixture
def followed(database: Endpoint, ledger_url: str, monkeypatch: pytest.MonkeyPatch) -> Composed:
    """A table that is planned under ``catch_up`` into the same database, and connections that lead there."""
    run(database, TABLE, FILL.format(100), "ANALYZE t")
    fields = connection(database)
    for name in ("SOURCE", "SINK"):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps({"conn_type": "postgres", **fields}))
    place = sa.make_url(ledger_url)
    ledger = {"conn_type": "backpressure", **fields, "schema": place.database, "extra": {"push": "none"}}
    monkeypatch.setenv("AIRFLOW_CONN_BACKPRESSURE_DEFAULT", json.dumps(ledger))
    composed = Composed(
        source=database, sink=database, ledger_url=ledger_url, remote="", mode="upsert", consistency="catch_up"
    )
    planned(composed)
    run(database, "INSERT INTO raw.t SELECT * FROM t LIMIT 10")
    return composed


@pytest.fixture
def airflow(capsys: pytest.CaptureFixture[str]) -> Airflow:
    """Run `airflow backpressure …`; return exit code, standard output and standard error."""

    def command(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        args, code = get_parser().parse_args(["backpressure", *words]), 0
        try:
            args.func(args)
        except SystemExit as end:
            code = int(end.code or 0)
        return (code, *capsys.readouterr())

    return command


def connection(place: Endpoint) -> dict[str, Any]:
    return {
        "host": place.host,
        "port": place.port,
        "login": place.user,
        "password": place.password,
        "schema": place.database,
    }


def planned(composed: Composed) -> str:
    """Plan a hydration, for which no executor is needed, and return its id."""
    runner = MemoryRunner(source=MemorySource(keys=[]), sink=MemorySink())
    with composed.open(runner) as ports:
        ports.planner().plan()
        return ports.hydration.id


def found(airflow: Airflow, *words: str, code: int = 0) -> dict[str, str]:
    """Return the state of each thing that is there."""
    done, out, err = airflow("uninstall", *words, "--output", "json")
    assert (done, err) == (code, "")
    return {one["what"]: one["state"] for one in json.loads(out)}


def kept(place: Endpoint) -> dict[str, Any]:
    """Return what the database has, as the database itself says."""
    return {
        "slots": run(place, "SELECT slot_name::text FROM pg_replication_slots WHERE database = current_database()"),
        "publications": run(place, "SELECT pubname::text FROM pg_publication"),
        "tables": run(place, "SELECT tablename::text FROM pg_tables WHERE schemaname IN ('raw', 'public') ORDER BY 1"),
        "rows": run(place, "SELECT (SELECT count(*) FROM t), (SELECT count(*) FROM raw.t)"),
    }


def test_everything_but_targets_is_listed_and_removed_on_demand(
    followed: Composed, airflow: Airflow, database: Endpoint, tmp_path: Path
) -> None:
    """Slot, publication, tables beside a target, notes beside a table of files; not what another Airflow has."""
    place = lakes.place("parquet", tmp_path)
    planned(replace(followed, into=place, mode="append", consistency="static"))
    run(
        database,
        f"SELECT pg_create_logical_replication_slot('{STRANGE}', 'pgoutput')",
        "CREATE TABLE raw.mine (id int)",
    )
    with closing(SqlLedger(followed.ledger_url)) as ledger:
        (hydration_id,) = {one.id for one in ledger.hydrations() if one.plan and one.plan.consistency == "catch_up"}
    before, notes = kept(database), Path(place["path"]) / "_backpressure"
    listed = found(airflow)
    assert listed == {
        f"replication slot backpressure_{hydration_id}": "there",
        f"replication slot {STRANGE}": "left alone: no hydration of this ledger has it",
        f"publication backpressure_{hydration_id}": "there",
        "raw.backpressure_plan: 1 rows of raw.t": "there",
        str(notes): "there",
    }
    assert (kept(database), notes.exists()) == (before, True), "a list changes nothing"
    assert set(found(airflow, "--yes").values()) == {"removed", listed[f"replication slot {STRANGE}"]}
    after = kept(database)
    assert (after["slots"], after["publications"], after["rows"]) == ([(STRANGE,)], [], [(100, 10)])
    assert [name for (name,) in after["tables"]] == ["mine", "t", "t"]
    assert not notes.exists()
    assert list(found(airflow, "--yes")) == [f"replication slot {STRANGE}"], "once more is no error"
    run(database, f"SELECT pg_drop_replication_slot('{STRANGE}')")


def test_nothing_is_removed_while_a_range_is_in_flight(
    followed: Composed, airflow: Airflow, database: Endpoint
) -> None:
    before = kept(database)
    with closing(SqlLedger(followed.ledger_url)) as ledger:
        (one,) = ledger.hydrations()
        take(ledger, one.id)
    code, _, err = airflow("uninstall", "--yes", "--ledger")
    assert (code, "1 ranges of" in err, "pause the DAG test" in err) == (1, True, True)
    assert kept(database) == before
    assert airflow("uninstall", "--ledger")[0] == 2, "without --yes it removes nothing"
    run(database, f"SELECT pg_drop_replication_slot('backpressure_{one.id}')")


def test_the_ledger_goes_last_and_stays_while_something_is_not_reached(
    followed: Composed, airflow: Airflow, monkeypatch: pytest.MonkeyPatch, database: Endpoint
) -> None:
    """It alone knows what that is; what can be reached is gone meanwhile."""
    away = {"conn_type": "postgres", **connection(database), "port": 1}
    reached = json.dumps({"conn_type": "postgres", **connection(database)})
    monkeypatch.setenv("AIRFLOW_CONN_SINK", json.dumps(away))
    code, out, err = airflow("uninstall", "--yes", "--ledger", "--output", "json")
    states = [one["state"] for one in json.loads(out)]
    assert (code, "The ledger stays" in err, "not reached: " in states[-1]) == (1, True, True)
    assert kept(database)["slots"] == []
    with closing(SqlLedger(followed.ledger_url)) as ledger:
        assert len(ledger.hydrations()) == 1
    monkeypatch.setenv("AIRFLOW_CONN_SINK", reached)
    code, out, err = airflow("uninstall", "--yes", "--ledger")
    assert (code, err, "The ledger is gone." in out) == (0, "", True)
    engine = sa.create_engine(followed.ledger_url, poolclass=sa.NullPool)
    assert sa.inspect(engine).get_table_names() == []


def test_force_drops_a_ledger_that_knows_of_what_is_gone_for_good(
    followed: Composed, airflow: Airflow, monkeypatch: pytest.MonkeyPatch, database: Endpoint
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SINK", json.dumps({"conn_type": "postgres", **connection(database), "port": 1}))
    code, out, err = airflow("uninstall", "--yes", "--ledger", "--force")
    assert (code, err, "not reached" in out, "The ledger is gone." in out) == (0, "", True, True)
    assert airflow("status")[0] == 1
