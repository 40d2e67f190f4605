"""The commands ``airflow backpressure …`` as Airflow's own parser takes them. Imports none of them."""

import difflib
import os
import sys
import threading
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any

from airflow.cli.cli_config import (
    ARG_OUTPUT,
    ARG_VERBOSE,
    ActionCommand,
    Arg,
    CLICommand,
    GroupCommand,
    lazy_load_command,
)

from airflow_provider_backpressure.cli.manual import GROUP_PAGE as ABOUT
from airflow_provider_backpressure.cli.manual import PAGES

PATIENCE_SECONDS = 3.0
SHOWN = 8

Names = Mapping[str, str]
"""Candidates, each with its meaning, for shells that show it."""


class Completed(Arg):
    """An argument whose values are looked up when a shell asks for them."""

    def __init__(self, *flags: str, names: Callable[[Any], Names], **values: Any) -> None:
        super().__init__(flags, **values)  # type: ignore[no-untyped-call]
        self.names = names

    def add_to_parser(self, parser: Any) -> None:
        """Add the argument with its completer."""
        action = parser.add_argument(*self.flags, **self.kwargs)
        action.completer = self.complete

    def complete(self, prefix: str = "", parsed_args: Namespace | None = None, **_: Any) -> dict[str, str]:
        """Return what begins as the shell's word does."""
        conn_id = getattr(parsed_args, "backpressure_conn_id", None) or "backpressure_default"
        found: dict[str, str] = {}

        def look() -> None:
            with suppress(Exception):
                found.update(_read_names(conn_id, self.names))

        # A daemon: the shell's answer does not wait for a server that is silent.
        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        thread.join(PATIENCE_SECONDS)
        return {name: meaning for name, meaning in dict(found).items() if name.startswith(prefix)}


def _read_names(conn_id: str, names: Callable[[Any], Names]) -> Names:
    from airflow_provider_backpressure.hooks.backpressure import BackpressureHook

    os.environ.setdefault("_AIRFLOW_PROCESS_CONTEXT", "server")
    with closing(BackpressureHook(conn_id).ledger()) as ledger:
        return names(ledger)


def suggest_command(words: Sequence[str], known: Sequence[str]) -> str:
    """Return what a person may have meant by a command that there is not, as a sentence; empty where all is well."""
    if not words or words[0].startswith("-") or words[0] in known:
        return ""
    close = difflib.get_close_matches(words[0], known, n=3)
    return f"There is no command {words[0]!r}: did you mean {' or '.join(close)}?" if close else ""


def hydrations(ledger: Any) -> Names:
    """Return each hydration by its target's table, and by the beginning of its id where several have that."""
    every = ledger.hydrations()
    tables = [one.sink_identity.rpartition("/")[2] for one in every]
    names = {}
    for one, table in zip(every, tables, strict=True):
        if tables.count(table) == 1:
            names[table] = f"{one.phase}, from {one.source_identity}"
        names[one.id[:SHOWN]] = f"{one.phase}, into {one.sink_identity}"
    return names


def dags(ledger: Any) -> Names:
    """Return the DAGs that have hydrations."""
    return {one.owner: f"hydrates {one.sink_identity}" for one in ledger.hydrations()}


def clusters(ledger: Any) -> Names:
    """Return the connections of Spark clusters."""
    return {one.cluster: "Spark cluster" for one in ledger.hydrations()}


PACKAGE = "airflow_provider_backpressure.cli"

TARGET = "id of a hydration, the beginning of one, or the target's table (schema.table)"


def _argument(*flags: str, **values: Any) -> Arg:
    return Arg(flags, **values)  # type: ignore[no-untyped-call]


