"""The documentation says what the code says: links, snippets, states, tables, options, commands, errors."""

import ast
import configparser
import importlib.util
import json
import re
import shlex
import warnings
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
import yaml
from airflow.cli.cli_config import ActionCommand, Arg, GroupCommand
from airflow.cli.cli_parser import get_parser
from airflow.dag_processing.dagbag import DagBag

from airflow_provider_backpressure import sinks, sources
from airflow_provider_backpressure.cli.definition import get_commands
from airflow_provider_backpressure.core.capacity.saturation_curve import Bound
from airflow_provider_backpressure.core.gate.credit_limits import GradedLimit
from airflow_provider_backpressure.core.progress.notified_events import Kind
from airflow_provider_backpressure.core.push import channel_counters as push_counts
from airflow_provider_backpressure.core.transitions import hydration_transitions, range_transitions
from airflow_provider_backpressure.hooks.backpressure import MYSQL_OPTIONS
from airflow_provider_backpressure.ledger.models import metadata
from airflow_provider_backpressure.provider_info import get_provider_info
from dev.docs.__main__ import made
from dev.docs.diagrams import gate
from dev.docs.facts import SINK_TABLES
from dev.docs.reference import UNSAID
from tests.support.docs import DOCS, FENCE, PAGES, ROOT, SHELLS, named, prose

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^(#+) (.+)$", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Return the anchors that a page's headings make."""
    plain = (re.sub(r"[^\w\- ]", "", re.sub(LINK, "", title).lower()) for _, title in HEADING.findall(prose(page)))
    return {title.strip().replace(" ", "-") for title in plain}


def section(page: str, heading: str) -> str:
    """Return the text under a heading of a page of docs/."""
    return section_of((DOCS / page).read_text(), heading)


def section_of(text: str, heading: str) -> str:
    """Return the text under a heading, up to the next of the same or a higher level."""
    found = re.search(rf"^(#+) {re.escape(heading)}$", text, re.MULTILINE)
    assert found, f"There is no heading {heading!r}"
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
def test_every_snippet_runs(code: str, tmp_path: Path) -> None:
    """A snippet is a whole: in a DAGs folder Airflow takes it without an error, with every DAG in it."""
    (tmp_path / "snippet.py").write_text(code)
    bag = DagBag(tmp_path, safe_mode=False, known_pools={"default_pool"})
    assert bag.import_errors == {}
    named = re.findall(r'^with DAG\(\s*"([^"]+)"', code, re.MULTILINE)
    assert sorted(bag.dags) == sorted(named)


@pytest.mark.parametrize("path", list(made()), ids=lambda path: path.relative_to(DOCS).as_posix())
def test_what_is_made_from_the_code_is_as_it_makes_it(path: Path) -> None:
    """Names, order, types and defaults of the reference's tables, and the diagrams: ``make docs`` writes them again."""
    assert path.exists(), "run make docs"
    assert path.read_text() == made()[path], "run make docs"
    assert UNSAID not in path.read_text(), "say what the new rows mean"


def test_every_table_of_the_code_has_its_place() -> None:
    """What the ledger holds beside the target or in its own database has a heading; what has one is there."""
    for heading, held in (("In the ledger", set(metadata.tables)), ("In the target database", SINK_TABLES)):
        names = held if isinstance(held, set) else {table.name.name for table in held}
        assert {name for _, name in HEADING.findall(section("reference/tables.md", heading))} == names


def test_every_error_and_every_declaration_has_its_place() -> None:
    """A public source or sink has a section of the operators' page."""
    headings = {name for _, name in HEADING.findall((DOCS / "reference/operators.md").read_text())}
    assert {*sources.__all__, *sinks.__all__} <= headings


def drawn(name: str) -> set[tuple[str, str]]:
    """Return the arrows of a picture."""
    return set(re.findall(r'data-from="([^"]+)" data-to="([^"]+)"', (DOCS / f"images/{name}.svg").read_text()))


@pytest.mark.parametrize(
    ("heading", "name", "legal"),
    [
        ("A range", "states-range", range_transitions.LEGAL),
        ("A hydration", "states-hydration", hydration_transitions.LEGAL),
    ],
    ids=["range", "hydration"],
)
def test_state_diagrams_are_the_legal_transitions(
    heading: str, name: str, legal: dict[StrEnum, frozenset[StrEnum]]
) -> None:
    """The picture has every legal transition and no other, its beginning, and an end for each final state."""
    states = list(type(next(iter(legal))))
    expected = {(state.value, to.value) for state, followers in legal.items() for to in followers}
    expected |= {("start", states[0].value)} | {(state.value, "end") for state in states if not legal.get(state)}
    assert drawn(name) == expected
    text = section("concepts/states.md", heading)
    assert f"../images/{name}.svg" in text
    assert first_column(text) == [state.value for state in states]


def test_the_gates_diagram_is_how_it_goes() -> None:
    """Between the marks memory stays as it is; all else follows the signals at once. The words on the arrows say so."""
    goes = gate()
    moves = {(before, after) for (before, _, _), after in goes.items() if before != after}
    assert moves == {(start, end) for start, end in drawn("states-gate") if start != end}
    for before in ("open", "closed", "closed by memory"):
        assert goes[before, False, "below the low mark"] == "open"
        assert goes[before, True, "below the low mark"] == "closed"
        assert goes[before, False, "at the high mark"] == "closed by memory"
    assert goes["closed by memory", False, "between"] == "closed by memory"
    assert goes["open", False, "between"] == goes["closed", False, "between"] == "open"
    assert first_column(section("concepts/states.md", "The gate")) == ["open", "closed", "closed by memory"]


def test_the_laws_table_is_the_law() -> None:
    """What becomes of the credits at which pressure."""
    table = dict(rows(section("concepts/gate.md", "How many credits")))
    assert list(table) == ["below 0.4", "0.4 to 0.7", "above 0.7", "1.0 and above"]
    said = {"one more": 5, "unchanged": 4, "one less": 3, "half": 2}
    for pressure, row in ((0.0, "below 0.4"), (0.39, "below 0.4"), (0.4, "0.4 to 0.7"), (0.7, "0.4 to 0.7")):
        assert GradedLimit().after(4, pressure, 8) == said[table[row]], pressure
    for pressure, row in ((0.71, "above 0.7"), (0.99, "above 0.7"), (1.0, "1.0 and above"), (9.0, "1.0 and above")):
        assert GradedLimit().after(4, pressure, 8) == said[table[row]], pressure


@pytest.mark.parametrize(
    ("page", "heading", "names"),
    [
        ("howto/notifications.md", "Get notified when something goes wrong", [kind.value for kind in Kind]),
        ("howto/find-the-boundaries.md", "Find the boundaries", [bound.value for bound in Bound]),
        ("concepts/push.md", "What is counted", [*push_counts.NAMES, *push_counts.HISTOGRAMS]),
    ],
    ids=["notifications", "bounds", "push"],
)
def test_a_table_of_names_has_them_all(page: str, heading: str, names: list[str]) -> None:
    """In the first table under a heading that has names, whatever their order."""
    table = section(page, heading)
    table = table[re.search(r"^\| (Counter|Bound|`?kind`?) ", table, re.MULTILINE).start() :]
    assert sorted(name for cell in first_column(table) for name in cell.split(", ")) == sorted(names)


def test_extras_of_connections_are_documented_as_they_are() -> None:
    """Every extra of a database's connection that is read, and no other."""
    from airflow_provider_backpressure.hooks.database_connections import ADDRESS, OPTIONS

    table = first_column(section("howto/connections.md", "The two databases: type postgres"))
    assert {name for cell in table for name in cell.split(", ")} == {*OPTIONS, *ADDRESS}


def test_extras_of_mysql_are_documented_as_they_are() -> None:
    """Every extra that is read, and no other."""
    from airflow_provider_backpressure.hooks.database_connections import MYSQL_EXTRAS

    table = first_column(section("howto/connections.md", "MySQL: type mysql"))
    assert {name for cell in table for name in cell.split(", ")} == set(MYSQL_EXTRAS)


def test_extras_of_kafka_are_documented_as_they_are() -> None:
    """Every extra that is read, and no other."""
    from airflow_provider_backpressure.hooks import kafka_connection as endpoints
    from airflow_provider_backpressure.hooks.kafka_connection import EXECUTOR_SERVERS, PASSWORD, SERVERS, SETTINGS, USER

    table = first_column(section("howto/connections.md", "A login by OAuth"))
    by_oauth = {*endpoints.OAUTH_SETTINGS, endpoints.EXTENSIONS, endpoints.CLIENT_ID[0], endpoints.CLIENT_SECRET[0]}
    assert {name for cell in table for name in cell.split(", ")} == by_oauth
    table = first_column(section("howto/connections.md", "A broker: type kafka"))
    assert {name for cell in table for name in cell.split(", ")} == {
        *SETTINGS,
        *endpoints.KEY_SECRETS,
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
                (argument.flags[-1], _may_be_left_out(argument))
                for argument in command.args
                if "--verbose" not in argument.flags
            ],
        )
        for command in commands()
    }


