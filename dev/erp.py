"""TPC-H's lineitem on MySQL, and the comparison of its rows with a copy on PostgreSQL."""

import csv
from collections.abc import Iterator
from itertools import islice
from typing import Any

import psycopg
import pymysql
from psycopg import sql
from pymysql.cursors import SSCursor

from dev import tpch
from dev.servers.server import Server

DATABASE = "erp"
TABLE = """
CREATE TABLE lineitem (
    l_orderkey bigint NOT NULL, l_partkey bigint NOT NULL, l_suppkey bigint NOT NULL, l_linenumber int NOT NULL,
    l_quantity decimal(15,2) NOT NULL, l_extendedprice decimal(15,2) NOT NULL, l_discount decimal(15,2) NOT NULL,
    l_tax decimal(15,2) NOT NULL, l_returnflag varchar(1) NOT NULL, l_linestatus varchar(1) NOT NULL,
    l_shipdate date NOT NULL, l_commitdate date NOT NULL, l_receiptdate date NOT NULL,
    l_shipinstruct varchar(25) NOT NULL, l_shipmode varchar(10) NOT NULL, l_comment varchar(44) NOT NULL,
    l_id bigint unsigned AUTO_INCREMENT PRIMARY KEY
)"""
AT_ONCE = 2_000


def connect(server: Server, database: str | None = DATABASE) -> "pymysql.Connection[Any]":
    """Connect to the demo's MySQL."""
    return pymysql.connect(
        host=server.host,
        port=server.port,
        user=server.user or "",
        password=server.password or "",
        database=database,
        autocommit=True,
    )


def fill(server: Server, *, rows: int) -> None:
    """Create and fill the table, once."""
    with connect(server, None) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE IF NOT EXISTS {DATABASE}")
    with connect(server) as connection, connection.cursor() as cursor:
        if cursor.execute("SHOW TABLES LIKE 'lineitem'") and cursor.execute("SELECT 1 FROM lineitem LIMIT 1"):
            return
        cursor.execute("DROP TABLE IF EXISTS lineitem")
        cursor.execute(TABLE)
        connection.begin()
        insert = f"INSERT INTO lineitem ({tpch.NAMES}) VALUES ({', '.join(['%s'] * 16)})"
        lines = csv.reader(_text(rows))
        while batch := list(islice(lines, AT_ONCE)):
            cursor.executemany(insert, batch)
        connection.commit()
        cursor.execute("ANALYZE TABLE lineitem")


def equal(server: Server, target: "psycopg.Connection[Any]", table: str) -> tuple[int, bool]:
    """Compare source and target row by row, as two plain clients read them; return the target's rows too."""
    schema, name = table.split(".")
    query = sql.SQL("SELECT * FROM {} ORDER BY l_id").format(sql.Identifier(schema, name))
    rows, same = 0, True
    with connect(server) as source, source.cursor(SSCursor) as there, target.transaction():
        there.execute("SELECT * FROM lineitem ORDER BY l_id")
        with target.cursor(name="copied") as here:
            here.itersize = AT_ONCE
            here.execute(query)
            for row in here:
                rows += 1
                same = same and there.fetchone() == row
        same = same and there.fetchone() is None
    return rows, same


def _text(rows: int) -> Iterator[str]:
    """Yield the generated lines one by one; blocks end anywhere."""
    rest = b""
    for block in tpch.lines(rows):
        *whole, rest = (rest + block).split(b"\n")
        yield from (line.decode() for line in whole)
