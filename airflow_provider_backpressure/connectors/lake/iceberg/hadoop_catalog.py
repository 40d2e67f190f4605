"""Iceberg's Hadoop catalog on a local disk: tables are folders, and a commit is the next number that nobody else took.

As Iceberg's own has it: ``<warehouse>/<namespace>/<table>/metadata/v<N>.metadata.json``, the highest N is the table.
Iceberg renames a file to the next number. A rename of POSIX overwrites, so here it is a link, which never does.
"""

import os
import re
import shutil
import uuid
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import TableRequirement, TableUpdate, update_table_metadata

from airflow_provider_backpressure.connectors.lake.storage import sync
from airflow_provider_backpressure.exceptions import InvalidDeclaration, SinkRefused

IMPLEMENTATION = f"{__name__}.HadoopCatalog"
"""The name by which pyiceberg loads it; pyiceberg has none of its own."""
HINT = "version-hint.text"
"""Where other readers begin to look; what counts is the highest number."""
_FORMAT: Final = 2
_VERSION = re.compile(r"v(\d+)\.metadata\.json")
_PACKED = re.compile(r"v\d+(\.gz\.metadata\.json|\.metadata\.json\.gz)")


def check_warehouse(warehouse: str) -> None:
    """Raise :class:`InvalidDeclaration` for a warehouse where a number can be taken by two at once."""
    if local(warehouse) is None:
        raise InvalidDeclaration(
            f"IcebergSink.catalog of type hadoop needs a warehouse that is a local folder, not {warehouse!r}: "
            "in a bucket or on HDFS its commits are not safe from here. Use a REST catalog, or one in a database."
        )


def local(warehouse: str) -> Path | None:
    """Return the folder of a warehouse; ``None`` for one that is on no local disk."""
    parts = urlsplit(warehouse)
    if parts.scheme in ("", "file") and parts.netloc in ("", "localhost") and parts.path.startswith("/"):
        return Path(parts.path)
    return None


class HadoopCatalog(NoopCatalog):
    """What :class:`..connectors.lake.iceberg.table.IcebergTable` needs of a catalog."""

    def __init__(self, name: str, **properties: str) -> None:
        super().__init__(name, **properties)
        found = local(properties.get("warehouse", ""))
        assert found is not None, "checked at the declaration"
        self._root = found

    def namespace_exists(self, namespace: Any) -> bool:
        """See pyiceberg's: a namespace is a folder."""
        return self._folder(namespace).is_dir()

    def create_namespace(self, namespace: Any, properties: Any = None) -> None:
        """See pyiceberg's."""
        self._folder(namespace).mkdir(parents=True, exist_ok=True)

    def create_table(
        self,
        identifier: Any,
        schema: Any,
        location: str | None = None,
        partition_spec: Any = UNPARTITIONED_PARTITION_SPEC,
        sort_order: Any = UNSORTED_SORT_ORDER,
        properties: Any = None,
    ) -> Table:
        """See pyiceberg's. A table lies where its name says."""
        folder = self._folder(identifier)
        metadata = new_table_metadata(
            location=f"file://{folder}",
            schema=self._convert_schema_if_needed(schema, _FORMAT),
            partition_spec=partition_spec,
            sort_order=sort_order,
            properties={"format-version": str(_FORMAT), **(properties or {})},
        )
        if not self._take(folder, 1, metadata):
            raise TableAlreadyExistsError(f"Table {identifier} already exists.")
        _write_hint(folder, 1)
        return self.load_table(identifier)

    def load_table(self, identifier: Any) -> Table:
        """See pyiceberg's."""
        folder = self._folder(identifier)
        number = _latest(folder)
        if not number:
            raise NoSuchTableError(f"There is no table {identifier}.")
        location = f"file://{_path(folder, number)}"
        io = self._load_file_io(self.properties, location)
        metadata = FromInputFile.table_metadata(io.new_input(location))
        return Table(
            identifier=Catalog.identifier_to_tuple(identifier),
            metadata=metadata,
            metadata_location=location,
            io=self._load_file_io({**metadata.properties, **self.properties}, location),
            catalog=self,
        )

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """See pyiceberg's. ``CommitFailedException`` where somebody else has taken the next number."""
        now = self.load_table(table.name())
        for requirement in requirements:
            requirement.validate(now.metadata)
        metadata = update_table_metadata(now.metadata, updates, metadata_location=now.metadata_location)
        folder, number = self._folder(table.name()), _number(now.metadata_location) + 1
        if not self._take(folder, number, metadata):
            raise CommitFailedException(f"Version {number} of {'.'.join(table.name())} was committed by another.")
        found: dict[str, Any] = {"metadata": metadata, "metadata-location": f"file://{_path(folder, number)}"}
        if not _path(folder, number - 1).exists():
            # Many commits followed since the read. They build on this one, or its number was free again by then.
            made = _snapshots(metadata) - _snapshots(now.metadata)
            if made & _snapshots(self.load_table(table.name()).metadata):
                return CommitTableResponse(**found)
            _path(folder, number).unlink(missing_ok=True)
            raise CommitFailedException(f"Version {number} of {'.'.join(table.name())} was long overtaken.")
        _write_hint(folder, number)
        self._delete_old_metadata(now.io, now.metadata, metadata)
        return CommitTableResponse(**found)

    def purge_table(self, identifier: Any) -> None:
        """See pyiceberg's."""
        shutil.rmtree(self._folder(identifier), ignore_errors=True)

    def close(self) -> None:
        """See pyiceberg's: nothing is open."""

    def _folder(self, identifier: Any) -> Path:
        return self._root.joinpath(*Catalog.identifier_to_tuple(identifier))

    @staticmethod
    def _take(folder: Path, number: int, metadata: TableMetadata) -> bool:
        """Put metadata in the place of a number, for good; ``False``, changing nothing, where it is taken."""
        path = _path(folder, number)
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f".{uuid.uuid4().hex}.metadata.json")
        fresh.write_text(metadata.model_dump_json())
        sync(fresh)
        try:
            os.link(fresh, path)
        except FileExistsError:
            return False
        finally:
            fresh.unlink()
        sync(path.parent)
        return True


def _snapshots(metadata: TableMetadata) -> set[int]:
    return {each.snapshot_id for each in metadata.snapshots}


def _path(folder: Path, number: int) -> Path:
    return folder / "metadata" / f"v{number}.metadata.json"


def _number(location: str) -> int:
    match = _VERSION.fullmatch(location.rpartition("/")[2])
    assert match is not None, location
    return int(match[1])


def _latest(folder: Path) -> int:
    """Return the highest number, 0 where there is none; ``SinkRefused`` for metadata that another writer has packed."""
    try:
        names = os.listdir(folder / "metadata")
    except (FileNotFoundError, NotADirectoryError):
        return 0
    if any(_PACKED.fullmatch(name) for name in names):
        raise SinkRefused(f"{folder} has compressed metadata: set write.metadata.compression-codec to none.")
    return max((int(match[1]) for match in map(_VERSION.fullmatch, names) if match), default=0)


def _write_hint(folder: Path, number: int) -> None:
    hint = folder / "metadata" / HINT
    fresh = hint.with_name(f".{uuid.uuid4().hex}.hint")
    fresh.write_text(str(number))
    fresh.replace(hint)
    # What Hadoop's local file system has noted of the hint before, it would hold against this one.
    hint.with_name(f".{HINT}.crc").unlink(missing_ok=True)
