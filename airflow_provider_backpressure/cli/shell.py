"""What every command does: reach the ledger, find a hydration by its name, end with a sentence and an exit code."""

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import wraps

from airflow.utils.cli import suppress_logs_and_warning
from airflow.utils.providers_configuration_loader import providers_configuration_loaded

from airflow_provider_backpressure.core.hydration import Hydration
from airflow_provider_backpressure.core.ports import Ledger, LedgerReader
from airflow_provider_backpressure.exceptions import BackpressureError, InvalidDeclaration
from airflow_provider_backpressure.hooks.backpressure import BackpressureHook

FAILED = 1
WRONG_USE = 2
SHOWN = 8
"""Digits of an id that are shown; as many are enough to name it, mostly."""


def command(work: Callable[[Namespace], int | None]) -> Callable[[Namespace], None]:
    """Make a function an action: errors of ours become one sentence; 0 well, 1 failed, 2 wrong use."""

    @suppress_logs_and_warning
    @providers_configuration_loaded
    @wraps(work)
    def action(args: Namespace) -> None:
        # As Airflow's own commands do: a person at the host may read the connections in the metadata database.
        os.environ.setdefault("_AIRFLOW_PROCESS_CONTEXT", "server")
        try:
            code = work(args)
        except BackpressureError as error:
            print(error, file=sys.stderr)
            code = WRONG_USE if isinstance(error, InvalidDeclaration) else FAILED
        if code:
            sys.exit(code)

    return action


@contextmanager
def opened_ledger(args: Namespace) -> Iterator[Ledger]:
    """Open the ledger that the command names."""
    with closing(BackpressureHook(args.backpressure_conn_id).ledger()) as ledger:
        yield ledger


def named(ledger: LedgerReader, name: str) -> Hydration:
    """Return the hydration of an id, the beginning of an id, or a target's table.

    :class:`InvalidDeclaration` where there is none, or more than one.
    """
    every = ledger.hydrations()
    found = [one for one in every if one.id == name] or [one for one in every if _means(one, name)]
    if len(found) == 1:
        return found[0]
    if found:
        listed = ", ".join(f"{one.id[:SHOWN]} ({one.sink_identity})" for one in found)
        raise InvalidDeclaration(f"{name!r} may mean several hydrations: {listed}.")
    raise InvalidDeclaration(f"There is no hydration {name!r}: `airflow backpressure status` lists those there are.")


def _means(hydration: Hydration, name: str) -> bool:
    return hydration.id.startswith(name.lower()) or hydration.sink_identity.endswith(f"/{name}")
