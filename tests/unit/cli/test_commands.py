"""The commands over an in-memory ledger: what they find, print and return."""

import json
import re
from dataclasses import replace
from datetime import timedelta

import pytest
from airflow.cli.cli_parser import get_parser
from sqlalchemy.exc import IntegrityError, PendingRollbackError

from airflow_provider_backpressure.cli import command
from airflow_provider_backpressure.cli import verify as verify_command
from airflow_provider_backpressure.cli.definition import get_commands
from airflow_provider_backpressure.cli.plan import format_preview
from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.gate.hydration_record import Hydration
from airflow_provider_backpressure.core.gate.signals import MemoryReading
from airflow_provider_backpressure.core.progress.lag import Sight
from airflow_provider_backpressure.core.progress.source_position import Unit
from airflow_provider_backpressure.core.snapshot.ranges import RangeState
from airflow_provider_backpressure.core.verification.mismatch_report import Report
from airflow_provider_backpressure.core.verification.verifier import Verifier
from airflow_provider_backpressure.exceptions import InvalidDeclaration, LedgerRefused
from airflow_provider_backpressure.hooks import recorded_declaration as recorded
from airflow_provider_backpressure.ledger.role_grants import TABLES
from airflow_provider_backpressure.operators import HydrateOperator, PlanSnapshotOperator, VerifyHydrationOperator
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
    assert (before["phase"], before["percent"], before["rows"], before["total"]) == ("hydration", 0.0, 0, 100)
    assert (before["ranges"], before["credits"], before["in_flight"], before["gate"]) == ("0/10", "3/3", 0, "")
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
    assert (after["phase"], after["percent"], after["ranges"], after["gate"]) == ("steady_state", 100.0, "10/10", "")


def test_status_of_a_dag_is_that_of_its_hydrations(world, airflow):
    """A user may know only the DAG's id. A command that takes one hydration names those of the DAG."""
    assert facts(airflow, "dag")["id"] == facts(airflow)["id"]
    code, _, err = airflow("pause", "dag", "--why", "release")
    assert (code, err) == (
        2,
        "There is no hydration 'dag': it is a DAG, whose hydrations write sink. Name one of them.\n",
    )


@pytest.mark.statement("M2", "M6", "M9", "M12")
def test_status_carries_every_figure(world, airflow):
    """M2, M6, M9, M12: progress, frontiers with their unit, rates, lag, verdict, memory, phase; unknown is null."""
    before = facts(airflow)
    for name in ("keeping_up", "offset_known", "lag", "memory_used", "hydrated_at", "eta_soonest", "trouble"):
        assert before[name] is None, name
    assert (before["unit"], before["total_exact"], before["read"], before["workers"]) == ("rows", True, 0, 0)
    seen(world, known=1000, committed=100, seconds=0)
    seen(world, known=3000, committed=1100, seconds=10)
    world.ledger.record_memory(
        world.hydration.id, MemoryReading(used_bytes=600 * 2**20, limit_bytes=1000 * 2**20, age_seconds=0)
    )
    during = facts(airflow)
    assert (during["keeping_up"], during["log_unit"]) == ("keeping up", "offsets")
    assert (during["upstream_rate"], during["process_rate"]) == (200.0, 100.0)
    assert (during["offset_known"], during["offset_committed"], during["lag"]) == (3000, 1100, 1900)
    assert during["lag_by_key"] == {"0": 1900}
    assert (during["catch_up"], during["open_transactions"]) == ("never", 3)
    assert (during["memory_used"], during["memory_limit"]) == (600 * 2**20, 1000 * 2**20)
    assert during["phase_since"] is not None


