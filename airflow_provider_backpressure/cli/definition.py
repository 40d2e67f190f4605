"""The commands ``airflow backpressure …`` as Airflow's own parser takes them. Imports none of them."""

import difflib
import os
import sys
from collections.abc import Sequence

from airflow.cli.cli_config import (
    ARG_OUTPUT,
    ARG_VERBOSE,
    ActionCommand,
    Arg,
    CLICommand,
    GroupCommand,
    lazy_load_command,
)

from airflow_provider_backpressure.cli.arguments import (
    ACCEPT,
    ACTS,
    ALL,
    ANY_HYDRATION,
    CLUSTER,
    CLUSTERS,
    CONCURRENCY,
    CREDITS,
    DAG,
    DATABASES,
    DIALECT,
    FORCE,
    FULL,
    GROUP,
    HYDRATION,
    HYDRATIONS,
    LAST,
    LEDGER,
    MORE_DATABASES,
    MOST,
    NEW_DAG,
    OLD_DAG,
    OLDER_THAN,
    ONE_HYDRATION,
    ONE_OR_ALL,
    OVERWRITE,
    PRIORITY,
    PUBLISH,
    RANGE_ROWS,
    REASON,
    ROLE,
    SAMPLE_ROWS,
    SCHEMA,
    SECONDS,
    SEQ,
    STATE,
    SUBSCRIBE,
    WATCH,
    WHY,
    WITH_LEDGER,
    YES,
)
from airflow_provider_backpressure.cli.help_pages import GROUP_PAGE as ABOUT
from airflow_provider_backpressure.cli.help_pages import PAGES


def suggest_command(words: Sequence[str], known: Sequence[str]) -> str:
    """Return what a person may have meant by a command that there is not, as a sentence; empty where all is well."""
    if not words or words[0].startswith("-") or words[0] in known:
        return ""
    close = difflib.get_close_matches(words[0], known, n=3)
    return f"There is no command {words[0]!r}: did you mean {' or '.join(close)}?" if close else ""


PACKAGE = "airflow_provider_backpressure.cli"


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
                _action("status", "Show the state of hydrations", HYDRATIONS, WATCH, LEDGER, ARG_OUTPUT),
                _action("sources", "Show sources, summed over their tables", LEDGER, ARG_OUTPUT, module="status"),
                _action(
                    "ranges",
                    "Show a hydration's ranges",
                    HYDRATION,
                    STATE,
                    LEDGER,
                    ARG_OUTPUT,
                ),
                _action(
                    "pause",
                    "Pause hydrations: close their gates",
                    ONE_OR_ALL,
                    ALL,
                    WHY,
                    LEDGER,
                    module="manual_control",
                ),
                _action("resume", "Resume paused hydrations", ONE_OR_ALL, ALL, WHY, LEDGER, module="manual_control"),
                _action(
                    "set",
                    "Change credits, range size or priority of a hydration",
                    HYDRATION,
                    CREDITS,
                    RANGE_ROWS,
                    PRIORITY,
                    WHY,
                    LEDGER,
                    module="manual_control",
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
                ),
                _action(
                    "push",
                    "Show the state of push, or switch it on and off",
                    PUBLISH,
                    SUBSCRIBE,
                    WHY,
                    LEDGER,
                    ARG_OUTPUT,
                ),
                _action("history", "Show the history of manual changes", ANY_HYDRATION, LEDGER, ARG_OUTPUT),
                _action(
                    "retry-range",
                    "Read failed or wrong ranges again",
                    HYDRATION,
                    SEQ,
                    WHY,
                    LEDGER,
                    module="ranges",
                ),
                _action(
                    "skip-range",
                    "Skip planned or failed ranges permanently",
                    HYDRATION,
                    SEQ,
                    REASON,
                    LEDGER,
                    module="ranges",
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
                    module="manual_control",
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
                ),
                _action(
                    "verify",
                    "Compare a target with its commit markers, or with its source",
                    HYDRATION,
                    FULL,
                    LEDGER,
                    ARG_OUTPUT,
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