LEDGER = _argument(
    "--backpressure-conn-id",
    help="Airflow connection of the ledger (default: backpressure_default)",
    default="backpressure_default",
)
HYDRATION = Completed("hydration", names=hydrations, help=TARGET)
ANY_HYDRATION = Completed("hydration", names=hydrations, nargs="?", help=f"{TARGET} (default: all)")
WATCH = _argument("-w", "--watch", action="store_true", help="refresh at each change, or every second")
STATE = _argument(
    "--state", choices=("planned", "admitted", "committed", "failed", "revoked"), help="only ranges in this state"
)
WHY = _argument("--why", help="the reason, shown with the gate")
REASON = _argument("--why", required=True, help="the reason, kept in the ledger")
ONE_OR_ALL = Completed("hydration", names=hydrations, nargs="?", help=TARGET)
ALL = _argument("--all", action="store_true", help="every hydration")
CREDITS = _argument("--credits", type=int, help="maximum ranges in flight; 0: as the DAG declares")
RANGE_ROWS = _argument("--range-rows", type=int, help="maximum rows of a range from the next plan on; 0: as declared")
PRIORITY = _argument("--priority", type=int, help="priority in the cluster's queue; higher runs first (default: 0)")
CLUSTER = Completed("--cluster", names=clusters, help="Airflow connection of a Spark cluster (default: all)")
CONCURRENCY = _argument(
    "--concurrency", type=int, help="maximum number of sources that hydrate at once on the cluster (default: 4)"
)
MOST = _argument("--most", type=int, help="maximum credits to try (default and limit: two for each slot)")
PUBLISH = _argument("--publish", choices=("on", "off"), help="publish changes, in every process")
SUBSCRIBE = _argument("--subscribe", choices=("on", "off"), help="subscribe to changes, in every process")
SECONDS = _argument("--seconds", type=float, default=10.0, help="how long each step lasts (default: 10)")
SAMPLE_ROWS = _argument("--range-rows", type=int, help="rows of a range (default: as in the plan)")
LAST = _argument("--last", action="store_true", help="show the latest result; nothing is copied")
SEQ = _argument("seq", type=int, nargs="+", help="number of a range, as `ranges` and `verify` show it")
DAG = Completed("dag_id", names=dags, help="id of the DAG")
OLD_DAG = Completed("old_dag_id", names=dags, help="id of the DAG that owns them")
NEW_DAG = _argument("new_dag_id", help="id of the DAG that shall own them")
ONE_HYDRATION = Completed("--hydration", names=hydrations, help="only this one (default: all of the old DAG)")
GROUP = _argument("--task-group", help="only the hydration of this task group")
ACCEPT = _argument(
    "--accept",
    action="store_true",
    help="accept the target as it is, also if the ledger has more commits (after a restore of the target)",
)
DATABASES = _argument(
    "--conn-id", action="append", help="a database to check; repeatable (default: those in the ledger)"
)
CLUSTERS = _argument(
    "--spark-conn-id", action="append", help="a cluster to check; repeatable (default: those in the ledger)"
)
ROLE = _argument("--role", default="backpressure", help="name of the restricted role (default: backpressure)")
SCHEMA = _argument(
    "--schema", help="schema of the ledger's tables on PostgreSQL (default: public), or their database on MySQL"
)
DIALECT = _argument(
    "--dialect", choices=("postgresql", "mysql"), help="the ledger's kind of database (default: the metadata's)"
)
OLDER_THAN = _argument("--older-than", help="age such as 90d, 12h or 8w (default: history_days of [backpressure])")
ACTS = _argument(
    "--acts", action="store_true", help="also delete the history of manual changes (default: kept forever)"
)
YES = _argument("--yes", action="store_true", help="remove everything listed; without it nothing is changed")
WITH_LEDGER = _argument("--ledger", action="store_true", help="also remove the ledger's tables, last")
FORCE = _argument("--force", action="store_true", help="remove the ledger even if something could not be reached")
MORE_DATABASES = _argument("--conn-id", action="append", help="another database to search for slots; repeatable")
OVERWRITE = _argument("--overwrite", action="store_true", help="replace the role and the connection even if they work")


def get_commands() -> list[CLICommand]:
    """Return the command group; a command that is misspelt on this process's command line gets a suggestion first."""
    commands = _make_commands()
    # Airflow's parser lists all commands where one is unknown, and names none that is like it.
    known = [command.name for group in commands for command in group.subcommands]
    if suggestion := suggest_command(_read_words(sys.argv), known):
        print(suggestion, file=sys.stderr)
    return [*commands]


def _read_words(argv: Sequence[str]) -> Sequence[str]:
    """Return what is typed behind the group's name; nothing in a process that runs another program."""
    program = os.path.basename(argv[0]) if argv else ""
    if program == "airflow-backpressure":
        return argv[1:]
    return argv[2:] if program in ("airflow", "__main__.py") and list(argv[1:2]) == ["backpressure"] else ()