def _may_be_left_out(argument: Arg) -> bool:
    option = argument.flags[0].startswith("-") and not argument.kwargs.get("required")
    return option or argument.kwargs.get("nargs") == "?"


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
    """Every line of a shell block is one that would be taken: by Airflow's parser, by Make, by Python, by pip."""
    parser = get_parser()
    for language, block in FENCE.findall(page.read_text()):
        if language not in SHELLS:
            continue
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                del words[0]
            if words[:2] == ["kubectl", "exec"]:
                words = words[words.index("--") + 1 :]
            match words:
                case ["airflow", *words]:
                    with warnings.catch_warnings():
                        # The providers of other types are not installed with the tests.
                        warnings.filterwarnings("ignore", ".*--conn-type")
                        parser.parse_args(words)
                case ["spark-submit", "--master", _, "--class", _, *words]:
                    assert re.fullmatch(r"(--conf spark[\w.]+=\S+ )+spark-internal", " ".join(words)), line
                case ["python", "-c", code]:
                    statements = ast.parse(code).body
                    imports: list[ast.stmt] = [
                        one for one in statements if isinstance(one, ast.Import | ast.ImportFrom)
                    ]
                    exec(compile(ast.Module(imports, type_ignores=[]), "line", "exec"), {})
                case ["python", "-m", module, *words] if module != "venv":
                    _check_module(module, words)
                case ["make", target, *_]:
                    assert target in targets(), line
                case (
                    ["pip", "install", *_]
                    | ["pip", "uninstall", "airflow-provider-backpressure"]
                    | ["python", "-m", "venv", _]
                    | [".", "spark/bin/activate"]
                    | ["read", "-rs", *_]
                    | ["docker", "compose", *_]
                    | ["helm", "upgrade", *_]
                    | ["gcloud", "composer", "environments", "update", *_]
                    | ["eval", "$(register-python-argcomplete airflow)"]
                    | []
                ):
                    pass
                case _:
                    pytest.fail(f"{named(page)} shows a command that no test knows: {line}")


