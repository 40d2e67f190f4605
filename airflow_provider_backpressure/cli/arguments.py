"""The arguments of the commands ``airflow backpressure …``, each declared once. Imports no command."""

import re
from argparse import ArgumentTypeError
from typing import Any

from airflow.cli.cli_config import Arg

from airflow_provider_backpressure.cli.completion import Completed, clusters, dags, hydrations

_AGES = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


def parse_age(text: str) -> float:
    """Return the seconds of ``90d``, ``12h``, ``8w`` or ``30m``; ``ArgumentTypeError`` for anything else."""
    found = re.fullmatch(r"(\d{1,6})([mhdw])", text)
    if found is None:
        raise ArgumentTypeError(f"an age is a number and m, h, d or w, such as 90d, not {text!r}")
    return int(found[1]) * _AGES[found[2]]


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
HYDRATIONS = Completed(
    "hydration", names=hydrations, nargs="?", help=f"{TARGET}, or the id of the DAG that owns some (default: all)"
)
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
FULL = _argument("--full", action="store_true", help="read the source again too, and compare its rows by value")
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
OLDER_THAN = _argument("--older-than", type=parse_age, help="age such as 90d, 12h or 8w (default: history_days)")
ACTS = _argument(
    "--acts", action="store_true", help="also delete the history of manual changes (default: kept forever)"
)
YES = _argument("--yes", action="store_true", help="remove everything listed; without it nothing is changed")
WITH_LEDGER = _argument("--ledger", action="store_true", help="also remove the ledger's tables, last")
FORCE = _argument("--force", action="store_true", help="remove the ledger even if something could not be reached")
MORE_DATABASES = _argument("--conn-id", action="append", help="another database to search for slots; repeatable")
OVERWRITE = _argument("--overwrite", action="store_true", help="replace the role and the connection even if they work")
