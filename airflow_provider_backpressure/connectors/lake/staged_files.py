"""Files that an attempt has written and not committed yet: a commit finds all of them, or it fails."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow

from airflow_provider_backpressure.connectors.lake.footers import batches
from airflow_provider_backpressure.connectors.lake.markers import Mark
from airflow_provider_backpressure.connectors.lake.tasks.parquet_files import cast
from airflow_provider_backpressure.core.error_codec import strip_frames
from airflow_provider_backpressure.exceptions import RangeFailed, SinkRefused


@contextmanager
def require_files(table: str) -> Iterator[None]:
    """Raise ``RangeFailed`` where a staged file is not there: the next attempt writes it again.

    No reader sees such a file and no log names it, so a clean-up of the table may remove it.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise RangeFailed(
            f"A file of {table} was deleted before it was committed: {error}. The range is written again. Let no "
            "vacuum and no removal of orphan files delete files that are younger than a range takes."
        ) from strip_frames(error)


@dataclass(kw_only=True)
class StagedRows:
    """The rows of an attempt's files, in the order in which they were written."""

    mark: Mark
    table: str
    """How sentences call the table."""
    open_file: Callable[[str], pyarrow.NativeFile]
    error: RangeFailed | SinkRefused | None = None
    """What ended the last :meth:`read`: a library that reads may raise an error of its own instead."""

    def read(self) -> Iterator[pyarrow.RecordBatch]:
        """Yield them all. ``RangeFailed`` where a file is gone, or where rows are not as many as were written."""
        self.error, rows = None, 0
        try:
            for name in self.mark.files:
                with require_files(self.table):
                    stream = self.open_file(name)
                for batch in batches(stream):
                    rows += batch.num_rows
                    yield batch
            if rows != self.mark.rows:
                raise RangeFailed(
                    f"The files of slice {self.mark.slice_id} hold {rows} rows before they are committed to "
                    f"{self.table}, and {self.mark.rows} were written. The range is written again."
                )
        except RangeFailed as error:
            self.error = error
            raise

    def read_as(self, schema: pyarrow.Schema) -> Iterator[pyarrow.RecordBatch]:
        """Yield them with the table's columns in the table's order, which libraries take by position."""
        for batch in self.read():
            missing = sorted(set(schema.names) - set(batch.schema.names))
            if missing:
                self.error = SinkRefused(
                    f"{self.table} has the column {missing[0]}, which the arriving rows do not have: drop it there, or "
                    "add it to the source and restart."
                )
                raise self.error
            yield cast(batch, schema)
