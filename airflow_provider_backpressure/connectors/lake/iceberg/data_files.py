"""Files of an Iceberg table, and the columns in them."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow
from pyarrow import fs
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, Transaction

from airflow_provider_backpressure.exceptions import SinkRefused


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
    """Return by what names readers find each column in files that have no ids of columns."""
    mapping, schema = table.name_mapping(), table.schema()
    known = {field.field_id: list(field.names) for field in mapping} if mapping is not None else {}
    return {field.name: known.get(field.field_id, []) for field in schema.fields}


def rename_by_ids(batch: pyarrow.RecordBatch, ids: Mapping[str, int]) -> pyarrow.RecordBatch:
    """Return rows of a file with the columns that a table has by their ids, as readers take them; ``ids``: by name.

    Files of this product have no ids, and are returned as they are.
    """
    known = {(field.metadata or {}).get(_FIELD_ID): place for place, field in enumerate(batch.schema)}
    if set(known) <= {None}:
        return batch
    places = {name: known[key] for name, number in ids.items() if (key := str(number).encode()) in known}
    return pyarrow.RecordBatch.from_arrays([batch.column(place) for place in places.values()], names=list(places))


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


_LARGE = {pyarrow.large_string(): pyarrow.string(), pyarrow.large_binary(): pyarrow.binary()}


def to_stored_schema(schema: pyarrow.Schema) -> pyarrow.Schema:
    """Return a schema as Iceberg has it: its least integer has 32 bits."""
    fields = [field.with_type(pyarrow.int32()) if field.type == pyarrow.int16() else field for field in schema]
    return pyarrow.schema(fields)


def schema_of(table: Table, name: str) -> pyarrow.Schema:
    """Return a table's columns; ``SinkRefused`` for one that this package must not write into."""
    if not table.spec().is_unpartitioned():
        raise SinkRefused(f"{name} is partitioned by {table.spec()}: that is not supported.")
    return columns_of(table)


def columns_of(table: Table) -> pyarrow.Schema:
    """Return a table's columns."""
    fields = [
        pyarrow.field(field.name, _LARGE.get(field.type, field.type), field.nullable)
        for field in table.schema().as_arrow()
    ]
    return pyarrow.schema(fields)
