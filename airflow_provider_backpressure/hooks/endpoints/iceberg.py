"""Endpoints of REST catalogs, from Airflow connections of type ``iceberg``."""

from collections.abc import Mapping
from typing import Any

from airflow.sdk import Connection

from airflow_provider_backpressure.connectors.lake.options import CATALOG
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.exceptions import InvalidDeclaration


def from_iceberg(found: Connection, extra: Mapping[str, Any]) -> Endpoint:
    """Build the endpoint: the catalog's address as host, client id and secret, or a token as password alone.

    :class:`InvalidDeclaration` without an address, or with a client id that has no secret.
    """
    if not found.host:
        raise InvalidDeclaration(f"The Airflow connection {found.conn_id!r} names no host: the catalog's address.")
    if found.login and not found.password:
        raise InvalidDeclaration(f"The Airflow connection {found.conn_id!r} names a client id (login) and no secret.")
    return Endpoint(
        conn_id=found.conn_id,
        host="",
        port=0,
        database="",
        user=found.login or "",
        password=found.password or "",
        options={CATALOG: found.host},
    )
