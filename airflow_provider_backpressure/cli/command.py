"""What every command does: reach the ledger, find a hydration by its name, end with a sentence and an exit code."""

import difflib
import math
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import wraps
from types import SimpleNamespace
from typing import Any

from airflow.cli.simple_table import AirflowConsole
from airflow.utils.cli import get_bagged_dag, suppress_logs_and_warning
from airflow.utils.providers_configuration_loader import providers_configuration_loaded
from sqlalchemy.exc import SQLAlchemyError

from airflow_provider_backpressure.airflow_compat import AirflowException
from airflow_provider_backpressure.core.gate.hydration_record import Hydration
from airflow_provider_backpressure.core.ports.ledger import Ledger, LedgerReader
from airflow_provider_backpressure.core.push.hub import Push
from airflow_provider_backpressure.exceptions import BackpressureError, InvalidDeclaration
from airflow_provider_backpressure.hooks.backpressure import BackpressureHook
from airflow_provider_backpressure.hooks.hydration_session import Declaration
from airflow_provider_backpressure.hooks.recorded_declaration import declaration_of
from airflow_provider_backpressure.settings import environment

FAILED = 1
WRONG_USE = 2
INTERRUPTED = 130
"""By Ctrl-C, as shells have it."""
NESTED = ("json", "yaml")
"""Outputs that take values within values as they are."""
SHOWN = 8
"""Digits of an id that are shown; as many are enough to name it, mostly."""
_TRIES = 3
FOR_PEOPLE = ("table", "plain")


def command(work: Callable[[Namespace], int | None]) -> Callable[[Namespace], None]:
    """Make a function an action: the product's errors become one sentence; 0 success, 1 failure, 2 usage error."""

    @suppress_logs_and_warning
    @providers_configuration_loaded
    @wraps(work)
    def action(args: Namespace) -> None:
        # As Airflow's own commands do: a person at the host may read the connections in the metadata database.
        os.environ.setdefault("_AIRFLOW_PROCESS_CONTEXT", "server")
        code = _run(work, args)
        if code:
            sys.exit(code)

    return action


def _run(work: Callable[[Namespace], int | None], args: Namespace) -> int | None:
    """Return the exit code; an unexpected error keeps its trace."""
    try:
        code = work(args)
        sys.stdout.flush()
        return code
    except BackpressureError as error:
        print(error, file=sys.stderr)
        return WRONG_USE if isinstance(error, InvalidDeclaration) else FAILED
    except BrokenPipeError:
        # The reader has closed the pipe, as `head` does; what is left in the buffer would fail once more at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return None
    except KeyboardInterrupt:
        return INTERRUPTED


@contextmanager
def open_ledger_and_push(args: Namespace) -> Iterator[tuple[Ledger, Push | None]]:
    """Open the ledger that the command names, and this process's end of its channel, if it has one."""
    ledger, push = BackpressureHook(args.backpressure_conn_id).open_ledger_and_push()
    with closing(ledger):
        yield ledger, push
    if push is not None:
        push.flush()


@contextmanager
def open_ledger(args: Namespace) -> Iterator[Ledger]:
    """Open the ledger that the command names."""
    with open_ledger_and_push(args) as (ledger, _):
        yield ledger


def print_rows(args: Namespace, rows: list[dict[str, Any]]) -> None:
    """Print rows as the command's ``--output`` asks; what is not known is empty, or null."""
    if args.output in FOR_PEOPLE:
        rows = [{name: "" if value is None else value for name, value in row.items()} for row in rows]
    console = AirflowConsole()
    # Airflow's own printing makes a text of every number and truth.
    if args.output == "json":
        console.print_as_json(_plain(rows))
    elif args.output == "yaml":
        console.print_as_yaml(_plain(rows))
    else:
        console.print_as(rows, args.output)


