"""Airflow connections, read from whatever secrets backend there is, with one sentence where something is missing."""

from airflow.sdk import BaseHook, Connection
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_provider_backpressure.exceptions import InvalidDeclaration


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
    return InvalidDeclaration(f"There is no Airflow connection {conn_id!r}: create one of type {' or '.join(types)}.")


def check_type(found: Connection, *types: str) -> None:
    """Raise :class:`InvalidDeclaration` where a connection is of another type."""
    if found.conn_type not in types:
        # What Airflow's page and commands make, without an error, of a type whose provider they do not find.
        generic = " Airflow makes a connection generic where the provider of its type is not installed."
        raise InvalidDeclaration(
            f"The Airflow connection {found.conn_id!r} is of type {found.conn_type!r}; "
            f"type {' or '.join(types)} is needed here.{generic if found.conn_type == 'generic' else ''}"
        )


def port(conn_id: str, value: object) -> int | None:
    """Return an extra's port; ``None`` where it is left out, :class:`InvalidDeclaration` where it is none."""
    if value in (None, ""):
        return None
    text = str(value)
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise InvalidDeclaration(f"The extra executor_port of connection {conn_id!r} is no port number: {value!r}.")
    return int(text)
