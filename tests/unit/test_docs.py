"""The documentation says what the code says: links, snippets, states, tables, options, commands, errors."""

import ast
import inspect
import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from airflow.cli.cli_config import ActionCommand, GroupCommand
from airflow.cli.cli_parser import get_parser

from airflow_provider_backpressure import exceptions
from airflow_provider_backpressure.cli.definition import get_commands
from airflow_provider_backpressure.core import phases, ranges
from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.hydration import GateState
from airflow_provider_backpressure.core.limiter import gate_decision
from airflow_provider_backpressure.core.watch import SIGNALS, Watch
from airflow_provider_backpressure.hooks.backpressure import MYSQL_OPTIONS
from airflow_provider_backpressure.provider_info import get_provider_info

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^(#+) (.+)$", re.MULTILINE)


def named(page: Path) -> str:
    """Return a page's path for a test's name."""
    return page.relative_to(ROOT).as_posix()


def prose(page: Path) -> str:
    """Return a page without its code blocks."""
    return FENCE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """Return the anchors that a page's headings make."""
    plain = (re.sub(r"[^\w\- ]", "", re.sub(LINK, "", title).lower()) for _, title in HEADING.findall(prose(page)))
    return {title.strip().replace(" ", "-") for title in plain}


def section(page: str, heading: str) -> str:
    """Return the text under a heading, up to the next of the same or a higher level."""
    text = (DOCS / page).read_text()
    found = re.search(rf"^(#+) {re.escape(heading)}$", text, re.MULTILINE)
    assert found, f"{page} has no heading {heading!r}"
    rest = text[found.end() :]
    end = re.search(rf"^#{{1,{len(found[1])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def rows(text: str) -> list[list[str]]:
    """Return the body of the first table of a text, a list of cells for each row, without code marks."""
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("|"):
            lines.append(line)
        elif lines:
            break
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [[cell.replace("`", "") for cell in row] for row in cells[2:]]


def first_column(text: str) -> list[str]:
    """Return the first column of the first table of a text."""
    return [row[0] for row in rows(text)]


def snippets() -> Iterator[Any]:
    """Return every Python block of README and docs."""
    for page in PAGES:
        for index, (language, code) in enumerate(FENCE.findall(page.read_text())):
            if language == "python":
                yield pytest.param(code, id=f"{named(page)}[{index}]")


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_relative_link_resolves(page: Path) -> None:
    """A link leads to a file of the repository, and its anchor to a heading there."""
    broken = []
    for target in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.exists() or (anchor and anchor not in anchors(there)):
            broken.append(target)
    assert broken == []


def test_every_page_can_be_reached() -> None:
    """From the index every page is some links away."""
    reached, todo = set(), [DOCS / "index.md"]
    while todo:
        page = todo.pop()
        if page in reached or page.suffix != ".md" or not page.exists():
            continue
        reached.add(page)
        links = (target.partition("#")[0] for target in LINK.findall(prose(page)) if ":" not in target)
        todo += [(page.parent / link).resolve() for link in links if link]
    assert {named(page) for page in DOCS.rglob("*.md")} <= {named(page) for page in reached}


@pytest.mark.parametrize("code", list(snippets()))
def test_every_snippet_runs(code: str) -> None:
    """A snippet is a whole: it compiles, what it imports is there, and its declarations and DAGs can be built."""
    ast.parse(code)
    exec(compile(code, "snippet", "exec"), {"__name__": "snippet"})


@pytest.mark.parametrize(
    ("heading", "legal"), [("A range", ranges.LEGAL), ("A hydration", phases.LEGAL)], ids=["range", "hydration"]
)
def test_state_diagrams_are_the_legal_transitions(heading: str, legal: dict[StrEnum, frozenset[StrEnum]]) -> None:
    """The diagram has every legal transition and no other, its beginning, and an end for each final state."""
    text = section("concepts/states.md", heading)
    drawn = set(re.findall(r"^ {4}(\S+) --> (\S+)$", text, re.MULTILINE))
    states = list(type(next(iter(legal))))
    expected = {(state.value, to.value) for state, followers in legal.items() for to in followers}
    expected |= {("[*]", states[0].value)} | {(state.value, "[*]") for state in states if not legal.get(state)}
    assert drawn == expected
    assert first_column(text) == [state.value for state in states]


def test_budget_is_documented_as_it_is() -> None:
    """Fields, their order and their defaults."""
    documented = [
        (name, ast.literal_eval(default)) for name, default, _ in rows(section("reference/configuration.md", "Budget"))
    ]
    assert documented == [(field.name, field.default) for field in fields(Budget)]


def test_settings_are_documented_as_they_are() -> None:
    """Options of the configuration's section with their defaults."""
    options = get_provider_info()["config"]["backpressure"]["options"]
    documented = [(name, default) for name, default, _ in rows(section("reference/configuration.md", "Airflow"))]
    assert documented == [(name, option["default"]) for name, option in options.items()]


def test_signals_are_documented_as_they_are() -> None:
    """Names, whether they are learned, and who looks at which."""
    state = GateState(
        phase=phases.Phase.HYDRATION,
        credits=1,
        in_flight=0,
        waiting=1,
        reserved_bytes=0,
        oldest_seconds=None,
        commit_seconds=None,
        range_memory_bytes=None,
        paused_by=None,
        paused_why=None,
        memory_closed=False,
    )
    signals = gate_decision(state, None, Budget()).signals
    documented = {row[0]: row[-1] for row in rows((DOCS / "reference/signals.md").read_text())}
    assert documented == {signal.name: "yes" if signal.learned else "no" for signal in signals}
    watched = {
        row[0]: set(row[1].split(", ")) for row in rows(section("reference/signals.md", "Which task looks at what"))
    }
    assert watched["SinkCommitSensor"] == SIGNALS[Watch.COMMIT]
    assert watched["ExecutorMemorySensor"] == SIGNALS[Watch.MEMORY]


def test_ledger_tables_are_documented_as_they_are() -> None:
    """Every table with every column, in their order."""
    from airflow_provider_backpressure.ledger.models import metadata

    documented = HEADING.findall(section("reference/tables.md", "In the ledger"))
    assert {name for _, name in documented} == set(metadata.tables)
    for name, table in metadata.tables.items():
        assert first_column(section("reference/tables.md", name)) == [column.name for column in table.columns], name


def test_sink_tables_are_documented_as_they_are() -> None:
    """Plan row and markers, which a person reads in the target database."""
    from airflow_provider_backpressure.sinks import postgres_tables as there

    tables = {
        there.PLAN: there.PLAN_COLUMNS,
        there.COMMIT: there.COMMIT_COLUMNS,
        there.QUARANTINE: there.QUARANTINE_COLUMNS,
        there.FRONTIER: there.FRONTIER_COLUMNS,
    }
    documented = HEADING.findall(section("reference/tables.md", "In the target database"))
    assert [name for _, name in documented] == list(tables)
    for name, columns in tables.items():
        assert first_column(section("reference/tables.md", name)) == list(columns), name


def test_errors_are_documented_as_they_are() -> None:
    """Every class of the tree with the one above it."""
    tree = {
        name: kind.__bases__[0].__name__ if kind is not exceptions.BackpressureError else ""
        for name, kind in vars(exceptions).items()
        if isinstance(kind, type) and issubclass(kind, exceptions.BackpressureError)
    }
    documented = {row[0]: row[1] for row in rows((DOCS / "reference/errors.md").read_text())}
    assert documented == tree


def parameters(*callables: Any) -> dict[str, inspect.Parameter]:
    """Return the named parameters of callables together, without ``self`` and collectors."""
    found = {}
    for one in callables:
        for name, parameter in inspect.signature(one).parameters.items():
            if name != "self" and parameter.kind is not inspect.Parameter.VAR_KEYWORD:
                found[name] = parameter
    return found


def defaults(named_parameters: dict[str, inspect.Parameter]) -> list[tuple[str, Any]]:
    """Return names and defaults; an empty parameter has none."""
    return [
        (name, inspect.Parameter.empty if one.default is one.empty else one.default)
        for name, one in named_parameters.items()
    ]


def test_arguments_are_documented_as_they_are() -> None:
    """Task group and declarations: names, their order and their defaults."""
    from airflow_provider_backpressure.sinks import DeltaSink, IcebergSink, ParquetSink, PostgresSink
    from airflow_provider_backpressure.sources import KafkaSource, MySQLSource, PostgresSource
    from airflow_provider_backpressure.task_groups import hydrate

    for one in (hydrate, PostgresSource, KafkaSource, MySQLSource, PostgresSink, ParquetSink, DeltaSink, IcebergSink):
        table = rows(section("reference/operators.md", one.__name__))
        documented = [(name, ast.literal_eval(value) if value else inspect.Parameter.empty) for name, value, _ in table]
        assert documented == defaults(parameters(one)), one.__name__


def test_operators_and_sensors_are_documented_as_they_are() -> None:
    """Every public class with the arguments that it adds to those of all."""
    from airflow_provider_backpressure import operators, sensors, task

    common = set(parameters(task.HydrationTask.__init__))
    for module, heading in ((operators, "Operators"), (sensors, "Sensors")):
        documented = {row[0]: set(row[1].split(", ")) for row in rows(section("reference/operators.md", heading))}
        found = {}
        for name in module.__all__:
            ours = [
                one
                for one in getattr(module, name).__mro__
                if one.__module__.startswith("airflow_provider_backpressure")
            ]
            found[name] = set(parameters(*(one.__init__ for one in ours if "__init__" in vars(one)))) - common
        assert documented == found


def test_extras_of_connections_are_documented_as_they_are() -> None:
    """Every extra of a database's connection that is read, and no other."""
    from airflow_provider_backpressure.hooks.endpoints import ADDRESS, OPTIONS

    table = first_column(section("howto/connections.md", "The two databases: type postgres"))
    assert {name for cell in table for name in cell.split(", ")} == {*OPTIONS, *ADDRESS}


def test_extras_of_mysql_are_documented_as_they_are() -> None:
    """Every extra that is read, and no other."""
    from airflow_provider_backpressure.hooks.mysql import MYSQL_EXTRAS

    table = first_column(section("howto/connections.md", "MySQL: type mysql"))
    assert {name for cell in table for name in cell.split(", ")} == set(MYSQL_EXTRAS)


def test_extras_of_kafka_are_documented_as_they_are() -> None:
    """Every extra that is read, and no other."""
    from airflow_provider_backpressure.hooks.kafka import EXECUTOR_SERVERS, PASSWORD, SERVERS, SETTINGS, USER

    table = first_column(section("howto/connections.md", "A broker: type kafka"))
    assert {name for cell in table for name in cell.split(", ")} == {
        *SETTINGS,
        SERVERS,
        EXECUTOR_SERVERS,
        USER,
        PASSWORD,
    }


def test_extras_of_the_ledger_are_documented() -> None:
    """Every field of the form, and every extra that MySQL's driver gets."""
    table = first_column(section("howto/connections.md", "The ledger: type backpressure"))
    documented = {name for cell in table for name in cell.split(", ")}
    (form,) = get_provider_info()["connection-types"]
    assert {*form["conn-fields"], *MYSQL_OPTIONS} <= documented


def test_commands_are_documented_as_they_are() -> None:
    """Every command in its order, with every argument; those that may be left out stand in brackets."""
    documented = {}
    for _, name in HEADING.findall(prose(DOCS / "reference/commands.md"))[1:]:
        synopsis = FENCE.findall(section("reference/commands.md", name))[0][1]
        documented[name] = synopsis.split()[:3], arguments(synopsis)
    assert documented == {
        command.name: (
            ["airflow", "backpressure", command.name],
            [
                (argument.flags[-1], argument.flags[0].startswith("-") or argument.kwargs.get("nargs") == "?")
                for argument in command.args
                if "--verbose" not in argument.flags
            ],
        )
        for command in commands()
    }


def arguments(synopsis: str) -> list[tuple[str, bool]]:
    """Return the names of a synopsis and whether they may be left out."""
    found = re.findall(r"(\[?)(--[a-z-]+|[A-Z_]+)(?:(?<=[a-z]) [A-Z_]+)?(\]?)", synopsis)
    return [(name if name.startswith("--") else name.lower(), bool(bracket)) for bracket, name, _ in found]


def commands() -> list[ActionCommand]:
    """Return the commands of the group."""
    (group,) = get_commands()
    assert isinstance(group, GroupCommand)
    return [command for command in group.subcommands if isinstance(command, ActionCommand)]


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_that_are_shown_are_right(page: Path) -> None:
    """A command line of ours in a shell block is taken by Airflow's parser; a line of Python in one compiles."""
    parser = get_parser()
    for language, block in FENCE.findall(page.read_text()):
        if language != "sh":
            continue
        for line in block.splitlines():
            words = shlex.split(line, comments=True)
            if words[:2] == ["airflow", "backpressure"]:
                parser.parse_args(words[1:])
            elif words[:2] == ["python", "-c"]:
                statements = ast.parse(words[2]).body
                imports: list[ast.stmt] = [one for one in statements if isinstance(one, ast.Import | ast.ImportFrom)]
                exec(compile(ast.Module(imports, type_ignores=[]), "line", "exec"), {})
            elif words[:1] == ["make"]:
                assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), line


def sentences() -> list[str]:
    """Return every text in the package's code, with … where a value is put in."""
    found = []
    for file in (ROOT / "airflow_provider_backpressure").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            texts = [part.value if isinstance(part, ast.Constant) else "…" for part in parts]
            found.append("".join(text for text in texts if isinstance(text, str)))
    return found


def test_sentences_with_a_cure_are_said() -> None:
    """The sentences that a page explains are those of the code."""
    said = sentences()
    for row in rows(section("howto/when-something-fails.md", "Some sentences and their cure")):
        for part in re.findall(r"\*(.+)\*", row[0])[0].split("…"):
            assert any(part.strip() in text for text in said), part
