"""Fills the sources that the example DAGs read: two tables in PostgreSQL, one in MySQL, and a topic in Kafka.

The demo calls `fill`. docker-compose.yml runs `python -m dev.sources`, which takes the servers from the connections in
its environment (`AIRFLOW_CONN_SHOP_DB`, `AIRFLOW_CONN_ERP`, `AIRFLOW_CONN_EVENTS`, each as JSON).
"""

import json
import os
from argparse import ArgumentParser
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from dev import erp, events, stock, tpch
from dev.databases import open_database
from dev.servers.server import Server

TABLE = "lineitem"
SOURCES = {"shop_db": (f"public.{TABLE}", f"public.{stock.TABLE}"), "erp": (TABLE,), "events": (events.TOPIC,)}
"""What is filled, by the id of its connection."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Rows of each source."""

    shop: int = 3_000_000
    stock: int = 200_000
    erp: int = 500_000
    events: int = 500_000


def fill(
    shop: "psycopg.Connection[Any]",
    mysql: Server,
    brokers: str,
    *,
    sizes: Sizes,
    status: Callable[[str], AbstractContextManager[Any]],
) -> None:
    """Fill each source that is empty. `status` shows a sentence while a step runs."""
    if shop.execute("SELECT to_regclass(%s) IS NOT NULL", [TABLE]).fetchone() != (True,):
        with status(f"TPC-H lineitem, {sizes.shop:,} rows …"):
            tpch.fill(shop, TABLE, rows=sizes.shop)
    with status(f"A stock that changes, {sizes.stock:,} rows …"):
        stock.fill(shop, rows=sizes.stock)
    with status(f"TPC-H lineitem on MySQL, {sizes.erp:,} rows …"):
        erp.fill(mysql, rows=sizes.erp, table=TABLE)
    with status(f"Orders in Kafka, {sizes.events:,} records …"):
        events.fill(brokers, records=sizes.events)


def main() -> None:
    """Fill the sources that the connections in the environment lead to."""
    parser = ArgumentParser(prog="python -m dev.sources", description="Fill the sources of the example DAGs.")
    parser.add_argument("--rows", type=int, help="rows of each source, in place of the demo's sizes")
    rows = parser.parse_args().rows
    sizes = Sizes() if rows is None else Sizes(shop=rows, stock=rows, erp=rows, events=rows)
    shop_db, mysql, topic = (_connection(conn_id) for conn_id in SOURCES)
    brokers = topic["extra"]["bootstrap.servers"]
    with open_database(server_of(shop_db), shop_db["schema"]) as shop:
        fill(shop, server_of(mysql), brokers, sizes=sizes, status=_printed)


def server_of(connection: dict[str, Any]) -> Server:
    """Return the server that a connection of a database leads to."""
    return Server(
        name=connection["conn_type"],
        kind=connection["conn_type"],
        host=connection["host"],
        port=connection["port"],
        pid=None,
        log=Path(os.devnull),
        url="",
        user=connection["login"],
        password=connection["password"],
    )


def _printed(sentence: str) -> AbstractContextManager[None]:
    print(sentence, flush=True)
    return nullcontext()


def _connection(conn_id: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(os.environ[f"AIRFLOW_CONN_{conn_id.upper()}"])
    return found


if __name__ == "__main__":
    main()
