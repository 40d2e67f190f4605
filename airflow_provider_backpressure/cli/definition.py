"""The commands ``airflow backpressure …`` as Airflow's own parser takes them. Imports none of them."""

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

from airflow_provider_backpressure.cli import completion
from airflow_provider_backpressure.cli.completion import Completed
from airflow_provider_backpressure.cli.manual import GROUP as ABOUT
from airflow_provider_backpressure.cli.manual import PAGES

PACKAGE = "airflow_provider_backpressure.cli"

TARGET = "id of a hydration, the beginning of one, or the target's table (schema.table)"


def _argument(*flags: str, **values: Any) -> Arg:
    return Arg(flags, **values)  # type: ignore[no-untyped-call]


LEDGER = _argument(
    "--backpressure-conn-id",
    help="Airflow connection of the ledger (default: backpressure_default)",
    default="backpressure_default",
)
HYDRATION = Completed("hydration", names=completion.hydrations, help=TARGET)
ANY_HYDRATION = Completed(
    "hydration", names=completion.hydrations, nargs="?", help=f"{TARGET}; all of them where it is left out"
)
WATCH = _argument("-w", "--watch", action="store_true", help="draw it anew with each change, or every second")
STATE = _argument(
    "--state", choices=("planned", "admitted", "committed", "failed", "revoked"), help="only ranges in this state"
)
WHY = _argument("--why", help="the reason, for those who look at the gate")
REASON = _argument("--why", required=True, help="the reason, which stays in the ledger")
ONE_OR_ALL = Completed("hydration", names=completion.hydrations, nargs="?", help=TARGET)
ALL = _argument("--all", action="store_true", help="every hydration there is")
CREDITS = _argument("--credits", type=int, help="most ranges in flight; 0: as the DAG declares")
RANGE_ROWS = _argument("--range-rows", type=int, help="most rows of a range from now on; 0: as declared")
PRIORITY = _argument("--priority", type=int, help="place in the cluster's queue: a higher one goes first (default: 0)")
CLUSTER = Completed(
    "--cluster", names=completion.clusters, help="Airflow connection of a Spark cluster (default: every one)"
)
CONCURRENCY = _argument("--concurrency", type=int, help="how many sources hydrate at once on the cluster (default: 4)")
MOST = _argument("--most", type=int, help="highest number of credits to try (default and limit: two for each slot)")
PUBLISH = _argument("--publish", choices=("on", "off"), help="tell others of changes, in every process")
SUBSCRIBE = _argument("--subscribe", choices=("on", "off"), help="listen for changes, in every process")
SECONDS = _argument("--seconds", type=float, default=10.0, help="how long each step lasts (default: 10)")
SAMPLE_ROWS = _argument("--range-rows", type=int, help="rows of a range (default: as in the plan)")
LAST = _argument("--last", action="store_true", help="show what was measured last; nothing is copied")
SEQ = _argument("seq", type=int, nargs="+", help="number of a range, as `ranges` and `verify` show it")
DAG = Completed("dag_id", names=completion.dags, help="id of the DAG")
GROUP = _argument("--task-group", help="only the hydration of this task group")
ACCEPT = _argument(
    "--accept",
    action="store_true",
    help="take the target's word also where the ledger knows of more, as after a restore of the target",
)
DATABASES = _argument(
    "--conn-id", action="append", help="a database to look at; may be repeated (default: those of the ledger)"
)
CLUSTERS = _argument(
    "--spark-conn-id", action="append", help="a cluster to look at; may be repeated (default: those of the ledger)"
)
ROLE = _argument("--role", default="backpressure", help="name of the restricted role (default: backpressure)")
SCHEMA = _argument(
    "--schema", help="schema of the ledger's tables on PostgreSQL (default: public), or their database on MySQL"
)
DIALECT = _argument(
    "--dialect", choices=("postgresql", "mysql"), help="the ledger's kind of database (default: the metadata's)"
)
OLDER_THAN = _argument("--older-than", help="age such as 90d, 12h or 8w (default: history_days of [backpressure])")
ACTS = _argument("--acts", action="store_true", help="also who steered what and why, which is else kept for good")
YES = _argument("--yes", action="store_true", help="remove it; without this nothing is changed")
WITH_LEDGER = _argument("--ledger", action="store_true", help="remove the ledger's tables too, when all else is gone")
FORCE = _argument("--force", action="store_true", help="remove the ledger also where something was not reached")
MORE_DATABASES = _argument(
    "--conn-id", action="append", help="a database to look into for slots, beside the ledger's; may be repeated"
)
OVERWRITE = _argument("--overwrite", action="store_true", help="make role and connection anew even where they work")


