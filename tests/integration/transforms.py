"""Transforms as users write them; this module cannot be imported by the executors."""

import hashlib
import os
import resource
import signal
from pathlib import Path
from typing import Any

import pyarrow
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.connect.session import SparkSession


def shout(text: str | None) -> str | None:
    """Used inside Spark."""
    return None if text is None else f"{text.upper()}!"


def loud(frame: DataFrame) -> DataFrame:
    """A function of Python's own on every row."""
    return frame.select("id", F.udf(lambda text: shout(text), "string")("code").alias("code"))


def fragile(frame: DataFrame) -> DataFrame:
    """Breaks in the middle of the rows."""

    half = F.udf(lambda number: 1 // (20_000 - number), "int")
    return frame.select("id", half("id").alias("half"))


def room(number: int) -> int:
    """Used inside Spark."""
    if number > 20_000:
        raise MemoryError
    return number


def hungry(frame: DataFrame) -> DataFrame:
    """Takes more memory than there is, for a large piece."""
    return frame.select(F.udf(lambda number: room(number), "int")("id").alias("id"))


def ended(batches: Any) -> Any:
    """Used inside Spark: the kernel ends its process beyond a thousand rows."""
    rows = 0
    for batch in batches:
        rows += batch.num_rows
        if rows > 1_000:
            os.kill(os.getpid(), signal.SIGKILL)
        yield batch


def kept(batches: Any) -> Any:
    """Used inside Spark: keeps 64 KiB for each row, within 96 MiB more than its process has."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + 96 * 2**20, limits[1]))
    wide: list[str] = []
    try:
        for batch in batches:
            wide += [text.ljust(2**16) for text in batch.column("body").to_pylist()]
            yield batch
    finally:
        wide.clear()
        resource.setrlimit(resource.RLIMIT_AS, limits)


def narrow(frame: DataFrame) -> DataFrame:
    """Runs out of memory with more than some fifteen hundred rows at a time."""
    return frame.mapInArrow(lambda batches: kept(batches), frame.schema)


def killed(frame: DataFrame) -> DataFrame:
    """Takes too much for more than a thousand rows, and is ended as the kernel ends who does so: it says nothing."""
    return frame.mapInArrow(lambda batches: ended(batches), frame.schema)


def at_home(frame: DataFrame) -> DataFrame:
    """Checks that PySpark's own functions would ask this frame's session."""
    if SparkSession.active() is not frame.sparkSession:
        raise RuntimeError("another session is active")
    return frame


def ground(text: str) -> str:
    """Used inside Spark: costs about a tenth of a millisecond of a processor."""
    for _ in range(100):
        text = hashlib.sha256(text.encode()).hexdigest()
    return text


def grinding(batches: Any) -> Any:
    """Used inside Spark."""
    for batch in batches:
        codes = pyarrow.array([ground(text) for text in batch.column("code").to_pylist()])
        yield batch.set_column(batch.schema.get_field_index("code"), "code", codes)


def slow(frame: DataFrame) -> DataFrame:
    """Costs far more than reading and writing; whole rows pass it."""
    return frame.mapInArrow(lambda batches: grinding(batches), frame.schema)


def ahead(frame: DataFrame) -> DataFrame:
    """Costs as much; Spark reads all rows ahead of it, and keeps what it does not need meanwhile."""
    return frame.select("id", F.udf(lambda text: ground(text), "string")("code").alias("code"), "filling")


def quick(frame: DataFrame) -> DataFrame:
    """Costs next to nothing."""
    return frame.select("id", F.upper("code").alias("code"), "filling")


def broken(frame: DataFrame) -> DataFrame:
    """Fails before Spark is asked."""
    raise KeyError(f"no column amount among {len(frame.columns)}")


def no_frame(frame: DataFrame) -> Any:
    """Gives something else."""
    return frame.columns


def counting(frame: DataFrame) -> DataFrame:
    """Run a job of its own."""
    frame.count()
    return frame


def viewing(frame: DataFrame) -> DataFrame:
    """Make a view of the rows, which ranges of a session would share."""
    frame.filter("id > 0").createOrReplaceTempView("rows_of_a_range")
    return frame.sparkSession.sql("SELECT id, code FROM rows_of_a_range")


def viewing_by_statement(frame: DataFrame) -> DataFrame:
    """Do the same by a statement."""
    frame.sparkSession.sql("CREATE OR REPLACE TEMPORARY VIEW rows_of_a_range AS SELECT * FROM {rows}", rows=frame)
    return frame.sparkSession.table("rows_of_a_range").select("id", "code")


def joining(frame: DataFrame) -> DataFrame:
    """Join a view of other rows, and select from the frame by a parameter."""
    names = frame.sparkSession.createDataFrame([("odd", 1), ("even", 0)], "name string, rest int")
    names.createOrReplaceTempView("names_of_rests")
    return frame.sparkSession.sql("SELECT id, name FROM {rows} JOIN names_of_rests ON rest = id % 2", rows=frame)


def move_zone(frame: DataFrame) -> DataFrame:
    """Leave rows as they are, and the session in another time zone."""
    frame.sparkSession.conf.set("spark.sql.session.timeZone", "America/New_York")
    return frame


NOT_A_FUNCTION = 7
