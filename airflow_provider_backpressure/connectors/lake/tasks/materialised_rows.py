"""Rows that tasks make once and Spark reads several times: materialised on the executors, many in a list.

Spark serialises each row of a checkpoint by itself, and reads all of them whenever it looks for some. A list of rows is
one row for it, which costs little more than its bytes.
"""

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy
import pyarrow
from pyspark import StorageLevel
from pyspark.sql import functions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS, RUN, END = "backpressure_rows", "backpressure_run", "backpressure_end"
"""Columns of what is materialised: a list of rows, the number of the execution of a task that made it, and, behind the
last list of an execution, what it says of all its rows."""
MATERIALISED = StorageLevel.DISK_ONLY
MOST_ROWS, MOST_BYTES = 1_000, 2**20
"""Of a list; a row alone may be larger."""


def declare(fields: Iterable[tuple[str, str]]) -> str:
    """Return the schema of lists of rows with these fields, of which each has a name and a type, as SQL has it."""
    return f"{ROWS} array<struct<{', '.join(f'{name}: {type_}' for name, type_ in fields)}>>, {RUN} long, {END} string"


def pack(
    batches: Iterable[pyarrow.RecordBatch], schema: pyarrow.Schema, describe: Callable[[], str]
) -> Iterator[pyarrow.RecordBatch]:
    """Yield the rows of batches, which have this schema, in lists; behind them what ``describe`` says of all rows."""
    run, texts = pyarrow.scalar(secrets.randbits(62), pyarrow.int64()), pyarrow.string()
    names = [ROWS, RUN, END]
    for batch in batches:
        if batch.num_rows:
            rows = _make_lists(batch)
            more = [pyarrow.repeat(run, len(rows)), pyarrow.nulls(len(rows), texts)]
            yield pyarrow.record_batch([rows, *more], names=names)
    nothing = pyarrow.nulls(1, pyarrow.list_(pyarrow.struct(list(schema))))
    end = [nothing, pyarrow.repeat(run, 1), pyarrow.repeat(pyarrow.scalar(describe(), texts), 1)]
    yield pyarrow.record_batch(end, names=names)


def materialise(packed: "DataFrame") -> tuple[list[str], "DataFrame"]:
    """Keep what :func:`pack` made; return what its tasks said, and the rows.

    A lost block fails the job: Spark does not read the source a second time for it.
    """
    kept = packed.localCheckpoint(eager=True, storageLevel=MATERIALISED)
    ends = kept.where(functions.col(END).isNotNull()).select(RUN, END).collect()
    return [row[END] for row in ends], select_counted(kept, [row[RUN] for row in ends])


def select_counted(kept: "DataFrame", runs: Sequence[int]) -> "DataFrame":
    """Return the rows, each of which must be of a run that was counted.

    Where a task ran twice, its blocks may be of either run: a row of another one fails the job.
    """
    other = functions.raise_error(functions.lit("A task ran twice, and its rows are not those that were counted."))
    # Spark generates no code for the values of an array: all ranges have the same code, which is compiled once.
    counted = functions.array(*map(functions.lit, runs)).cast("array<bigint>")
    known = functions.when(functions.array_contains(counted, functions.col(RUN)), functions.lit(True)).otherwise(other)
    return kept.where(functions.col(END).isNull() & known).select(functions.inline(ROWS))


def _make_lists(batch: pyarrow.RecordBatch) -> pyarrow.Array:
    """Return the rows of a batch in as many lists as keep to the limits."""
    count = batch.num_rows
    each = max(1, min(MOST_ROWS, count * MOST_BYTES // max(batch.nbytes, 1)))
    ends = numpy.array([*range(0, count, each), count], "i4")
    rows = batch.to_struct_array()
    layout = [None, pyarrow.py_buffer(ends)]
    return pyarrow.Array.from_buffers(pyarrow.list_(rows.type), len(ends) - 1, layout, children=[rows])
