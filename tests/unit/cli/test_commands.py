"""The commands over an in-memory ledger: what they find, print and return."""

import json

import pytest
from airflow.cli.cli_parser import get_parser

from airflow_provider_backpressure.core.ranges import RangeState
from airflow_provider_backpressure.hooks import recorded
from airflow_provider_backpressure.operators import HydrateOperator, PlanSnapshotOperator
from tests.support.world import World, context


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    made.install(monkeypatch)
    PlanSnapshotOperator(task_id="plan_snapshot", **made.flow).execute(context())
    return made


@pytest.fixture
def airflow(capsys: pytest.CaptureFixture[str]):
    """Run `airflow backpressure …`; return exit code, standard output and standard error."""

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        args = get_parser().parse_args(["backpressure", *words])
        code = 0
        try:
            args.func(args)
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return run


def facts(airflow, *words: str) -> dict:
    code, out, err = airflow("status", *words, "--output", "json")
    assert (code, err) == (0, "")
    (found,) = json.loads(out)
    return found


def test_status_before_during_and_after(world, airflow):
    """Unknown is empty, never 0; a person's hand and the credits are as they are now."""
    before = facts(airflow)
    assert (before["phase"], before["percent"], before["rows"], before["total"]) == ("hydration", "0.0", "0", "100")
    assert (before["ranges"], before["credits"], before["in_flight"], before["gate"]) == ("0/10", "3/3", "0", "")
    assert before["rows_per_second"] is before["eta"] is None

    for _ in range(3):
        world.ledger.admit(world.hydration.id, lane="lane", session_id="s", lease_seconds=60)
    assert facts(airflow)["gate"] == "3 of 3 credits in flight"
    world.ledger.pause(world.hydration.id, who="ada", why="release night")
    assert facts(airflow)["gate"] == "paused by ada: release night; 3 of 3 credits in flight"

    world.ledger.resume(world.hydration.id, who="ada")
    for record in world.ledger.ranges(world.plan.plan_id, states=[RangeState.ADMITTED]):
        world.ledger.release(world.plan.plan_id, record.seq, attempt=1, error="ended")
    HydrateOperator(task_id="hydrate", **world.flow).execute(context())
    world.ledger.finish(world.hydration.id)
    after = facts(airflow)
    assert (after["phase"], after["percent"], after["ranges"], after["gate"]) == ("steady_state", "100.0", "10/10", "")


def test_a_hydration_is_named_by_id_or_table(world, airflow):
    for name in (world.hydration.id, world.hydration.id[:8], world.hydration.id[:8].upper(), "sink"):
        assert facts(airflow, name)["id"] == world.hydration.id[:8]


def test_a_name_that_means_none_or_several_is_wrong_use(world, airflow):
    code, out, err = airflow("status", "raw.nowhere")
    assert (code, out) == (2, "")
    assert "There is no hydration 'raw.nowhere'" in err
    world.ledger.register(
        environment="other",
        source_identity="memory://source",
        sink_identity="memory://sink",
        owner="dag",
        cluster="spark",
        credits=1,
    )
    code, _, err = airflow("ranges", "sink")
    assert code == 2
    assert "may mean several hydrations" in err


def test_pause_and_resume_keep_who_and_why(world, airflow):
    code, out, _ = airflow("pause", "sink", "--why", "release night")
    assert code == 0
    assert "is paused; 0 ranges in flight" in out
    assert world.hydration.paused_why == "release night"
    assert airflow("resume", "sink")[0] == 0
    assert world.hydration.paused_by is None
    assert [act.action for act in world.ledger.controls] == ["pause", "resume"]


@pytest.mark.parametrize("output", ["table", "json", "yaml", "plain"])
def test_ranges_in_every_form(world, airflow, output):
    world.ledger.admit(world.hydration.id, lane="lane-7", session_id="s", lease_seconds=60)
    code, out, err = airflow("ranges", "sink", "--output", output)
    assert (code, err) == (0, "")
    assert "lane-7" in out
    code, out, _ = airflow("ranges", "sink", "--state", "committed", "--output", output)
    assert code == 0
    assert "lane-7" not in out