def _make_commands() -> list[GroupCommand]:
    return [
        GroupCommand(
            name="backpressure",
            help="Watch and control hydrations",
            description=ABOUT,
            subcommands=(
                _action(
                    "plan", "Show the plans of a DAG's hydrations; nothing is changed", DAG, GROUP, LEDGER, ARG_OUTPUT
                ),
                _action(
                    "reindex",
                    "Rebuild a lost or older ledger from the target's markers; the source is not read",
                    DAG,
                    GROUP,
                    ACCEPT,
                    LEDGER,
                    ARG_OUTPUT,
                    module="maintenance",
                ),
                _action(
                    "rehydrate",
                    "Trigger a DAG that fills its targets again from a lake",
                    DAG,
                    GROUP,
                    LEDGER,
                    ARG_OUTPUT,
                    module="maintenance",
                ),
                _action("status", "Show the state of hydrations", ANY_HYDRATION, WATCH, LEDGER, ARG_OUTPUT),
                _action("sources", "Show sources, summed over their tables", LEDGER, ARG_OUTPUT, module="status"),
                _action("ranges", "Show a hydration's ranges", HYDRATION, STATE, LEDGER, ARG_OUTPUT, module="status"),
                _action("pause", "Pause hydrations: close their gates", ONE_OR_ALL, ALL, WHY, LEDGER, module="control"),
                _action("resume", "Resume paused hydrations", ONE_OR_ALL, ALL, WHY, LEDGER, module="control"),
                _action(
                    "set",
                    "Change credits, range size or priority of a hydration",
                    HYDRATION,
                    CREDITS,
                    RANGE_ROWS,
                    PRIORITY,
                    WHY,
                    LEDGER,
                    module="control",
                    function="set_",
                ),
                _action(
                    "queue",
                    "Show the queue of a cluster, or change its concurrency",
                    CLUSTER,
                    CONCURRENCY,
                    WHY,
                    LEDGER,
                    ARG_OUTPUT,
                    module="control",
                ),
                _action(
                    "push",
                    "Show the state of push, or switch it on and off",
                    PUBLISH,
                    SUBSCRIBE,
                    WHY,
                    LEDGER,
                    ARG_OUTPUT,
                    module="control",
                ),
                _action(
                    "history", "Show the history of manual changes", ANY_HYDRATION, LEDGER, ARG_OUTPUT, module="control"
                ),
                _action(
                    "retry-range",
                    "Read failed or wrong ranges again",
                    HYDRATION,
                    SEQ,
                    WHY,
                    LEDGER,
                    module="control",
                ),
                _action(
                    "skip-range",
                    "Skip planned or failed ranges permanently",
                    HYDRATION,
                    SEQ,
                    REASON,
                    LEDGER,
                    module="control",
                ),
                _action(
                    "change-owner",
                    "Let a renamed DAG own its hydrations",
                    OLD_DAG,
                    NEW_DAG,
                    ONE_HYDRATION,
                    WHY,
                    LEDGER,
                    function="change_owner",
                    module="control",
                ),
                _action(
                    "prune",
                    "Delete old data that no run needs from the ledger",
                    OLDER_THAN,
                    ACTS,
                    LEDGER,
                    function="prune_",
                    module="maintenance",
                ),
                _action(
                    "forget",
                    "Drop a hydration's slot and remove it from the ledger",
                    HYDRATION,
                    LEDGER,
                    module="maintenance",
                ),
                _action(
                    "uninstall",
                    "List and remove everything that this product created",
                    YES,
                    WITH_LEDGER,
                    FORCE,
                    MORE_DATABASES,
                    LEDGER,
                    ARG_OUTPUT,
                    module="maintenance",
                ),
                _action(
                    "verify", "Compare a target with its commit markers", HYDRATION, LEDGER, ARG_OUTPUT, module="plan"
                ),
                _action(
                    "probe",
                    "Measure on a sample how many credits help, and the bottleneck",
                    HYDRATION,
                    MOST,
                    SECONDS,
                    SAMPLE_ROWS,
                    LAST,
                    LEDGER,
                    ARG_OUTPUT,
                    module="plan",
                ),
                _action(
                    "doctor",
                    "Check ledger, databases and clusters",
                    DATABASES,
                    CLUSTERS,
                    LEDGER,
                    ARG_OUTPUT,
                    module="doctor",
                ),
                _action(
                    "setup",
                    "Create the ledger's role and connection",
                    ROLE,
                    OVERWRITE,
                    LEDGER,
                    module="setup",
                ),
                _action(
                    "grants",
                    "Print the SQL that setup would run, for a database administrator",
                    ROLE,
                    SCHEMA,
                    DIALECT,
                    module="setup",
                ),
            ),
        )
    ]


def _action(name: str, text: str, *args: Arg, module: str | None = None, function: str | None = None) -> ActionCommand:
    path = f"{PACKAGE}.{module or name}.{function or name.replace('-', '_')}"
    page = PAGES[name]
    return ActionCommand(
        name=name,
        help=text,
        func=lazy_load_command(path),
        args=(*args, ARG_VERBOSE),
        description=page.about,
        epilog=page.epilog,
    )
