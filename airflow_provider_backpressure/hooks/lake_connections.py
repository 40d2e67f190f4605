"""Endpoints of storage, of catalogs and of Spark's own tables, from Airflow connections."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from airflow.sdk import Connection

from airflow_provider_backpressure.core.endpoints import CATALOG, NOWHERE, REGION, S3_ADDRESS, Endpoint
from airflow_provider_backpressure.exceptions import InvalidDeclaration
from airflow_provider_backpressure.hooks.connection_types_and_fields import given_extras, log_ignored, without_address

AWS_OPTIONS = (S3_ADDRESS, REGION)
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
    log_ignored(found, extra, AWS_OPTIONS)
    return without_address(found, given_extras(extra, AWS_OPTIONS))


def from_iceberg(found: Connection, extra: Mapping[str, Any]) -> Endpoint:
    """Build the endpoint: the catalog's address as host, client id and secret, or a token as password alone.

    :class:`InvalidDeclaration` without an address, or with a client id that has no secret.
    """
    if not found.host:
        raise InvalidDeclaration(f"The Airflow connection {found.conn_id!r} names no host: the catalog's address.")
    if found.login and not found.password:
        raise InvalidDeclaration(f"The Airflow connection {found.conn_id!r} names a client id (login) and no secret.")
    return without_address(found, {CATALOG: found.host})


def from_spark_connect(found: Connection, extra: Mapping[str, Any]) -> Endpoint:
    """Build the endpoint of a Spark Connect server: its password is the whole address, which may hold a token."""
    from airflow_provider_backpressure.hooks.spark_and_yarn import remote

    return replace(NOWHERE, conn_id=found.conn_id, host=found.host or "", password=remote(found, extra))


def from_spark_submit(found: Connection, extra: Mapping[str, Any]) -> Endpoint:
    """Build the endpoint of a cluster that applications are submitted to: an application of this host answers for it.

    Its host is the master's, ``local`` where ranges run on this host. :class:`InvalidDeclaration` in cluster mode.
    """
    from airflow_provider_backpressure.hooks.spark_and_yarn import make_submitter
    from airflow_provider_backpressure.runners.session_application import open_server

    submitter = make_submitter(found, extra)
    place = submitter.target
    if place.cluster:
        raise InvalidDeclaration(
            f"The Airflow connection {found.conn_id!r} has deploy-mode cluster, by which tables of Spark's catalogs "
            "are neither read nor written yet: use deploy-mode client, or a connection of type spark_connect."
        )
    host = "local" if place.local else place.master.rpartition("://")[2]
    return replace(NOWHERE, conn_id=found.conn_id, host=host, serve=partial(open_server, place, submitter))
