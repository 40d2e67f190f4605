"""Attempts that read from MySQL: how they are named there, and how an earlier one is ended."""

import contextlib

import pymysql

from airflow_provider_backpressure.connectors.mysql.connect import Connection

ATTEMPT = "bp-read:"


def reader_name(tag: str) -> str:
    """Return the name under which an attempt reads; the attempt's own name is the writer's."""
    return tag.replace("bp:", ATTEMPT, 1)


def end_attempts(connection: Connection, name: str) -> None:
    """End the statements of earlier attempts at the same slice, as far as our account sees them and may.

    They would only cost: what they read is refused by the sink.
    """
    if not name.startswith(ATTEMPT):
        return
    slice_, _, attempt = name.rpartition(":")
    with connection.cursor() as cursor:
        cursor.execute("SHOW FULL PROCESSLIST")
        running = [(int(row[0]), str(row[7] or "")) for row in cursor.fetchall()]
        for number, statement in running:
            other, _, rest = statement.removeprefix("/* ").partition(" */")[0].rpartition(":")
            if other == slice_ and rest.isdecimal() and int(rest) < int(attempt):
                with contextlib.suppress(pymysql.Error):
                    cursor.execute(f"KILL {number}")