@pytest.mark.statement("M6", "M12")
def test_one_screen_answers_both_questions(world, airflow):
    """M12: how much is done, and is it keeping up; the executors' memory beside them."""
    for step in range(5):
        seen(world, known=1000 * step, committed=100 * step, seconds=10 * step)
    world.ledger.record_memory(
        world.hydration.id, MemoryReading(used_bytes=600 * 2**20, limit_bytes=1000 * 2**20, age_seconds=0)
    )
    code, out, err = airflow("status", "sink")
    text = " ".join(out.split())
    assert (code, err) == (0, "")
    assert "0.0 % 0 of 100 rows" in text
    assert "keeps up NO: 10 offsets/s committed, the source makes 100 offsets/s, 3,600 offsets behind" in text
    assert "never catches up at this rate" in text
    assert "3 offsets held back by open transactions" in text
    assert "60.0 % 600.0 MiB of 1000.0 MiB" in text
    assert re.search(r"phase hydration for 0:\d\d", text)
    assert "committed ▁" in text
    assert "memory ▅ fullest executor" in text.replace("▅" * text.count("▅"), "▅")


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["airflow", "backpressure", "statsu"], "There is no command 'statsu': did you mean status?"),
        (["airflow-backpressure", "rezume"], "There is no command 'rezume': did you mean resume?"),
        (["airflow", "backpressure", "status"], ""),
        (["airflow", "backpressure", "--help"], ""),
        (["airflow", "dags", "statsu"], ""),
        (["airflow", "backpressure", "qqqqqq"], ""),
    ],
)
def test_a_misspelt_command_gets_a_suggestion(monkeypatch, capsys, argv, told):
    monkeypatch.setattr("sys.argv", argv)
    get_commands()
    assert capsys.readouterr().err.strip() == told


def test_a_plan_is_readable_in_a_pipe():
    """A line for each fact: a table of all of them would wrap, here and on any screen."""
    text = format_preview(
        {"source": "postgres://a/public.orders", "target": "postgres://b/raw.orders", "rows": 1000, "range_rows": None}
    )
    assert text.splitlines() == [
        "postgres://a/public.orders -> postgres://b/raw.orders",
        "  rows        1,000",
        "  range rows",
    ]


@pytest.mark.statement("M2", "M8")
def test_a_sources_tables_are_summed(world, airflow):
    """M2, M8: one number per source."""
    seen(world, known=1000, committed=100, seconds=0)
    code, out, err = airflow("sources", "--output", "json")
    assert (code, err) == (0, "")
    (found,) = json.loads(out)
    assert (found["source"], found["tables"], found["total"], found["lag"]) == ("source", 1, 100, 900)
    assert (found["offset_known"], found["offset_committed"]) == (1000, 100)


def seen(world, *, known, committed, seconds):
    sight = Sight(
        at=world.hydration.created_at + timedelta(seconds=seconds),
        unit=Unit.OFFSETS,
        known={0: known},
        committed={0: committed},
        open=3,
        working=True,
    )
    world.ledger.record_sight(world.hydration.id, sight, least_seconds=5)


def test_a_hydration_is_named_by_id_or_table(world, airflow):
    for name in (world.hydration.id, world.hydration.id[:8], world.hydration.id[:8].upper(), "sink"):
        assert facts(airflow, name)["id"] == world.hydration.id


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
    assert err.count("memory://source -> memory://sink, DAG dag") == 2
    assert err.endswith("Name one by its id.\n")


def test_pause_and_resume_keep_who_and_why(world, airflow):
    code, out, _ = airflow("pause", "sink", "--why", "release night")
    assert code == 0
    assert "is paused; 0 ranges in flight" in out
    assert world.hydration.paused_why == "release night"
    assert airflow("resume", "sink")[0] == 0
    assert world.hydration.paused_by is None
    assert [act.action for act in world.ledger.controls()] == ["resume", "pause"]


def test_all_are_paused_and_go_on_at_once(world, airflow):
    other = world.ledger.register(
        environment="other", source_identity="s", sink_identity="k", owner="dag", cluster="spark", credits=1
    )
    assert airflow("pause", "--all", "--why", "fire")[0] == 0
    assert [one.paused_why for one in world.ledger.hydrations()] == ["fire", "fire"]
    assert airflow("resume", "--all")[0] == 0
    assert world.ledger.hydration(other.id).paused_by is None
    for wrong in (["pause"], ["pause", "sink", "--all"]):
        code, _, err = airflow(*wrong)
        assert (code, "Name a hydration, or --all of them." in err) == (2, True)