def _plain(value: Any) -> Any:
    """Return a value as JSON and YAML have it: numbers and truths as they are, times and all others as texts."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    # Not of a kind of its own, such as an enumeration: YAML would name its class.
    return value if value is None or type(value) in (bool, int, float) else str(value)


_NAMED = 5
"""Most tables that a sentence lists."""


def find_hydration(ledger: LedgerReader, name: str) -> Hydration:
    """Return the hydration of an id, the beginning of an id, or a target's table.

    :class:`InvalidDeclaration` where there is none, or more than one.
    """
    every = ledger.hydrations()
    found = [one for one in every if one.id == name] or [one for one in every if _means(one, name)]
    if len(found) == 1:
        return found[0]
    if found:
        listed = ", ".join(
            f"{one.id[:SHOWN]} ({one.source_identity} -> {one.sink_identity}, DAG {one.owner})" for one in found
        )
        raise InvalidDeclaration(f"{name!r} may mean several hydrations: {listed}. Name one by its id.")
    raise InvalidDeclaration(f"There is no hydration {name!r}: {_suggest_name(every, name)}")


def _suggest_name(every: list[Hydration], name: str) -> str:
    """Return what a person may have meant by a name that no hydration has."""
    tables = [one.sink_identity.rpartition("/")[2] for one in every]
    owned = [table for one, table in zip(every, tables, strict=True) if one.owner == name]
    if owned:
        more = f" and {len(owned) - _NAMED} more" if len(owned) > _NAMED else ""
        return f"it is a DAG, whose hydrations write {', '.join(owned[:_NAMED])}{more}. Name one of them."
    close = difflib.get_close_matches(name, dict.fromkeys(tables), n=3)
    if close:
        return f"did you mean {' or '.join(close)}?"
    return "`airflow backpressure status` lists those there are."


def _means(hydration: Hydration, name: str) -> bool:
    return hydration.id.startswith(name.lower()) or hydration.sink_identity.endswith(f"/{name}")


PLANS = "PlanSnapshotOperator"


def declarations(args: Namespace) -> list[Declaration]:
    """Return the hydrations of a DAG, or of one of its task groups; :class:`InvalidDeclaration` where there is none.

    Where the DAG is gone, or its names are made by a run, they are as the ledger keeps them since their latest plan.
    """
    prefix = f"{args.task_group}." if args.task_group else ""
    try:
        return _read_dag(args, prefix)
    except InvalidDeclaration:
        kept = _read_ledger(args, prefix)
        if not kept:
            raise
        return kept


def _read_ledger(args: Namespace, prefix: str) -> list[Declaration]:
    with suppress(BackpressureError), open_ledger(args) as ledger:
        own = [one for one in ledger.hydrations() if (one.owner, one.environment) == (args.dag_id, environment())]
        kept = [declaration_of(one, args.backpressure_conn_id) for one in own if one.declaration]
        return [one for one in kept if one.task_id.startswith(prefix)]
    return []


def _read_dag(args: Namespace, prefix: str) -> list[Declaration]:
    try:
        dag = _find_dag(args.dag_id)
    except AirflowException as error:
        raise InvalidDeclaration(f"{error}") from error
    tasks: list[Any] = [task for task in dag.tasks if task.task_type == PLANS and task.task_id.startswith(prefix)]
    if not tasks:
        where = f"The task group {args.task_group!r} of" if prefix else "The DAG"
        raise InvalidDeclaration(f"{where} {args.dag_id!r} plans no hydration.")
    return [_declaration(task, args.dag_id) for task in tasks]


def _find_dag(dag_id: str) -> Any:
    """Return a DAG as its file has it. Airflow writes what it reads into its database: two at once may collide."""
    for _ in range(_TRIES - 1):
        with suppress(SQLAlchemyError):
            return get_bagged_dag(None, dag_id)
    try:
        return get_bagged_dag(None, dag_id)
    except SQLAlchemyError as error:
        raise InvalidDeclaration(
            f"Airflow could not write the DAG {dag_id!r} into its database ({type(error).__name__}): another command "
            "or its DAG processor writes it now. Try again."
        ) from error


def _declaration(task: Any, dag_id: str) -> Declaration:
    # A mapped task has none: what it maps over is known to its run.
    make = getattr(task, "declaration", None)
    if make is not None:
        declared: Declaration = make({"ti": SimpleNamespace(dag_id=dag_id)})
        texts = (declared.source.conn_id, declared.source.table, declared.sink.conn_id, declared.sink.table)
        if all(isinstance(text, str) and "{{" not in text for text in texts):
            return declared
    raise InvalidDeclaration(f"The names in {task.task_id} are made by a run, so they are not known here.")
