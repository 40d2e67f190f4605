"""Plan rows and marks as small files beside a table; each counts only where the table's own commit names it.

They are written before the commit, each under a name that no other execution uses, so they are there whenever a commit
is, however much of the table's history has been cleaned away.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Protocol

import pyarrow
import pyarrow.parquet as pq
from pyarrow import fs

from airflow_provider_backpressure.connectors.lake.markers import FOLDER, Holder, Mark
from airflow_provider_backpressure.connectors.lake.storage import Place
from airflow_provider_backpressure.exceptions import SinkUnavailable


class FileStore(Protocol):
    """Where small files lie: a :class:`..connectors.lake.storage.Place`, or what stands for one."""

    def read(self, name: str) -> bytes | None:
        """Return what a file holds; ``None`` where it is not there."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Put a file in its place."""
        ...

    def delete(self, name: str) -> None:
        """Delete a file; nothing where it is not there."""
        ...

    def names(self, folder: str = "") -> Sequence[fs.FileInfo]:
        """Return the files of a folder."""
        ...


class Notes:
    """The folder ``_backpressure`` of a table whose commits are entries of a log."""

    def __init__(self, place: FileStore) -> None:
        self._place = place
        self._marks: dict[str, Mark] = {}
        self._holders: dict[int, list[Holder]] = {}

    def write_holder(self, holder: Holder) -> None:
        """Write a plan's row for an epoch that it is about to take."""
        self._place.write(f"{FOLDER}/plans/{holder.epoch}-{holder.plan_id}.json", holder.to_json().encode())

    def holders(self, epoch: int) -> list[Holder]:
        """Return the rows of all plans that have tried to take an epoch."""
        if epoch not in self._holders:
            names = [info.base_name for info in self._place.names(f"{FOLDER}/plans")]
            texts = [self._place.read(f"{FOLDER}/plans/{name}") for name in names if name.startswith(f"{epoch}-")]
            self._holders[epoch] = [Holder.from_json(text.decode()) for text in texts if text is not None]
        return self._holders[epoch]

    def write_mark(self, mark: Mark) -> None:
        """Write the mark of what is about to be committed."""
        self._place.write(_name(mark.plan_id, mark.slice_id, mark.nonce), mark.to_json().encode())

    def mark(self, plan_id: str, slice_id: str, nonce: int) -> Mark:
        """Return the mark of an execution that was committed; read once, since it never changes.

        ``SinkUnavailable`` where it is not there: the slice has just been discarded, or somebody has deleted what is
        ours. Its rows are not to be written a second time for that.
        """
        name = _name(plan_id, slice_id, nonce)
        if name not in self._marks:
            text = self._place.read(name)
            if text is None:
                raise SinkUnavailable(f"Slice {slice_id} of plan {plan_id} is committed, but {name} is not there.")
            self._marks[name] = Mark.from_json(text.decode())
        return self._marks[name]

    def drop_mark(self, mark: Mark) -> None:
        """Delete a mark that was not committed, or is no longer."""
        self._place.delete(_name(mark.plan_id, mark.slice_id, mark.nonce))

    def drop_holders(self, plan_ids: Collection[str], *, below: int) -> None:
        """Delete the rows of these plans, for epochs below this one."""
        for name in [info.base_name for info in self._place.names(f"{FOLDER}/plans")]:
            epoch, _, plan = name.removesuffix(".json").partition("-")
            if plan in plan_ids and int(epoch) < below:
                self._place.delete(f"{FOLDER}/plans/{name}")

    def write_times(self, plan_id: str, slice_id: str, times: str) -> None:
        """Write down what the stages of a running attempt have done so far."""
        self._place.write(_times_name(plan_id, slice_id), times.encode())

    def times(self, plan_id: str, slice_id: str) -> str | None:
        """Return what was written down last; ``None`` where no attempt that runs has done so."""
        found = self._place.read(_times_name(plan_id, slice_id))
        return None if found is None else found.decode()

    def drop_times(self, plan_id: str, slice_id: str) -> None:
        """Delete it: the attempt reports them with its result."""
        self._place.delete(_times_name(plan_id, slice_id))

    def slices(self, plan_id: str) -> list[str]:
        """Return the slices of which there is a mark, whether it counts or not."""
        names = (info.base_name for info in self._place.names(marks_folder(plan_id)))
        return sorted({name.rpartition("-")[0] for name in names if name.endswith(".json")})


def marks_folder(plan_id: str) -> str:
    """Return the folder of a plan's marks."""
    return f"{FOLDER}/marks/{plan_id}"


def times_folder(plan_id: str) -> str:
    """Return the folder of what a plan's running attempts have written down."""
    return f"{FOLDER}/times/{plan_id}"


def _times_name(plan_id: str, slice_id: str) -> str:
    return f"{times_folder(plan_id)}/{slice_id}.json"


def _name(plan_id: str, slice_id: str, nonce: int) -> str:
    return f"{marks_folder(plan_id)}/{slice_id}-{nonce:013x}.json"


MARK = b"backpressure"
"""Key of a slice's mark in the footer of its (last) file."""
FOOTERS = 16
"""Footers that are read at once: of a table in a bucket each takes a round trip or two."""
READ_ROWS = 65_536
"""Rows that are read back at once."""


def footer(place: Place, name: str) -> pq.FileMetaData:
    """Return the footer of a file; nothing else of it is read."""
    with place.input(name) as stream:
        return pq.read_metadata(stream)


def batches(stream: pyarrow.NativeFile, columns: Sequence[str] | None = None) -> Iterator[pyarrow.RecordBatch]:
    """Yield the rows of a file, or these columns of them, one row group's at a time in memory, and close it."""
    with stream:
        # Spark's timestamps are INT96 by default; as nanoseconds they would end in 2262.
        file = pq.ParquetFile(stream, coerce_int96_timestamp_unit="us")
        yield from file.iter_batches(batch_size=READ_ROWS, columns=columns)


def complete_columns(
    batch: pyarrow.RecordBatch, schema: pyarrow.Schema, names: Mapping[str, Sequence[str]] | None = None
) -> pyarrow.RecordBatch:
    """Return rows of a file with its table's columns: one that may be NULL and was added since is NULL.

    ``names``: what a column was called in files of before.
    """
    there = set(batch.schema.names)
    if there.issuperset(schema.names):
        return batch
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    for field in schema:
        if field.name not in there:
            before = next((name for name in (names or {}).get(field.name, ()) if name in there), None)
            if before is not None:
                columns[field.name] = batch.column(before)
            elif field.nullable:
                columns[field.name] = pyarrow.nulls(batch.num_rows, field.type)
    return pyarrow.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
