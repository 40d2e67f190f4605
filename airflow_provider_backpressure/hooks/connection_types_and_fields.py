"""What is read of an Airflow connection of every type: the connection itself, its fields and its extras."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow.sdk import BaseHook, Connection

from airflow_provider_backpressure.airflow_compat import AirflowNotFoundException
from airflow_provider_backpressure.core.endpoints import NOWHERE, Endpoint
from airflow_provider_backpressure.exceptions import InvalidDeclaration

log = logging.getLogger(__name__)


def connection(conn_id: str, *types: str) -> Connection:
    """Return a connection of one of the given types; :class:`InvalidDeclaration` where there is none."""
    try:
        found = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise unknown_connection_error(conn_id, *types) from error
    check_type(found, *types)
    return found


def unknown_connection_error(conn_id: str, *types: str) -> InvalidDeclaration:
    """Return the error of a connection that does not exist."""
    # That of the ledger has a default, which a command makes.
    how = " (`airflow backpressure setup` does)" if types == ("backpressure",) else ""
    return InvalidDeclaration(
        f"There is no Airflow connection {conn_id!r}: create one of type {' or '.join(types)}{how}."
    )


def check_type(found: Connection, *types: str) -> None:
    """Raise :class:`InvalidDeclaration` where a connection is of another type."""
    if found.conn_type not in types:
        # What Airflow's page and commands make, without an error, of a type whose provider they do not find.
        generic = " Airflow makes a connection generic where the provider of its type is not installed."
        raise InvalidDeclaration(
            f"The Airflow connection {found.conn_id!r} is of type {found.conn_type!r}; "
            f"type {' or '.join(types)} is needed here.{generic if found.conn_type == 'generic' else ''}"
        )


def parse_port(conn_id: str, value: object) -> int | None:
    """Return an extra's port; ``None`` where it is left out, :class:`InvalidDeclaration` where it is none."""
    if value in (None, ""):
        return None
    text = str(value)
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise InvalidDeclaration(f"The extra executor_port of connection {conn_id!r} is no port number: {value!r}.")
    return int(text)


def check_fields(found: Connection, needed: Mapping[str, str | None]) -> None:
    for field, value in needed.items():
        if not value:
            raise InvalidDeclaration(f"The Airflow connection {found.conn_id!r} names no {field}.")


def log_ignored(found: Connection, extra: Mapping[str, Any], known: Collection[str]) -> None:
    ignored = sorted(set(extra) - set(known))
    if ignored:
        log.info("Extras of connection %s that have no meaning here: %s", found.conn_id, ", ".join(ignored))


def given_extras(extra: Mapping[str, Any], names: Sequence[str]) -> dict[str, str]:
    """Return the extras of these names that have a value."""
    return {name: str(extra[name]) for name in names if extra.get(name) not in (None, "")}


def without_address(found: Connection, options: Mapping[str, str]) -> Endpoint:
    login, password = found.login or "", found.password or ""
    return replace(NOWHERE, conn_id=found.conn_id, user=login, password=password, options=options)
