"""A table of PostgreSQL that changes while it is copied, and the comparison of it with an Iceberg table."""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import psycopg
from pyiceberg.table import StaticTable

from dev.fingerprints import in_postgres, of_texts

TABLE, COLUMNS = "stock", ("id", "pieces", "place")
PAUSE_SECONDS = 0.05
"""Between two transactions of the writer."""


def fill(shop: "psycopg.Connection[Any]", *, rows: int) -> None:
    """Create the table with so many rows, once."""
    with shop.transaction():
        if shop.execute("SELECT to_regclass(%s) IS NOT NULL", [TABLE]).fetchone() == (True,):
            return
        shop.execute(f"CREATE TABLE {TABLE} (id bigint PRIMARY KEY, pieces integer NOT NULL, place text NOT NULL)")
        shop.execute(f"INSERT INTO {TABLE} SELECT g, g % 1000, md5(g::text) FROM generate_series(1, {rows}) g")
    shop.execute(f"ANALYZE {TABLE}")


@contextmanager
def changing(connect: Callable[[], AbstractContextManager["psycopg.Connection[Any]"]]) -> Iterator[None]:
    """Update, insert and delete rows while the block runs."""
    over, draw = threading.Event(), random.Random()

    def write() -> None:
        with connect() as shop:
            (last,) = shop.execute(f"SELECT coalesce(max(id), 0) FROM {TABLE}").fetchall()[0]
            while not over.wait(PAUSE_SECONDS):
                last += 1
                at = draw.randint(1, last)
                with shop.transaction():
                    shop.execute(f"UPDATE {TABLE} SET pieces = pieces + 1 WHERE id BETWEEN %s AND %s", (at, at + 20))
                    shop.execute(f"INSERT INTO {TABLE} VALUES (%s, 1, 'new')", (last,))
                    shop.execute(f"DELETE FROM {TABLE} WHERE id = %s", (draw.randint(1, last),))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        over.set()
        writer.join()


def compared(shop: "psycopg.Connection[Any]", folder: Path) -> tuple[int, bool]:
    """Return how many rows the Iceberg table in a folder has, and whether they are those of the source."""
    latest = max((folder / "metadata").glob("v*.metadata.json"), key=lambda file: int(file.name[1:].split(".")[0]))
    found = StaticTable.from_metadata(str(latest)).scan().to_arrow().select(COLUMNS)
    rows = of_texts(" ".join(map(str, row.values())) for row in found.to_pylist())
    return found.num_rows, rows == in_postgres(shop, "public", TABLE, COLUMNS)