def _check_module(module: str, words: list[str]) -> None:
    found = importlib.util.find_spec(module)
    assert found is not None, module
    if module.startswith("benchmarks."):
        code = "".join(file.read_text() for file in (ROOT / "benchmarks").glob("*.py"))
        assert [word for word in words if word.startswith("--") and f'"{word}"' not in code] == []


def targets() -> set[str]:
    """Return the targets of the Makefile."""
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_what_is_named_in_passing_is_there(page: Path) -> None:
    """Commands with their options, Make's targets, modules, files, extras, and variables of the configuration."""
    text = prose(page)
    known = {command.name: {flag for one in command.args for flag in one.flags} for command in commands()}
    for name, rest in re.findall(r"`airflow backpressure ([a-z-]+)([^`]*)`", text):
        assert name in known
        assert set(re.findall(r"--[a-z-]+", rest)) <= known[name], name
    assert set(re.findall(r"`make ([a-z-]+)`", text)) <= targets()
    assert set(re.findall(r"AIRFLOW__BACKPRESSURE__(\w+)", text)) <= {option.upper() for option in options()}
    for module in re.findall(r"`python -m ([\w.]+)", text):
        assert importlib.util.find_spec(module), module
    for path in re.findall(r"`([\w/]+/\w+\.py)`", text):
        assert (ROOT / path).exists() or (ROOT / "airflow_provider_backpressure" / path).exists(), path
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras = re.findall(r"airflow-provider-backpressure\[([\w,]+)\]", page.read_text())
    assert {extra for each in extras for extra in each.split(",")} <= set(setup["options.extras_require"])


def options() -> dict[str, Any]:
    """Return the options of our section of Airflow's configuration."""
    found: dict[str, Any] = get_provider_info()["config"]["backpressure"]["options"]
    return found


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_blocks_are_in_a_language_that_is_checked(page: Path) -> None:
    """JSON is JSON, YAML is YAML, properties have a key and a value. No diagram needs a script to be seen."""
    for language, block in FENCE.findall(page.read_text()):
        assert language in {"python", "json", "properties", "sql", "text", "yaml", *SHELLS}, language
        if language == "json":
            json.loads(block)
        if language == "yaml":
            assert isinstance(yaml.safe_load(block), dict)
        if language == "properties":
            assert all(re.fullmatch(r"[\w.]+=\S.*", line) for line in block.splitlines())


def test_versions_stand_in_one_place() -> None:
    """README's table is the matrix. What packages, classifiers and refusals say agrees with it."""
    matrix = dict(rows(section_of((ROOT / "README.md").read_text(), "Versions")))
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert setup["options"]["python_requires"] == f">={number(matrix['Python'])}"
    requires = dict(
        re.findall(r"^([\w-]+)(?:\[\w+\])?[>=]=([\d.]+)", setup["options"]["install_requires"], re.MULTILINE)
    )
    assert requires["apache-airflow"] == number(matrix["Airflow"])
    assert requires["pyspark-client"] == number(matrix["Spark"])
    for page in PAGES:
        if page.name in ("CHANGELOG.md", "benchmarks.md", "versions.md"):
            continue
        for product, said in re.findall(r"\b(Airflow|PySpark|Spark|Python) (\d+\.\d+)", prose(page)):
            assert said == number(matrix["Spark" if product == "PySpark" else product]), (
                f"{named(page)}: {product} {said}"
            )


def number(cell: str) -> str:
    """Return the first version that a cell names."""
    found = re.search(r"\d[\d.]*", cell)
    assert found
    return found[0].rstrip(".")


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
