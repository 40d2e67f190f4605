"""The floors: for each pair of source and target one plain client, without Spark and without any guarantee.

A floor that is too high would flatter all others. So asyncpg is the client of PostgreSQL, since of four ways it took
the least CPU (psql | psql, psycopg's ``Copy`` and libpq row by row took more), and MySQL itself makes text of its rows.
"""

import asyncio
import gc
import os
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import asyncpg

from benchmarks.sides.side import SCHEMA, Order
from dev import tpch

BLOCKS = 8
"""Most blocks between two connections."""
MESSAGES = 10_000
"""Most that are asked of a topic's client at once."""


class Raw:
    """``COPY … TO STDOUT | COPY … FROM STDIN`` in binary form."""

    def __init__(self, order: Order) -> None:
        self.order = order

    def open(self) -> None:
        """Nothing is kept between two tables."""

    def run(self) -> dict[str, Any]:
        """Copy in one transaction."""
        asyncio.run(self.copy())
        return {}

    def close(self) -> None:
        """Nothing is kept."""

    async def copy(self) -> None:
        """Pass block after block from one connection to the other."""
        order = self.order
        source = await asyncpg.connect(order.url(order.source))
        blocks: asyncio.Queue[bytes] = asyncio.Queue(BLOCKS)

        async def read() -> None:
            await source.copy_from_table(order.table, output=blocks.put, format="binary")
            await blocks.put(b"")

        async def written() -> AsyncIterator[bytes]:
            while block := await blocks.get():
                yield block

        try:
            await asyncio.gather(read(), self.write(written(), "binary"))
        finally:
            await source.close()

    async def write(self, source: AsyncIterator[bytes] | Path, form: str) -> None:
        """Copy into the target."""
        sink = await asyncpg.connect(self.order.url(self.order.sink))
        try:
            await sink.copy_to_table(self.order.table, schema_name=SCHEMA, source=source, format=form)
        finally:
            await sink.close()


class FromMysql(Raw):
    """``SELECT … INTO OUTFILE``, which has the form of COPY's text, and ``COPY … FROM STDIN`` of that file."""

    def __init__(self, order: Order) -> None:
        import pymysql

        super().__init__(order)
        self._connect = pymysql.connect

    async def copy(self) -> None:
        """One after the other: MySQL cannot write into a pipe."""
        order, folder = self.order, Path(self.order.folder)
        folder.mkdir()
        file, login = folder / order.table, order.mysql
        assert login is not None
        server = self._connect(
            host=login.host, port=login.port, user=login.user, password=login.password, database=order.source
        )
        with server, server.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {order.table} INTO OUTFILE %s CHARACTER SET utf8mb4", (str(file),))
        await self.write(file, "text")


class FromKafka(Raw):
    """One consumer, whose messages go into a binary COPY."""

    def __init__(self, order: Order) -> None:
        import confluent_kafka

        super().__init__(order)
        self._client = confluent_kafka
        # It takes a third of all where so many messages are made, and finds nothing.
        gc.disable()

    async def copy(self) -> None:
        """Read up to the ends that the partitions have now."""
        await self.write(self._rows(), "binary")

    async def _rows(self) -> AsyncIterator[bytes]:
        topic = self.order.table
        consumer = self._client.Consumer(
            {
                "bootstrap.servers": self.order.brokers,
                "group.id": "raw",
                "enable.auto.commit": False,
                # Otherwise it rests for a second whenever it has read far enough ahead.
                "fetch.queue.backoff.ms": 10,
            }
        )
        try:
            partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
            places = [self._client.TopicPartition(topic, number, 0) for number in partitions]
            left = sum(consumer.get_watermark_offsets(place, timeout=30)[1] for place in places)
            consumer.assign(places)
            yield b"PGCOPY\n\xff\r\n\0" + bytes(8)
            row = row_of(topic)
            while left > 0:
                messages = await asyncio.to_thread(consumer.consume, min(MESSAGES, left), 30)
                if not messages:
                    raise TimeoutError(f"{topic} gave no further message.")
                left -= len(messages)
                yield b"".join(map(row, messages))
            yield b"\xff\xff"
        finally:
            consumer.close()


def row_of(topic: str) -> Callable[[Any], bytes]:
    """Return what makes a row of binary COPY of a message: topic, partition, offset, timestamp, key, headers, value."""
    name = topic.encode()
    head = struct.pack("!hi", 7, len(name)) + name
    middle, tail = struct.Struct("!iiiqiqi"), struct.Struct("!ii")
    # PostgreSQL counts microseconds from 2000 on.
    epoch = 946_684_800_000

    def row(message: Any) -> bytes:
        key, value = message.key(), message.value()
        moment = (message.timestamp()[1] - epoch) * 1000
        fixed = middle.pack(4, message.partition(), 8, message.offset(), 8, moment, len(key))
        return b"".join((head, fixed, key, tail.pack(-1, len(value)), value))

    return row


class IntoParquet(Raw):
    """``COPY … TO STDOUT`` as CSV, typed by Arrow and written as one file of Parquet."""

    def __init__(self, order: Order) -> None:
        import pyarrow
        import pyarrow.csv
        import pyarrow.parquet

        super().__init__(order)
        types = {
            "bigint": pyarrow.int64(),
            "integer": pyarrow.int32(),
            "numeric": pyarrow.decimal128(15, 2),
            "date": pyarrow.date32(),
        }
        words = f"{tpch.GENERATED}, l_id bigint".replace("(15,2)", "").split(",")
        self._columns = {name: types.get(kind, pyarrow.string()) for name, kind, *_ in map(str.split, words)}
        self._arrow = pyarrow

    async def copy(self) -> None:
        """Read in one thread, and write in another."""
        source = await asyncpg.connect(self.order.url(self.order.source))
        reading, writing = os.pipe()
        try:
            written = asyncio.create_task(asyncio.to_thread(self._write, reading))
            with os.fdopen(writing, "wb") as output:
                await source.copy_from_table(self.order.table, output=output, format="csv")
            await written
        finally:
            await source.close()

    def _write(self, reading: int) -> None:
        # Closed in any case: the writer of the pipe then gets an error.
        with os.fdopen(reading, "rb") as file:
            folder, csv = Path(self.order.folder), self._arrow.csv
            folder.mkdir()
            rows = csv.open_csv(
                file,
                read_options=csv.ReadOptions(column_names=[*self._columns]),
                convert_options=csv.ConvertOptions(column_types=self._columns),
            )
            many = {"l_orderkey", "l_partkey", "l_suppkey", "l_comment", "l_id"}
            few = [name for name in self._columns if name not in many]
            writer = self._arrow.parquet.ParquetWriter
            with writer(folder / "all.parquet", rows.schema, compression="zstd", use_dictionary=few) as made:
                for batch in rows:
                    made.write_batch(batch)


SIDES: dict[str, Callable[[Order], Raw]] = {
    "raw": Raw,
    "mysql-raw": FromMysql,
    "kafka-raw": FromKafka,
    "parquet-raw": IntoParquet,
}
