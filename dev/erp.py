"""TPC-H's lineitem on MySQL, and the comparison of its rows with a copy on PostgreSQL."""

import tempfile
from typing import Any

import psycopg
import pymysql
from psycopg import sql
from pymysql.cursors import SSCursor

from dev import fingerprints, tpch
from dev.fingerprints import Fingerprint
from dev.servers.server import Server

DATABASE = "erp"
GENERATED = """
    l_orderkey bigint NOT NULL, l_partkey bigint NOT NULL, l_suppkey bigint NOT NULL, l_linenumber int NOT NULL,
    l_quantity decimal(15,2) NOT NULL, l_extendedprice decimal(15,2) NOT NULL, l_discount decimal(15,2) NOT NULL,
    l_tax decimal(15,2) NOT NULL, l_returnflag varchar(1) NOT NULL, l_linestatus varchar(1) NOT NULL,
    l_shipdate date NOT NULL, l_commitdate date NOT NULL, l_receiptdate date NOT NULL,
    l_shipinstruct varchar(25) NOT NULL, l_shipmode varchar(10) NOT NULL, l_comment varchar(44) NOT NULL"""
COPIED = f"{GENERATED}, l_id numeric(20,0) NOT NULL"
"""The columns as PostgreSQL takes them."""
AT_ONCE = 2_000


def connect(server: Server, database: str | None = DATABASE) -> "pymysql.Connection[Any]":
    """Connect to MySQL as the one who started it."""
    return pymysql.connect(
        host=server.host,
        port=server.port,
        user=server.user or "",
        password=server.password or "",
        database=database,
        autocommit=True,
        local_infile=True,
    )


def fill(server: Server, *, rows: int, table: str = "lineitem") -> None:
    """Create and fill a table, once."""
    with connect(server, None) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE IF NOT EXISTS {DATABASE}")
        cursor.execute("SET GLOBAL local_infile = ON")
    with connect(server) as connection, connection.cursor() as cursor, tempfile.NamedTemporaryFile("wb") as file:
        if cursor.execute(f"SHOW TABLES LIKE '{table}'") and cursor.execute(f"SELECT 1 FROM {table} LIMIT 1"):
            return
        cursor.execute(f"DROP TABLE IF EXISTS {table}")
        cursor.execute(f"CREATE TABLE {table} ({GENERATED}, l_id bigint unsigned AUTO_INCREMENT PRIMARY KEY)")
        for block in tpch.lines(rows):
            file.write(block)
        file.flush()
        cursor.execute(
            f"LOAD DATA LOCAL INFILE '{file.name}' INTO TABLE {table}"
            f" FIELDS TERMINATED BY ',' OPTIONALLY ENCLOSED BY '\"' ESCAPED BY '' ({tpch.NAMES})"
        )
        cursor.execute(f"ANALYZE TABLE {table}")


def fingerprint(server: Server, *, table: str = "lineitem") -> Fingerprint:
    """Return count and order-independent checksum."""
    with connect(server) as connection:
        return fingerprints.in_mysql(connection, table, tpch.COLUMNS)


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