def get_commands() -> list[CLICommand]:
    """Return the command group."""
    return [
        GroupCommand(
            name="backpressure",
            help="Watch and steer hydrations: tables that go into a sink range by range",
            description=ABOUT,
            subcommands=(
                _action("plan", "Show what a DAG's hydrations would be; nothing is changed", DAG, GROUP, ARG_OUTPUT),
                _action(
                    "reindex",
                    "Rebuild a lost or older ledger from the target's markers; the source is not read",
                    DAG,
                    GROUP,
                    ACCEPT,
                    ARG_OUTPUT,
                ),
                _action(
                    "rehydrate",
                    "Let a run of a DAG fill its targets anew from what was landed in a lake",
                    DAG,
                    GROUP,
                    ARG_OUTPUT,
                ),
                _action("status", "Show where hydrations stand", ANY_HYDRATION, WATCH, LEDGER, ARG_OUTPUT),
                _action("sources", "Show sources, each over all its tables", LEDGER, ARG_OUTPUT),
                _action("ranges", "Show a hydration's ranges", HYDRATION, STATE, LEDGER, ARG_OUTPUT, module="status"),
                _action("pause", "Close a gate by hand", ONE_OR_ALL, ALL, WHY, LEDGER, module="control"),
                _action("resume", "Take the hand off again", ONE_OR_ALL, ALL, WHY, LEDGER, module="control"),
                _action(
                    "set",
                    "Change what a running hydration may take",
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
                    "Show which sources hydrate and which wait, or change how many may at once",
                    CLUSTER,
                    CONCURRENCY,
                    WHY,
                    LEDGER,
                    ARG_OUTPUT,
                ),
                _action(
                    "push",
                    "Show whether changes of a gate are told to those that wait, or turn that on and off",
                    PUBLISH,
                    SUBSCRIBE,
                    WHY,
                    LEDGER,
                    ARG_OUTPUT,
                ),
                _action(
                    "history", "Show who steered what and why", ANY_HYDRATION, LEDGER, ARG_OUTPUT, module="control"
                ),
                _action(
                    "retry-range",
                    "Read ranges once more that failed or are wrong in the target",
                    HYDRATION,
                    SEQ,
                    WHY,
                    LEDGER,
                    module="ranges",
                ),
                _action(
                    "skip-range",
                    "Leave planned or failed ranges out for good",
                    HYDRATION,
                    SEQ,
                    REASON,
                    LEDGER,
                    module="ranges",
                ),
                _action(
                    "prune",
                    "Remove from the ledger what is old and no run needs any more",
                    OLDER_THAN,
                    ACTS,
                    LEDGER,
                    function="prune_",
                ),
                _action("forget", "Drop a hydration's slot and remove it from the ledger", HYDRATION, LEDGER),
                _action(
                    "uninstall",
                    "List what there is of this product outside of targets, and remove it",
                    YES,
                    WITH_LEDGER,
                    FORCE,
                    MORE_DATABASES,
                    LEDGER,
                    ARG_OUTPUT,
                ),
                _action("verify", "Compare a target with its commit markers", HYDRATION, LEDGER, ARG_OUTPUT),
                _action(
                    "probe",
                    "Find out on a sample how many credits are worth having, and what is the bound",
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
                    "Look for what is missing",
                    DATABASES,
                    CLUSTERS,
                    LEDGER,
                    ARG_OUTPUT,
                    module="doctor.command",
                ),
                _action(
                    "setup",
                    "Make the ledger's role and connection, beside the metadata",
                    ROLE,
                    OVERWRITE,
                    LEDGER,
                    module="setup.command",
                ),
                _action(
                    "grants",
                    "Print what setup would run, for a database administrator",
                    ROLE,
                    SCHEMA,
                    DIALECT,
                    module="setup.grants",
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