def test_figures_are_changed_and_the_trace_is_shown(world, airflow):
    code, out, _ = airflow("set", "sink", "--credits", "1", "--priority", "7", "--why", "slower")
    assert code == 0
    assert "credits 1 of at most 1, priority 7." in out
    assert (world.hydration.credits_set, world.hydration.priority) == (1, 7)
    code, out, _ = airflow("history", "sink", "--output", "json")
    (act,) = json.loads(out)
    assert (code, act["action"], act["values"], act["why"]) == (0, "set", {"credits": 1, "priority": 7}, "slower")
    code, _, err = airflow("set", "sink")
    assert (code, "Nothing to change" in err) == (2, True)


@pytest.mark.statement("H9")
def test_the_queue_shows_place_and_expected_start(world, airflow):
    """H9: who hydrates, who waits, at which place and until when; and it is changed from here."""
    cluster = world.hydration.cluster
    code, out, _ = airflow("queue", "--cluster", cluster, "--concurrency", "1", "--output", "json")
    assert (code, json.loads(out)) == (0, [])
    world.ledger.enqueue(world.hydration.id, run="first")
    for name in ("b", "c"):
        other = world.ledger.register(
            environment="test", source_identity=name, sink_identity=name, owner="dag", cluster=cluster, credits=1
        )
        world.ledger.enqueue(other.id, run=name)
    code, out, _ = airflow("queue", "--output", "json")
    rows = json.loads(out)
    assert code == 0
    assert [(row["state"], row["position"], row["target"]) for row in rows] == [
        ("running", None, "memory://sink"),
        ("queued", 1, "b"),
        ("queued", 2, "c"),
    ]
    assert {row["at_once"] for row in rows} == {1}
    assert "number 1 in the queue of" in facts(airflow, other_id(world, "b"))["gate"]
    assert airflow("queue", "--concurrency", "2")[0] == 2


def other_id(world, sink):
    return next(one.id for one in world.ledger.hydrations() if one.sink_identity == sink)


@pytest.mark.parametrize("output", ["table", "json", "yaml", "plain"])
def test_ranges_in_every_form(world, airflow, output):
    world.ledger.admit(world.hydration.id, lane="lane-7", session_id="s", lease_seconds=60)
    code, out, err = airflow("ranges", "sink", "--output", output)
    assert (code, err) == (0, "")
    assert "lane-7" in out
    code, out, _ = airflow("ranges", "sink", "--state", "committed", "--output", output)
    assert code == 0
    assert "lane-7" not in out


def test_a_range_is_left_out_for_good(world, airflow, monkeypatch):
    """Failed once, it is refused by the target too; the hydration ends without it."""
    monkeypatch.setitem(recorded.SOURCES, "memory", lambda read, identity: world.flow["source"])
    monkeypatch.setitem(recorded.SINKS, "memory", lambda write, identity: world.flow["sink"])
    permit = world.ledger.admit(world.hydration.id, lane="a", session_id="s", lease_seconds=60)
    code, _, err = airflow("skip-range", "sink", "0", "--why", "rotten")
    assert (code, "Range 0 is admitted" in err) == (1, True)
    world.ledger.release(world.plan.plan_id, 0, attempt=permit.range.attempt, error="rotten", fail=True)
    assert airflow("skip-range", "sink", "0", "--why", "rotten")[0] == 0
    HydrateOperator(task_id="hydrate", **world.flow).execute(context())
    done = VerifyHydrationOperator(task_id="verify", **world.flow).execute(context())
    assert done["rows"] == 90
    assert sorted(world.sink.rows) == list(range(10, 100))
    assert world.sink.markers(world.plan.plan_id)[permit.range.slice_id].revoked
    assert world.hydration.phase.value == "steady_state"


