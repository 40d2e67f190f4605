"""Files of an Iceberg table, and the columns in them."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow
from pyarrow import fs
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction

from airflow_provider_backpressure.exceptions import RangeFailed, SinkRefused


class Data:
    """The files under a table's folder, reached as the catalog says; names are relative to it."""

    def __init__(self, table: Table, folder: str = "data/") -> None:
        self._io = table.io
        self._root = _normalize_path(f"{table.location().rstrip('/')}/{folder}")

    def path(self, name: str) -> str:
        """Return a file's whole path."""
        return f"{self._root}{name}"

    def output(self, name: str) -> pyarrow.NativeFile:
        """Open a new file for writing."""
        return self._io.new_output(self.path(name)).create(overwrite=True)

    def input(self, name: str) -> pyarrow.NativeFile:
        """Open a file for reading; ``FileNotFoundError`` where it is not there."""
        return self._io.new_input(self.path(name)).open()

    def read(self, name: str) -> bytes | None:
        """Return what a small file holds; ``None`` where it is not there."""
        try:
            with self.input(name) as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        """Write a small file."""
        with self.output(name) as stream:
            stream.write(content)

    def delete(self, name: str) -> None:
        """Delete a file; nothing where it is not there."""
        try:
            self._io.delete(self.path(name))
        except FileNotFoundError:
            return

    def there(self) -> bool:
        """Whether there is such a folder."""
        found = self._folder()
        return found is not None and bool(found[0].get_file_info(found[1]).type == fs.FileType.Directory)

    def remove(self) -> None:
        """Delete the folder with all that is in it; nothing where it is not there."""
        found = self._folder()
        if found is not None:
            with suppress(FileNotFoundError):
                found[0].delete_dir(found[1])

    def _folder(self) -> tuple[fs.FileSystem, str] | None:
        """Return file system and path; ``None`` where the declaration reaches files otherwise than by Arrow."""
        if not isinstance(self._io, PyArrowFileIO):
            return None
        scheme, place, path = self._io.parse_location(self._root)
        return self._io.fs_by_scheme(scheme, place), path

    def names(self, folder: str = "") -> list[fs.FileInfo]:
        """Return nothing: a catalog's storage cannot be listed, and nothing here needs it."""
        return []


def active(table: Table, *, without_deletes: bool = False) -> dict[str, DataFile]:
    """Return every file that readers see, by path; on demand only those of which no row was deleted."""
    tasks = table.scan().plan_files()
    return {
        _normalize_path(task.file.file_path): task.file for task in tasks if not (without_deletes and task.delete_files)
    }


def _normalize_path(path: str) -> str:
    """Return a local path in one spelling: Hadoop writes ``file:/folder``, and a catalog may name the folder."""
    return re.sub(r"^(?:file:)?/+", "file:///", path)


def scan_rows(table: Table, columns: Sequence[str] | None = None) -> Iterator[pyarrow.RecordBatch]:
    """Yield every row that readers see, or these columns of it."""
    yield from table.scan(selected_fields=tuple(columns or ("*",))).to_arrow_batch_reader()


def list_names(table: Table) -> dict[str, list[str]]:
    """Return by what names readers find each column in files without ids of columns, as earlier versions wrote them."""
    mapping, schema = table.name_mapping(), table.schema()
    known = {field.field_id: list(field.names) for field in mapping} if mapping is not None else {}
    return {field.name: known.get(field.field_id, []) for field in schema.fields}


def rename_by_ids(batch: pyarrow.RecordBatch, ids: Mapping[str, int]) -> pyarrow.RecordBatch:
    """Return rows of a file with the columns that a table has by their ids, as readers take them; ``ids``: by name.

    Rows of a file without ids are returned as they are.
    """
    known = {(field.metadata or {}).get(_FIELD_ID): place for place, field in enumerate(batch.schema)}
    if set(known) <= {None}:
        return batch
    places = {name: known[key] for name, number in ids.items() if (key := str(number).encode()) in known}
    return pyarrow.RecordBatch.from_arrays([batch.column(place) for place in places.values()], names=list(places))


def put_ids(schema: pyarrow.Schema, table: Table) -> pyarrow.Schema:
    """Return the columns of a new file with the ids that the table has for them: readers find columns by their ids."""
    ids = list_ids(table.schema())
    fields = [
        field.with_metadata({_FIELD_ID: str(ids[field.name]).encode()}) if field.name in ids else field
        for field in schema
    ]
    return pyarrow.schema(fields)


def list_ids(schema: Schema) -> dict[str, int]:
    """Return the ids of a table's columns by name."""
    return {field.name: field.field_id for field in schema.fields}


def check_ids(file: pyarrow.Schema, schema: Schema, path: str) -> None:
    """Raise ``RangeFailed`` where a table's columns are others than when the file was written.

    A column of the same name that came since has another id: readers would find no values for it in the file.
    """
    ids = list_ids(schema)
    for field in file:
        found = (field.metadata or {}).get(_FIELD_ID)
        if found is not None and int(found) != ids.get(field.name):
            raise RangeFailed(
                f"The column {field.name} was dropped or renamed in the Iceberg table while {path} was written. "
                "The range is written again."
            )


_FIELD_ID = b"PARQUET:field_id"
"""Key of a column's id in its metadata."""


def remove(files: Sequence[DataFile]) -> Callable[[Transaction, dict[str, str]], None]:
    """Return what makes a snapshot without these files; without any it is like the one before."""

    def change(transaction: Transaction, about: dict[str, str]) -> None:
        update: Any = transaction.update_snapshot(snapshot_properties=about)
        if not files:
            with update.fast_append():
                return
        with update.overwrite() as snapshot:
            for file in files:
                snapshot.delete_data_file(file)

    return change


LAST_FORMAT = 2
"""Newest version of the table format that pyiceberg (0.12) writes."""
_LARGE = {pyarrow.large_string(): pyarrow.string(), pyarrow.large_binary(): pyarrow.binary()}


def to_stored_schema(schema: pyarrow.Schema) -> pyarrow.Schema:
    """Return a schema as Iceberg has it: its least integer has 32 bits."""
    fields = [field.with_type(pyarrow.int32()) if field.type == pyarrow.int16() else field for field in schema]
    return pyarrow.schema(fields)


def schema_of(table: Table, name: str) -> pyarrow.Schema:
    """Return a table's columns; ``SinkRefused`` for one that this package must not, or cannot, write into."""
    if not table.spec().is_unpartitioned():
        raise SinkRefused(f"{name} is partitioned by {table.spec()}: that is not supported.")
    check_format(table)
    return columns_of(table)


def check_format(table: Table) -> None:
    """Raise ``SinkRefused`` for a table that somebody has upgraded to a format that cannot be written here."""
    if table.format_version > LAST_FORMAT:
        raise SinkRefused(
            f"{'.'.join(table.name())} has format version {table.format_version}, and {LAST_FORMAT} is the newest that "
            "IcebergSink writes: name another table, or use SparkTableSink."
        )


def columns_of(table: Table) -> pyarrow.Schema:
    """Return a table's columns."""
    fields = [
        pyarrow.field(field.name, _LARGE.get(field.type, field.type), field.nullable)
        for field in table.schema().as_arrow()
    ]
    return pyarrow.schema(fields)
