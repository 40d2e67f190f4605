"""What a shell gets: completion, help, errors that lead on, and exit codes."""

import io
import json
import shlex
import subprocess
import sys
from argparse import ArgumentTypeError

import argcomplete
import pytest
import yaml
from airflow.cli.cli_parser import get_parser

from airflow_provider_backpressure.cli import completion
from airflow_provider_backpressure.cli.arguments import parse_age
from airflow_provider_backpressure.cli.definition import get_commands
from airflow_provider_backpressure.cli.help_pages import PAGES
from airflow_provider_backpressure.core.gate.cluster_queue import Change
from airflow_provider_backpressure.operators import PlanSnapshotOperator
from tests.support.world import World, context
from tests.unit.cli.test_commands import airflow  # noqa: F401

NONE = type(None)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """A hydration in the ledger."""
    made = World()
    made.install(monkeypatch)
    PlanSnapshotOperator(task_id="plan_snapshot", **made.flow).execute(context())
    return made


class Finder(argcomplete.CompletionFinder):
    """Leaves the descriptors of the test's own process alone."""

    def _init_debug_stream(self) -> None:
        return


def completed(line: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what a shell offers behind a line, as argcomplete is asked by one."""
    for name, value in {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }.items():
        monkeypatch.setenv(name, value)
    answer = io.StringIO()
    # A parser of its own: argcomplete changes the one that it is given.
    with pytest.raises(SystemExit):
        Finder()(get_parser.__wrapped__(), exit_method=_leave, output_stream=answer)
    return [word.strip() for word in answer.getvalue().split("\n") if word.strip()]


def _leave(code: int = 0) -> None:
    raise SystemExit(code)


def test_commands_and_options_complete(world: World, monkeypatch: pytest.MonkeyPatch):
    assert set(completed("airflow backpressure re", monkeypatch)) >= {"rehydrate", "reindex", "resume", "retry-range"}
    assert "--watch" in completed("airflow backpressure status --w", monkeypatch)
    assert completed("airflow backpressure ranges sink --state com", monkeypatch) == ["committed"]


def test_hydrations_complete_by_table_and_id(world: World, monkeypatch: pytest.MonkeyPatch):
    """By the table where it means one hydration only; clusters and DAGs too."""
    short = world.hydration.id[:8]
    assert completed("airflow backpressure pause si", monkeypatch) == ["sink"]
    assert completed(f"airflow backpressure status {short[:3]}", monkeypatch) == [short]
    assert completed("airflow backpressure queue --cluster sp", monkeypatch) == ["spark"]
    assert completed("airflow backpressure plan d", monkeypatch) == ["dag"]
    world.ledger.register(
        environment="other", source_identity="s", sink_identity="memory://sink", owner="b", cluster="c", credits=1
    )
    assert completed("airflow backpressure status si", monkeypatch) == []


def test_a_shell_never_waits_for_a_ledger_that_is_silent(monkeypatch: pytest.MonkeyPatch):
    """Neither an error nor a server that does not answer: nothing is offered."""
    assert completed("airflow backpressure status --backpressure-conn-id nowhere si", monkeypatch) == []
    monkeypatch.setattr(completion, "PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(completion, "_read_names", lambda conn_id, names: __import__("threading").Event().wait(30))
    assert completed("airflow backpressure status si", monkeypatch) == []


@pytest.mark.parametrize("name", sorted(PAGES))
def test_help_is_a_page(name: str, capsys: pytest.CaptureFixture[str]):
    """What it does, examples that the parser takes, exit codes; nothing of it is eaten as markup."""
    with pytest.raises(SystemExit) as end:
        get_parser().parse_args(["backpressure", name, "--help"])
    out = capsys.readouterr().out
    page = PAGES[name]
    assert end.value.code == 0
    assert page.about.splitlines()[0] in out
    assert f"Exit codes: {page.exits}." in out
    for example in page.examples:
        assert f"airflow backpressure {example}" in out
        args = get_parser().parse_args(["backpressure", *shlex.split(example)])
        assert shlex.split(example)[0] == name
        assert callable(args.func)
    assert max(len(line) for line in page.about.splitlines()) <= 84


def test_every_command_has_a_page():
    (group,) = get_commands()
    assert set(PAGES) == {command.name for command in group.subcommands}  # type: ignore[union-attr]


def test_a_mistyped_name_is_put_right(world: World, airflow):  # noqa: F811
    code, out, err = airflow("status", "snik")
    assert (code, out) == (2, "")
    assert err == "There is no hydration 'snik': did you mean sink?\n"


def test_who_has_read_enough_breaks_nothing():
    """As under ``| head``: no trace, and no word of a broken pipe at the end."""
    script = (
        "from argparse import Namespace\n"
        "from airflow_provider_backpressure.cli.command import command\n"
        "command(lambda args: print('much\\n' * 100_000))(Namespace(verbose=False))"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as done:
        assert done.stdout is not None
        assert done.stderr is not None
        done.stdout.readline()
        done.stdout.close()
        assert (done.stderr.read(), done.wait(60)) == (b"", 0)


def test_who_interrupts_is_told_nothing(world: World, airflow, monkeypatch: pytest.MonkeyPatch):  # noqa: F811
    """Ctrl-C ends a command as shells expect."""

    def interrupted(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(world.ledger, "hydrations", interrupted)
    assert airflow("status", "sink") == (130, "", "")


@pytest.mark.statement("C4")
def test_numbers_and_truths_are_such_in_json_and_yaml(world: World, airflow):  # noqa: F811
    """Of each kind of command; times are texts, and a table stays as it was."""
    commands: dict[str, dict[str, type]] = {
        "status": {"rows": int, "percent": float, "total_exact": bool, "failed": int, "ranges_total": int, "lag": NONE},
        "sources": {"tables": int, "percent": float, "total_exact": bool, "lag": NONE},
        "ranges sink": {"seq": int, "planned_rows": int, "attempt": int, "rows": NONE, "committed_at": NONE},
        "queue": {"at_once": int, "priority": int},
        "push": {"published": int},
        "history": {"values": dict, "at": str},
    }
    world.ledger.enqueue(world.hydration.id, run="run")
    world.ledger.steer(world.hydration.id, Change(credits=2), who="ada")
    for words, fields in commands.items():
        for output, read in (("json", json.loads), ("yaml", yaml.safe_load)):
            code, out, err = airflow(*words.split(), "--output", output)
            assert (code, err) == (0, ""), words
            row = read(out)[0]
            assert {name: type(row[name]) for name in fields} == fields, (words, output)


def test_unknown_is_empty_in_a_table_and_null_in_json(world: World, airflow):  # noqa: F811
    assert "None" not in airflow("ranges", "sink")[1]
    assert "None" not in airflow("sources", "--output", "plain")[1]
    assert '"committed_at": null' in airflow("ranges", "sink", "--output", "json")[1]


def test_an_age_is_a_number_and_a_unit():
    assert [parse_age(text) for text in ("30m", "12h", "90d", "8w")] == [1800, 43200, 90 * 86400, 56 * 86400]
    for text in ("90", "d", "-1d", "1y", "1.5d"):
        with pytest.raises(ArgumentTypeError, match="such as 90d"):
            parse_age(text)