def test_a_wrong_range_is_read_once_more(world, airflow, monkeypatch):
    """Its rows go, the DAG's next run brings them, and who asked for it stays in the control table."""
    monkeypatch.setitem(recorded.SOURCES, "memory", lambda read, identity: world.flow["source"])
    monkeypatch.setitem(recorded.SINKS, "memory", lambda write, identity: world.flow["sink"])
    HydrateOperator(task_id="hydrate", **world.flow).execute(context())
    world.ledger.finish(world.hydration.id)
    world.sink.rows.remove(15)
    code, out, err = airflow("retry-range", "sink", "1", "--why", "by hand")
    assert (code, err) == (0, "")
    assert "Range 1 (id [10, 20)) is planned again; 9 rows were removed." in out
    assert [(one.action, one.why) for one in world.ledger.controls] == [("retry-range", "by hand")]
    PlanSnapshotOperator(task_id="again", **world.flow).execute(context(run_id="next"))
    HydrateOperator(task_id="once_more", **world.flow).execute(context(run_id="next"))
    assert sorted(world.sink.rows) == list(range(100))
    code, out, err = airflow("retry-range", "sink", "99")
    assert (code, out) == (1, "")
    assert "has no range 99" in err


def test_watch_draws_until_the_hydration_is_in(world, airflow):
    HydrateOperator(task_id="hydrate", **world.flow).execute(context())
    world.ledger.finish(world.hydration.id)
    code, out, _ = airflow("status", "sink", "--watch")
    assert code == 0
    assert "100.0 %  100 of 100 rows" in out


def test_watch_draws_on_the_screen_only(world, airflow):
    assert airflow("status", "--watch", "--output", "json")[0] == 2


def test_a_missing_connection_is_one_sentence(world, airflow):
    code, _, err = airflow("status", "--backpressure-conn-id", "nowhere")
    assert code == 2
    assert err == "There is no Airflow connection 'nowhere': create one of type backpressure.\n"


def test_grants_name_our_tables_only(airflow):
    code, out, _ = airflow("grants", "--role", "bp", "--schema", "meta")
    assert code == 0
    assert out.startswith("CREATE ROLE bp LOGIN PASSWORD '<password>';\nGRANT USAGE ON SCHEMA meta TO bp;\n")
    tables = {word.strip(",;") for word in out.split() if "meta.backpressure_" in word}
    assert "meta.backpressure_hydration" in tables
    assert "meta.backpressure_control_id_seq" in tables
    assert airflow("grants", "--role", "bp; DROP ROLE x")[0] == 2


def test_grants_on_mysql_name_each_table(airflow, monkeypatch):
    """Where it is asked for, and where the metadata database is one."""
    code, asked, _ = airflow("grants", "--dialect", "mysql", "--role", "bp", "--schema", "meta")
    assert code == 0
    first, *others = asked.splitlines()
    assert first == "CREATE USER 'bp'@'%' IDENTIFIED BY '<password>';"
    assert "GRANT SELECT, INSERT, UPDATE, DELETE ON meta.backpressure_hydration TO 'bp'@'%';" in others
    assert len(others) == 5
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "mysql+mysqldb://u:p@h/meta")
    assert airflow("grants", "--role", "bp") == (0, asked, "")
    assert airflow("grants", "--dialect", "postgresql")[1].startswith("CREATE ROLE backpressure ")
    code, _, err = airflow("grants", "--role", "b" * 33)
    assert (code, "may have 32 characters" in err) == (2, True)


@pytest.mark.parametrize("words", [["ranges"], ["status", "--output", "xml"], ["ranges", "t", "--state", "gone"], []])
def test_wrong_words_are_wrong_use(airflow, words):
    with pytest.raises(SystemExit) as end:
        airflow(*words)
    assert end.value.code == 2