@pytest.mark.parametrize(
    ("options", "consistency", "states"),
    [
        (["--full"], Consistency.CATCH_UP, ["admitted", "planned"]),
        (["--full"], Consistency.STATIC, []),
        ([], Consistency.CATCH_UP, []),
    ],
)
def test_a_followed_table_with_open_ranges_is_not_compared_by_value(
    world, airflow, monkeypatch, options, consistency, states
):
    """W8: rows that are still to come would count as a difference, so the comparison is refused."""
    monkeypatch.setitem(recorded.SOURCES, "memory", lambda read, identity: world.flow["source"])
    monkeypatch.setitem(recorded.SINKS, "memory", lambda write, identity: world.flow["sink"])
    monkeypatch.setattr(verify_command, "get_recorded_plan", lambda found: replace(found.plan, consistency=consistency))
    told: list[str] = []

    def verify(self, ranges, how):
        told.extend(sorted({record.state.value for record in ranges}))
        return Report(ranges=0, rows=0, checksum="", mismatches=())

    monkeypatch.setattr(Verifier, "verify", verify)
    world.ledger.admit(world.hydration.id, lane="a", session_id="s", lease_seconds=60)
    code, _, err = airflow("verify", "sink", *options)
    assert (code, err) == (1, "")
    assert told == states


def test_a_target_that_lost_its_published_rows_is_not_equal(world, airflow, monkeypatch):
    """Its backup is of the time when they lay beside the old ones: compared with the markers, they are all there."""
    monkeypatch.setitem(recorded.SOURCES, "memory", lambda read, identity: world.flow["source"])
    monkeypatch.setitem(recorded.SINKS, "memory", lambda write, identity: world.flow["sink"])
    HydrateOperator(task_id="hydrate", **world.flow).execute(context())
    world.ledger.finish(world.hydration.id)
    assert airflow("verify", "sink")[0] == 0
    held = world.sink.held()
    monkeypatch.setattr(type(world.sink), "held", lambda self: replace(held, published=False))
    code, out, _ = airflow("verify", "sink", "--output", "json")
    assert code == 1
    assert "does not hold the new rows of plan" in out


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
    assert [(one.action, one.why) for one in world.ledger.controls()] == [("retry-range", "by hand")]
    PlanSnapshotOperator(task_id="again", **world.flow).execute(context(run_id="next"))
    HydrateOperator(task_id="once_more", **world.flow).execute(context(run_id="next"))
    assert sorted(world.sink.rows) == list(range(100))
    code, out, err = airflow("retry-range", "sink", "99")
    assert (code, out) == (1, "")
    assert "has no range 99" in err


@pytest.mark.statement("T12")
def test_a_probe_is_shown_kept_and_shown_again(world, airflow, monkeypatch):
    """T12: steps, bound and verdict; the kept one costs nothing to be seen again."""
    monkeypatch.setitem(recorded.SOURCES, "memory", lambda read, identity: world.flow["source"])
    monkeypatch.setitem(recorded.SINKS, "memory", lambda write, identity: world.flow["sink"])
    code, _, err = airflow("probe", "sink", "--last")
    assert (code, err) == (1, "memory://sink was never probed.\n")
    code, out, err = airflow("probe", "sink", "--seconds", "0.5", "--range-rows", "1", "--most", "2")
    assert code == 0
    assert "1 credits, ranges of 1 rows:" in err
    assert "What bounds it is unknown" in out or "No knee up to 2 credits" in out
    assert (world.sink.rows, world.sink.beside) == ([], {})
    code, out, _ = airflow("probe", "sink", "--last", "--output", "json")
    first = json.loads(out)[0]
    assert (code, first["credits"], first["range_rows"]) == (0, 1, 1)
    assert first["verdict"]
    assert first["at"]
    assert airflow("probe", "sink", "--last", "--output", "plain")[0] == 0
    for wrong in (["--most", "0"], ["--seconds", "0"], ["--range-rows", "0"], ["--seconds", "nan"]):
        assert airflow("probe", "sink", *wrong)[0] == 2


