"""The ledger as triggers reach it: without blocking the event loop, one for all of a process."""

import asyncio
import json
from functools import lru_cache
from typing import TYPE_CHECKING

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_provider_backpressure.core.ports import Ledger
from airflow_provider_backpressure.hooks.backpressure import CONN_TYPE, open_ledger, url
from airflow_provider_backpressure.hooks.connections import check_type, missing

if TYPE_CHECKING:
    from sqlalchemy import URL


@lru_cache(maxsize=8)
def shared_ledger(address: "URL") -> Ledger:
    """Return the ledger that all triggers of this process share: a thousand waiting lanes need few connections."""
    return open_ledger(address)


async def opened_ledger(conn_id: str) -> Ledger:
    """Return the ledger of an Airflow connection; ``InvalidDeclaration`` where there is no such connection."""
    try:
        found = await BaseHook.aget_connection(conn_id)
    except AirflowNotFoundException as error:
        raise missing(conn_id, CONN_TYPE) from error
    check_type(found, CONN_TYPE)
    # Not `extra_dejson`: it sends a message to the supervisor, which must not block the event loop, and its async
    # form is missing from connections that a local secrets backend gives.
    extra = json.loads(found.extra or "{}")
    return await asyncio.to_thread(lambda: shared_ledger(url(found, extra)))
