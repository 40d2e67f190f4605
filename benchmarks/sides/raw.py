"""The floor: one client hands a binary COPY from one connection to the other.

asyncpg, since of four ways its client took the least CPU (psql | psql, psycopg's ``Copy`` and libpq row by row took
more): a floor that is too high would flatter all others.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg

from benchmarks.sides.side import SCHEMA, Order

BLOCKS = 8
"""Most blocks between the two connections."""


class Raw:
    """``COPY … TO STDOUT | COPY … FROM STDIN``."""

    def __init__(self, order: Order) -> None:
        self._order = order

    def open(self) -> None:
        """Nothing is kept between two tables."""

    def run(self) -> dict[str, Any]:
        """Copy in one transaction."""
        asyncio.run(self._copy())
        return {}

    def close(self) -> None:
        """Nothing is kept."""

    async def _copy(self) -> None:
        order = self._order
        source, sink = [await asyncpg.connect(order.url(name)) for name in (order.source, order.sink)]
        blocks: asyncio.Queue[bytes] = asyncio.Queue(BLOCKS)

        async def read() -> None:
            await source.copy_from_table(order.table, output=blocks.put, format="binary")
            await blocks.put(b"")

        async def written() -> AsyncIterator[bytes]:
            while block := await blocks.get():
                yield block

        write = sink.copy_to_table(order.table, schema_name=SCHEMA, source=written(), format="binary")
        try:
            await asyncio.gather(read(), write)
        finally:
            await source.close()
            await sink.close()