def test_watch_draws_until_the_hydration_is_in(world, airflow):
    HydrateOperator(task_id="hydrate", **world.flow).execute(context())
    world.ledger.finish(world.hydration.id)
    code, out, _ = airflow("status", "sink", "--watch")
    assert code == 0
    assert re.match(r"\d{4}-\d\d-\d\dT[\d:]{8}Z sink succeeded: \[", out)
    assert "100.0 %  100 of 100 rows" in out
    assert out.count("\n") == 1


def test_watch_draws_on_the_screen_only(world, airflow):
    assert airflow("status", "--watch", "--output", "json")[0] == 2


def test_a_missing_connection_is_one_sentence(world, airflow):
    code, _, err = airflow("status", "--backpressure-conn-id", "nowhere")
    assert code == 2
    assert (
        err == "There is no Airflow connection 'nowhere': create one of type backpressure "
        "(`airflow backpressure setup` does).\n"
    )


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
    assert "GRANT SELECT ON meta.alembic_version_backpressure TO 'bp'@'%';" in others
    assert len(others) == len(TABLES) + 1
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


def test_forget_removes_a_hydration_and_drops_the_log_that_is_kept_for_it(world, airflow, monkeypatch):
    """The log first: without the ledger nobody would know whose it is."""
    dropped = []
    monkeypatch.setattr(
        "airflow_provider_backpressure.cli.maintenance.drop_log", lambda found: dropped.append(found.id)
    )
    hydration = world.hydration
    world.ledger.admit(hydration.id, lane="lane", session_id="s", lease_seconds=60)
    code, _, err = airflow("forget", hydration.id)
    assert (code, dropped) == (1, [])
    assert "1 ranges of" in err
    world.ledger.release(hydration.plan.plan_id, 0, attempt=1, error="x")
    following = replace(hydration.plan, consistency=Consistency.CATCH_UP)
    world.ledger.take_over(hydration.id, following)
    assert facts(airflow)["consistent"] == "not yet"
    code, out, err = airflow("forget", hydration.id)
    assert (code, err, dropped) == (0, "", [hydration.id])
    assert "its rows stay" in out
    assert world.ledger.hydrations() == []


def test_forget_keeps_a_log_that_other_tables_share_until_the_last_of_them(world, airflow, monkeypatch):
    """A slot that nobody reads fills the source's disk; one that others read is theirs."""
    dropped = []
    monkeypatch.setattr(
        "airflow_provider_backpressure.cli.maintenance.drop_log",
        lambda found: dropped.append((found.id, found.plan.stream)),
    )
    first, names = world.hydration, ("one", "two", "log")
    ids = [
        world.ledger.register(
            environment="default",
            source_identity=f"memory://source/{name}",
            sink_identity=f"memory://sink/{name}",
            owner="dag",
            cluster="spark",
            credits=1,
        ).id
        for name in names
    ]
    stream = ids[-1]
    for id_ in ids:
        shared = stream if id_ != stream else ""
        following = replace(first.plan, plan_id=id_, consistency=Consistency.CATCH_UP, stream=shared)
        world.ledger.save_plan(id_, following, ())
    code, _, err = airflow("forget", stream)
    assert (code, dropped) == (1, [])
    assert "2 tables share the log" in err
    assert airflow("forget", ids[0])[0] == 0
    assert dropped == [(ids[0], stream)]
    assert stream in {one.id for one in world.ledger.hydrations()}
    assert airflow("forget", ids[1])[0] == 0
    assert dropped[1:] == [(ids[1], stream), (stream, "")]
    assert [one.id for one in world.ledger.hydrations()] == [first.id]


