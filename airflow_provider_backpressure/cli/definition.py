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

PACKAGE = "airflow_provider_backpressure.cli"

TARGET = "id of a hydration, the beginning of one, or the target's table (schema.table)"


def _argument(*flags: str, **values: Any) -> Arg:
    return Arg(flags, **values)  # type: ignore[no-untyped-call]


LEDGER = _argument(
    "--backpressure-conn-id",
    help="Airflow connection of the ledger (default: backpressure_default)",
    default="backpressure_default",
)
HYDRATION = _argument("hydration", help=TARGET)
ANY_HYDRATION = _argument("hydration", nargs="?", help=f"{TARGET}; all of them where it is left out")
WATCH = _argument("-w", "--watch", action="store_true", help="draw it anew every second")
STATE = _argument(
    "--state", choices=("planned", "admitted", "committed", "failed", "revoked"), help="only ranges in this state"
)
WHY = _argument("--why", help="the reason, for those who look at the gate")
SEQ = _argument("seq", type=int, nargs="+", help="number of a range, as `ranges` and `verify` show it")
DAG = _argument("dag_id", help="id of the DAG")
GROUP = _argument("--task-group", help="only the hydration of this task group")
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
OVERWRITE = _argument("--overwrite", action="store_true", help="make role and connection anew even where they work")


def get_commands() -> list[CLICommand]:
    """Return the command group."""
    return [
        GroupCommand(
            name="backpressure",
            help="Watch and steer hydrations: tables that go into a sink range by range",
            subcommands=(
                _action("plan", "Show what a DAG's hydrations would be; nothing is changed", DAG, GROUP, ARG_OUTPUT),
                _action("status", "Show where hydrations stand", ANY_HYDRATION, WATCH, LEDGER, ARG_OUTPUT),
                _action("ranges", "Show a hydration's ranges", HYDRATION, STATE, LEDGER, ARG_OUTPUT, module="status"),
                _action("pause", "Close a hydration's gate by hand", HYDRATION, WHY, LEDGER, module="steering"),
                _action("resume", "Take the hand off again", HYDRATION, WHY, LEDGER, module="steering"),
                _action(
                    "retry-range",
                    "Read ranges once more that failed or are wrong in the target",
                    HYDRATION,
                    SEQ,
                    WHY,
                    LEDGER,
                    module="repair",
                ),
                _action("verify", "Compare a target with its commit markers", HYDRATION, LEDGER, ARG_OUTPUT),
                _action("doctor", "Look for what is missing", DATABASES, CLUSTERS, LEDGER, ARG_OUTPUT),
                _action("setup", "Make the ledger's role and connection, beside the metadata", ROLE, OVERWRITE, LEDGER),
                _action("grants", "Print what setup would run, for a database administrator", ROLE, SCHEMA, DIALECT),
            ),
        )
    ]


def _action(name: str, text: str, *args: Arg, module: str | None = None) -> ActionCommand:
    path = f"{PACKAGE}.{module or name}.{name.replace('-', '_')}"
    return ActionCommand(name=name, help=text, func=lazy_load_command(path), args=(*args, ARG_VERBOSE))
