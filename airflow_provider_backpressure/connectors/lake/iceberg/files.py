"""Files of an Iceberg table, and the snapshots that remove some."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pyarrow
from pyarrow import fs
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, Transaction


class Data:
    """The files under a table's folder, reached as the catalog says; names are relative to it."""

    def __init__(self, table: Table, folder: str = "data/") -> None:
        self._io = table.io
        self._root = f"{table.location().rstrip('/')}/{folder}"

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
    return {task.file.file_path: task.file for task in tasks if not (without_deletes and task.delete_files)}


def scan_rows(table: Table) -> Iterator[pyarrow.RecordBatch]:
    """Yield every row that readers see."""
    yield from table.scan().to_arrow_batch_reader()


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
