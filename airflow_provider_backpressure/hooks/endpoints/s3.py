"""Endpoints of buckets, from Airflow connections of type ``aws``."""

import logging
from collections.abc import Mapping
from typing import Any

from airflow.sdk import Connection

from airflow_provider_backpressure.connectors.lake.options import ADDRESS, REGION
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.exceptions import InvalidDeclaration

log = logging.getLogger(__name__)

AWS_OPTIONS = (ADDRESS, REGION)
"""Extras that are read."""


def from_aws(found: Connection, extra: Mapping[str, Any]) -> Endpoint:
    """Build the endpoint: key id and secret, region, and the address of what is not Amazon's own.

    Without login the machines' own rights are used (environment, instance profile). :class:`InvalidDeclaration` for a
    key id without its secret.
    """
    if bool(found.login) != bool(found.password):
        raise InvalidDeclaration(
            f"The Airflow connection {found.conn_id!r} needs both a key id (login) and its secret."
        )
    ignored = sorted(set(extra) - set(AWS_OPTIONS))
    if ignored:
        log.info("Extras of connection %s that have no meaning here: %s", found.conn_id, ", ".join(ignored))
    return Endpoint(
        conn_id=found.conn_id,
        host="",
        port=0,
        database="",
        user=found.login or "",
        password=found.password or "",
        options={name: str(extra[name]) for name in AWS_OPTIONS if extra.get(name) not in (None, "")},
    )
