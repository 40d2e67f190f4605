"""What a shell completes: the names of hydrations, DAGs and clusters, looked up in the ledger."""

import os
import threading
from argparse import Namespace
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from typing import Any

from airflow.cli.cli_config import Arg

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