def test_a_renamed_dag_owns_its_hydrations_by_a_command(world, airflow, monkeypatch):
    """L6, its part about ownership: with who, when and why; not while the old one works."""
    running: set[tuple[str, str]] = set()
    monkeypatch.setattr("airflow_provider_backpressure.cli.manual_control._is_running", lambda *run: run in running)
    before, old = world.hydration, world.hydration.owner

    def register(owner: str) -> Hydration:
        names = {name: getattr(before, name) for name in ("environment", "source_identity", "sink_identity", "cluster")}
        return world.ledger.register(**names, owner=owner, credits=3)

    with pytest.raises(LedgerRefused, match=f"owned by {old}: new .*`airflow backpressure change-owner {old} new`"):
        register("new")
    change = ("change-owner", old, "new", "--why", "renamed")

    def refused(reason: str) -> None:
        code, _, err = airflow(*change)
        assert (code, reason in err, world.hydration.owner) == (1, True, old), err

    world.ledger.hold(before.id, run="run")
    running.add((old, "run"))
    refused("its run run is running")
    running.clear()
    world.ledger.admit(before.id, lane="lane", session_id="s", lease_seconds=60)
    refused("1 of its ranges are in flight")
    world.ledger.release(before.plan.plan_id, 0, attempt=1, error="x")
    world.ledger.enqueue(before.id, run="run")
    refused("it has or waits for its cluster's token")
    world.ledger.leave(before.id)
    code, out, err = airflow(*change)
    assert (code, err, "belongs to new" in out) == (0, "", True)
    after = world.hydration
    assert (after.owner, after.holder, after.plan) == ("new", None, before.plan)
    assert register("new").id == before.id
    (act, *_) = world.ledger.controls(before.id)
    assert (act.action, act.why, dict(act.values)) == ("change-owner", "renamed", {"owner": "new", "before": old})
    code, _, err = airflow(*change)
    assert (code, f"{old} owns no such hydration" in err) == (2, True)


@pytest.mark.statement("P8", "P10")
def test_push_is_shown_and_turned_off_and_on(world, airflow):
    """P8, P10: both switches, who turned them, and what all processes have counted."""
    world.ledger.keep_push("a", '{"published": 3, "clean": 2}')
    world.ledger.keep_push("b", '{"published": 4, "fallbacks": 1}')
    (found,) = json.loads(airflow("push", "--output", "json")[1])
    assert (found["transport"], found["publish"], found["subscribe"]) == ("none", "on", "on")
    assert (found["published"], found["clean"], found["fallbacks"]) == (7, 2, 1)
    assert "buckets" in found["observed"]
    assert airflow("push", "--publish", "off", "--why", "noise")[0] == 0
    (found,) = json.loads(airflow("push", "--subscribe", "off", "--output", "json")[1])
    assert (found["publish"], found["subscribe"]) == ("off", "off")
    (found,) = json.loads(airflow("push", "--publish", "on", "--subscribe", "on", "--output", "json")[1])
    assert (found["publish"], found["subscribe"]) == ("on", "on")
    assert [act.why for act in world.ledger.controls()][-1] == "noise"
    assert facts(airflow)["push"]["publish"] == "on"


def test_prune_removes_ranges_of_earlier_plans_by_age(world, airflow):
    """By the option, or else by the configuration's days; the current plan stays."""
    PlanSnapshotOperator(task_id="again", **world.flow).execute(context(conf={"backpressure": "restart"}))
    current = world.plan.plan_id
    world.ledger.let_go(world.hydration.id, run=world.hydration.holder)
    with pytest.raises(SystemExit) as ended:
        airflow("prune", "--older-than", "tomorrow")
    assert ended.value.code == 2
    code, out, err = airflow("prune")
    assert (code, out, err) == (0, "Removed 10 ranges of 1 earlier plans, and 0 other rows.\n", "")
    assert world.ledger.counts(current).total == 10


def test_a_dag_that_another_command_writes_too_is_read_again(monkeypatch):
    """Airflow writes the DAGs that it reads into its database, where two at once may collide."""
    answers = [IntegrityError("INSERT", {}, Exception("toar_pkey")), PendingRollbackError("rolled back"), "the dag"]

    def read(_, dag_id):
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return f"{found} {dag_id}"

    monkeypatch.setattr(command, "get_bagged_dag", read)
    assert command._find_dag("orders") == "the dag orders"
    answers[:] = [IntegrityError("INSERT", {}, Exception("toar_pkey"))] * 3
    with pytest.raises(
        InvalidDeclaration, match=r"could not write the DAG 'orders' .* \(IntegrityError\): .*Try again"
    ):
        command._find_dag("orders")
