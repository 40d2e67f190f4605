"""An Iceberg table: each slice is one snapshot, which brings files, mark and fence in one swap of the metadata.

The catalog refuses a commit whose branch is no longer at the snapshot that it was decided on. So each of our commits
makes a snapshot, that of a new plan and of an empty slice too; where another was faster, it is decided again.
"""

import json
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    RESTError,
    TableAlreadyExistsError,
)
from pyiceberg.table import Table

from airflow_provider_backpressure.connectors.lake.iceberg import data_files, snapshot_history
from airflow_provider_backpressure.connectors.lake.iceberg import upsert as iceberg_merge
from airflow_provider_backpressure.connectors.lake.iceberg.catalog_properties import (
    IMPLEMENTATION,
    catalog_properties,
    place_of,
    to_pyiceberg_properties,
)
from airflow_provider_backpressure.connectors.lake.iceberg.data_files import Data, active, remove, scan_rows
from airflow_provider_backpressure.connectors.lake.iceberg.upsert import (
    BEFORE,
    LAST,
    OURS,
    PLAN,
    SLICES,
    STREAMS,
    append_files,
    commit_change,
    describe_mark,
    forget_properties,
    read_holder,
    read_stream_positions,
)
from airflow_provider_backpressure.connectors.lake.last_row_per_key import Settled
from airflow_provider_backpressure.connectors.lake.markers import FOLDER, Attempt, Holder, Mark
from airflow_provider_backpressure.connectors.lake.plan_and_mark_files import (
    Notes,
    batches,
    complete_columns,
    marks_folder,
    times_folder,
)
from airflow_provider_backpressure.connectors.lake.versioned_base_table import VersionedTable
from airflow_provider_backpressure.connectors.lake.visible_files import Content, ContentVersion
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.spark_messages import WriteSpec
from airflow_provider_backpressure.exceptions import SinkRefused, SinkUnavailable, strip_frames

_ONCE = {"commit.retry.num-retries": "0"}
"""Set on a table in memory only: a commit that was overtaken must be decided again, not put on top of the other."""
PROPERTIES = {
    # Old metadata files go as new ones come: each commit writes one, with all snapshots and slices in it.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    # Otherwise every commit leaves a manifest of its own, and readers open them all.
    "commit.manifest-merge.enabled": "true",
}
"""Of a table that is created here."""


class IcebergTable(VersionedTable[Table]):
    """Implements :class:`..base_table.LakeTable` for a table in a catalog. A version is a snapshot."""

    MISSING = (NoSuchTableError, NoSuchNamespaceError)

    def __init__(self, *, table: str, catalog: dict[str, str], endpoint: Endpoint) -> None:
        self.name = table
        self.identity = f"iceberg://{place_of(catalog, endpoint)}/{table}"
        self._catalog_name = catalog.get("name", "default")
        declared = {key: value for key, value in catalog.items() if key != "name"}
        self._properties = {
            IMPLEMENTATION[0]: IMPLEMENTATION[1],
            **to_pyiceberg_properties(declared),
            **catalog_properties(endpoint),
        }
        self._opened: Catalog | None = None
        self._data: Data | None = None
        self._files: Notes | None = None

    def schema(self) -> pyarrow.Schema | None:
        table = self._find()
        return None if table is None else data_files.schema_of(table, self.name)

    def check(self, schema: pyarrow.Schema) -> None:
        """See :meth:`..base_table.LakeTable.check`.

        Iceberg holds them all, small integers as larger ones.
        """

    def to_stored_schema(self, schema: pyarrow.Schema) -> pyarrow.Schema:
        table, stored = self._find(), data_files.to_stored_schema(schema)
        return stored if table is None else data_files.put_ids(stored, table)

    def has_year_limit(self, mode: str) -> bool:
        """See :meth:`..base_table.LakeTable.has_year_limit`. pyiceberg makes Python's dates of bounds."""
        return True

    def create(self, schema: pyarrow.Schema) -> None:
        """See :meth:`..base_table.LakeTable.create`. The namespace too."""
        if self._find() is not None:
            return
        namespace, _, _ = self.name.rpartition(".")
        try:
            if not self._catalog.namespace_exists(namespace):
                self._catalog.create_namespace(namespace)
        except NamespaceAlreadyExistsError:
            pass
        try:
            self._catalog.create_table(self.name, data_files.to_stored_schema(schema), properties=PROPERTIES)
        except TableAlreadyExistsError:
            return

    def add_columns(self, fields: Sequence[pyarrow.Field]) -> None:
        """See :meth:`..base_table.LakeTable.add_columns`. Another schema of the table, and no snapshot."""
        with self._load().update_schema() as update:
            update.union_by_name(pyarrow.schema(fields))

    def output(self, name: str) -> pyarrow.NativeFile:
        """See :meth:`..base_table.LakeTable.output`: what no snapshot names, nobody sees."""
        return self._load_data().output(name)

    def drop(self, files: Sequence[str]) -> None:
        if files:
            data = self._load_data()
            for name in files:
                data.delete(name)

    def tidy(self, plan_id: str) -> None:
        """See :meth:`..base_table.LakeTable.tidy`.

        Iceberg's own removal of orphan files does it with data files, and does it best.
        """
        Data(self._load(), folder=f"{times_folder(plan_id)}/").remove()

    def notes(self) -> Notes:
        return self._files or self._notes(self._load())

    def prune(self, plan_ids: Sequence[str], *, below: int) -> int:
        """See :meth:`..base_table.LakeTable.prune`. They are not counted: the storage is not listed."""
        for each in plan_ids:
            Data(self._load(), folder=f"{marks_folder(each)}/").remove()
        return 0

    def remove(self) -> None:
        """See :meth:`..base_table.LakeTable.remove`.

        What dead attempts have left stays: the storage is not listed.
        """
        table = self._find()
        if table is None:
            return
        holder = read_holder(table)
        for mark in self.marks(holder.plan_id).values() if holder is not None else ():
            self._notes(table).drop_mark(mark)
        self._catalog.purge_table(self.name)

    def traces(self) -> tuple[str, ...]:
        table = self._find()
        if table is None:
            return ()
        kept = [f"the property {name} of {self.name}" for name in OURS if name in table.properties]
        notes = Data(table, folder=FOLDER)
        return (*kept, *([notes.path("")] if notes.there() else ()))

    def erase(self) -> None:
        """See :meth:`..base_table.LakeTable.erase`.

        What snapshots say of the slices that they brought stays.
        """
        if self._find() is None:
            return
        for table in self._tries():
            if forget_properties(table):
                Data(table, folder=FOLDER).remove()
                self._files = None
                return
        raise self._contention_error()

    def current(self, files: Sequence[str]) -> bool:
        data, found = self._load_data(), active(self._load(), without_deletes=True)
        return all(data.path(name) in found for name in files)

    def content(self) -> Content:
        """See :meth:`..base_table.LakeTable.content`.

        ``SinkRefused`` where rows are deleted beside their files.
        """
        table, data = self._load(), self._load_data()
        holder, found = read_holder(table), active(table)
        if len(active(table, without_deletes=True)) < len(found):
            raise SinkRefused(f"{self.name} has delete files: what its data files hold is not what readers see.")
        root = data.path("")
        strange = sorted(path for path in found if not path.startswith(root))
        if strange:
            raise SinkRefused(f"{self.name} has files in another place than its own, such as {strange[0]}.")
        visible = {
            path.removeprefix(root): (file.file_size_in_bytes, file.record_count) for path, file in found.items()
        }
        current = table.current_snapshot()
        return Content.from_files(
            self.marks(holder.plan_id).values() if holder else (),
            visible,
            table=str(table.metadata.table_uuid),
            number=current.snapshot_id if current is not None else 0,
        )

    def is_rearranged(self, since: ContentVersion) -> bool:
        """See :meth:`..base_table.LakeTable.is_rearranged`. Each snapshot says it by its operation."""
        table = self._load()
        return str(table.metadata.table_uuid) == since.table and snapshot_history.keeps_rows(table, since.number)

    def read(self, files: Sequence[str] | None, columns: Sequence[str] | None = None) -> Iterator[pyarrow.RecordBatch]:
        """See :meth:`..base_table.LakeTable.read`. A file that is gone has no rows."""
        table = self._load()
        if files is None:
            yield from scan_rows(table, columns)
            return
        schema, names = data_files.columns_of(table), data_files.list_names(table)
        ids = data_files.list_ids(table.schema())
        for name in files:
            try:
                stream = self._load_data().input(name)
            except FileNotFoundError:
                continue
            for batch in batches(stream):
                yield complete_columns(data_files.rename_by_ids(batch, ids), schema, names)

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        try:
            yield
        except NoSuchTableError as error:
            raise SinkRefused(f"The Iceberg table {self.name} is not there.") from strip_frames(error)
        except pyarrow.ArrowException as error:
            raise SinkRefused(f"{self.name} does not take these rows: {error}") from strip_frames(error)
        except (RESTError, OSError, CommitFailedException) as error:
            raise SinkUnavailable(f"{self.name} does not answer: {error}") from strip_frames(error)
        except _database_errors() as error:
            # The driver's own words: SQLAlchemy's have the statement with its values.
            cause = str(getattr(error, "orig", None) or type(error).__name__).partition("\n")[0]
            raise SinkUnavailable(f"The catalog of {self.identity} does not answer: {cause}.") from strip_frames(error)

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    @property
    def _catalog(self) -> Catalog:
        if self._opened is None:
            self._opened = load_catalog(self._catalog_name, **self._properties)
        return self._opened

    def _load(self) -> Table:
        table = self._catalog.load_table(self.name)
        table.metadata.properties.update(_ONCE)
        return table

    def _load_data(self) -> Data:
        if self._data is None:
            self._data = Data(self._load())
        return self._data

    def _id(self, table: Table) -> str:
        return str(table.metadata.table_uuid)

    def _notes(self, table: Table) -> Notes:
        if self._files is None:
            self._files = Notes(Data(table, folder=""))
        return self._files

    def _path(self, name: str) -> str:
        return self._load_data().path(name)

    def _rows(self, table: Table) -> dict[str, int | None]:
        return {path: file.record_count for path, file in active(table).items()}

    def _nonces(self, table: Table, plan_id: str, slice_ids: Collection[str] | None = None) -> dict[str, int]:
        nonces = _nonces(table, plan_id)
        return {each: nonce for each, nonce in nonces.items() if slice_ids is None or each in slice_ids}

    def _positions(self, table: Table, streams: Sequence[str]) -> dict[str, int]:
        return read_stream_positions(table)

    def _holder(self, table: Table) -> Holder | None:
        return read_holder(table)

    def _create_holder(self, table: Table, plan: Plan) -> Holder:
        before = read_holder(table)
        return Holder.create(plan, before.epoch + 1 if before else 1, table=self._id(table))

    def _check_unreverted(self, table: Table, holder: Holder) -> None:
        snapshot_history.check_unreverted(table, table.properties.get(LAST), self.name)

    def _check_base(self, table: Table) -> None:
        """Once a snapshot is made on top, nothing says that those before it are gone."""
        self._check_history(table)

    def _take(self, table: Table, holder: Holder, starts: Mapping[str, int], *, clear: bool) -> bool:
        properties = {PLAN: holder.to_json()}
        if starts:
            properties[STREAMS] = json.dumps({**read_stream_positions(table), **starts})
        slices = _slices(table, SLICES)
        if slices["plan"] != holder.plan_id:
            # Not none: the plan before may be given the table again.
            nonces = _nonces(table, holder.plan_id)
            properties |= {SLICES: _compact(holder.plan_id, nonces), BEFORE: json.dumps(slices)}
        about = {"backpressure.plan": holder.plan_id, "backpressure.epoch": str(holder.epoch)}
        return commit_change(table, properties, about, remove(list(active(table).values()) if clear else []))

    def _commit(
        self, table: Table, attempt: Attempt, mark: Mark, merged: WriteSpec | None, settled: Settled | None
    ) -> bool:
        nonces = {**_nonces(table, attempt.plan_id), attempt.slice_id: mark.nonce}
        properties = {SLICES: _compact(attempt.plan_id, nonces)}
        if attempt.moves:
            properties[STREAMS] = json.dumps(self._move_streams(table, attempt))
        data = self._load_data()
        change = (
            append_files(data, mark, self.name)
            if merged is None
            else iceberg_merge.merge(table, data, mark, merged, settled)
        )
        return commit_change(table, properties, describe_mark(mark), change)

    def _is_rewritten(self, settled: Settled | None) -> bool:
        return settled is not None and not settled.is_every_row_live

    def _discard(self, table: Table, holder: Holder, mark: Mark, paths: Sequence[str]) -> bool:
        nonces, files = _nonces(table, mark.plan_id), active(table)
        rest = {each: nonce for each, nonce in nonces.items() if each != mark.slice_id}
        about = {"backpressure.discarded": mark.slice_id, "backpressure.plan": mark.plan_id}
        removed = [files[path] for path in paths]
        return commit_change(table, {SLICES: _compact(mark.plan_id, rest)}, about, remove(removed))


def _slices(table: Table, name: str) -> dict[str, Any]:
    return dict(json.loads(table.properties.get(name, '{"plan": "", "slices": {}}')))


def _nonces(table: Table, plan_id: str) -> dict[str, int]:
    """Return the executions that were committed, by slice."""
    found = (_slices(table, name) for name in (SLICES, BEFORE))
    slices: dict[str, str] = next((one["slices"] for one in found if one["plan"] == plan_id), {})
    return {each: int(nonce, 16) for each, nonce in slices.items()}


def _compact(plan_id: str, nonces: dict[str, int]) -> str:
    slices = {each: f"{nonce:x}" for each, nonce in nonces.items()}
    return json.dumps({"plan": plan_id, "slices": slices}, separators=(",", ":"))


def _database_errors() -> tuple[type[Exception], ...]:
    """Return what a catalog in a database raises, where such a library is loaded at all."""
    module = sys.modules.get("sqlalchemy.exc")
    return (module.SQLAlchemyError,) if module else ()
