"""An Iceberg table: each slice is one snapshot, which brings files, mark and fence in one swap of the metadata.

The catalog refuses a commit whose branch is no longer at the snapshot that it was decided on. So each of our commits
makes a snapshot, that of a new plan and of an empty slice too; where another was faster, it is decided again.
"""

import json
import sys
from collections.abc import Iterator, Sequence
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

from airflow_provider_backpressure.connectors.lake.content import Content, ContentVersion
from airflow_provider_backpressure.connectors.lake.iceberg import files as iceberg_history
from airflow_provider_backpressure.connectors.lake.iceberg import merge as iceberg_merge
from airflow_provider_backpressure.connectors.lake.iceberg.catalog_properties import (
    IMPLEMENTATION,
    catalog_properties,
    place_of,
    to_pyiceberg_properties,
)
from airflow_provider_backpressure.connectors.lake.iceberg.files import Data, active, remove, scan_rows
from airflow_provider_backpressure.connectors.lake.iceberg.merge import (
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
from airflow_provider_backpressure.connectors.lake.last_write import Settled
from airflow_provider_backpressure.connectors.lake.markers import FOLDER, Attempt, Holder, Mark, format_missing_table
from airflow_provider_backpressure.connectors.lake.metadata_files import Notes, batches, marks_folder
from airflow_provider_backpressure.connectors.lake.table import FILE_BYTES, tries
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.messages import WriteSpec
from airflow_provider_backpressure.core.snapshot.offsets import LogWindow, find_start_positions, move_streams
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.exceptions import SinkRefused, SinkUnavailable, strip_frames

_ONCE = {"commit.retry.num-retries": "0"}
"""Set on a table in memory only: a commit that was overtaken must be decided again, not put on top of the other."""


class IcebergTable:
    """Implements :class:`..connectors.lake.table.LakeTable` for a table in a catalog."""

    merges = True
    file_bytes = FILE_BYTES

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
        self._notes: Notes | None = None

    def schema(self) -> pyarrow.Schema | None:
        table = self._find()
        return None if table is None else iceberg_history.schema_of(table, self.name)

    def check(self, schema: pyarrow.Schema) -> None:
        """See :meth:`..connectors.lake.table.LakeTable.check`.

        Iceberg holds them all, small integers as larger ones.
        """

    def to_stored_schema(self, schema: pyarrow.Schema) -> pyarrow.Schema:
        return iceberg_history.to_stored_schema(schema)

    def create(self, schema: pyarrow.Schema) -> None:
        """See :meth:`..connectors.lake.table.LakeTable.create`. The namespace too."""
        if self._find() is not None:
            return
        namespace, _, _ = self.name.rpartition(".")
        try:
            if not self._catalog.namespace_exists(namespace):
                self._catalog.create_namespace(namespace)
        except NamespaceAlreadyExistsError:
            pass
        try:
            self._catalog.create_table(self.name, self.to_stored_schema(schema), properties=iceberg_history.PROPERTIES)
        except TableAlreadyExistsError:
            return

    def holds_rows(self) -> bool:
        table = self._find()
        return table is not None and any(file.record_count for file in active(table).values())

    def holder(self) -> Holder | None:
        table = self._find()
        return None if table is None else read_holder(table)

    def check_history(self) -> None:
        self._check_history(self._find())

    def begin(self, plan: Plan, *, clear: str | None) -> int:
        """See :meth:`..connectors.lake.table.LakeTable.begin`.

        What is cleared goes in the snapshot that brings the fence.
        """
        for table in self._tries():
            if plan.increment:
                self._check_history(table)
            before = read_holder(table)
            Holder.check_turn(before, plan)
            holder = Holder.create(plan, before.epoch + 1 if before else 1, table=str(table.metadata.table_uuid))
            taken = Holder.has_taken(before, plan)
            removed = self._clear(table, None if taken else clear)
            streams = {} if taken else _place_streams(table, plan, self.name)
            properties = {PLAN: holder.to_json(), **streams}
            slices = _slices(table, SLICES)
            if slices["plan"] != plan.plan_id:
                # Not none: the plan before may be given the table again.
                properties |= {SLICES: _compact(plan.plan_id, _nonces(table, plan.plan_id)), BEFORE: json.dumps(slices)}
            about = {"backpressure.plan": plan.plan_id, "backpressure.epoch": str(holder.epoch)}
            if commit_change(table, properties, about, remove(removed)):
                return holder.epoch
        raise self._contention_error()

    def renew(self, plan_id: str) -> int | None:
        for table in self._tries():
            holder = read_holder(table)
            if holder is None or holder.plan_id != plan_id:
                return None
            self._check_history(table)
            epoch = holder.epoch + 1
            about = {"backpressure.plan": plan_id, "backpressure.epoch": str(epoch)}
            if commit_change(table, {PLAN: holder.with_epoch(epoch).to_json()}, about, remove([])):
                return epoch
        raise self._contention_error()

    def marks(self, plan_id: str, slice_ids: Sequence[str] | None = None) -> dict[str, Mark]:
        """See :meth:`..connectors.lake.table.LakeTable.marks`. A note counts where a property names its nonce."""
        table = self._find()
        if table is None:
            return {}
        nonces = _nonces(table, plan_id)
        wanted = nonces if slice_ids is None else [each for each in slice_ids if each in nonces]
        return {each: self._read_notes(table).mark(plan_id, each, nonces[each]) for each in wanted}

    def count_committed(self, plan_id: str) -> int:
        table = self._find()
        return 0 if table is None else len(_nonces(table, plan_id))

    def output(self, name: str) -> pyarrow.NativeFile:
        """See :meth:`..connectors.lake.table.LakeTable.output`: what no snapshot names, nobody sees."""
        return self._load_data().output(name)

    def commit(self, attempt: Attempt, mark: Mark, write: WriteSpec, settled: Settled | None = None) -> Mark:
        data, merges = self._load_data(), write.mode == "upsert" and mark.rows > 0
        for table in self._tries():
            notes, nonces = self._read_notes(table), _nonces(table, attempt.plan_id)
            nonce = nonces.get(attempt.slice_id)
            stands = notes.mark(attempt.plan_id, attempt.slice_id, nonce) if nonce else None
            if stands is None:
                attempt.check(read_holder(table), self.name)
                self._check_history(table)
                notes.write_mark(mark)
                properties = _move_streams(table, attempt, self.name)
                properties[SLICES] = _compact(attempt.plan_id, {**nonces, attempt.slice_id: mark.nonce})
                change = (
                    iceberg_merge.merge(table, data, mark, write, settled)
                    if merges
                    else append_files(data, mark, self.name)
                )
                if not commit_change(table, properties, describe_mark(mark), change):
                    continue
                if settled is not None and not settled.is_every_row_live:
                    self.drop(mark.files)
                stands = mark
            if stands.nonce != attempt.nonce:
                notes.drop_mark(mark)
            return stands
        raise self._contention_error()

    def drop(self, files: Sequence[str]) -> None:
        if files:
            data = self._load_data()
            for name in files:
                data.delete(name)

    def tidy(self, plan_id: str) -> None:
        """See :meth:`..connectors.lake.table.LakeTable.tidy`.

        Iceberg's own removal of orphan files does it, and does it best.
        """

    def prune(self, plan_ids: Sequence[str], *, below: int) -> int:
        """See :meth:`..connectors.lake.table.LakeTable.prune`. They are not counted: the storage is not listed."""
        for each in plan_ids:
            Data(self._load(), folder=f"{marks_folder(each)}/").remove()
        return 0

    def discard(self, plan_id: str, slice_id: str) -> bool:
        for table in self._tries():
            holder, nonces = read_holder(table), _nonces(table, plan_id)
            if holder is None or slice_id not in nonces:
                return False
            holder.check_plan(plan_id, self.name)
            self._check_history(table)
            mark, files = self._read_notes(table).mark(plan_id, slice_id, nonces[slice_id]), active(table)
            paths = [self._load_data().path(name) for name in mark.files] if mark.rows else []
            if not all(path in files for path in paths):
                raise SinkRefused(f"The rows of slice {slice_id} no longer lie in files of their own in {self.name}.")
            rest = {each: nonce for each, nonce in nonces.items() if each != slice_id}
            about = {"backpressure.discarded": slice_id, "backpressure.plan": plan_id}
            if commit_change(table, {SLICES: _compact(plan_id, rest)}, about, remove([files[path] for path in paths])):
                return True
        raise self._contention_error()

    def remove(self) -> None:
        """See :meth:`..connectors.lake.table.LakeTable.remove`.

        What dead attempts have left stays: the storage is not listed.
        """
        table = self._find()
        if table is None:
            return
        holder = read_holder(table)
        for mark in self.marks(holder.plan_id).values() if holder is not None else ():
            self._read_notes(table).drop_mark(mark)
        self._catalog.purge_table(self.name)

    def traces(self) -> tuple[str, ...]:
        table = self._find()
        if table is None:
            return ()
        kept = [f"the property {name} of {self.name}" for name in OURS if name in table.properties]
        notes = Data(table, folder=FOLDER)
        return (*kept, *([notes.path("")] if notes.there() else ()))

    def erase(self) -> None:
        """See :meth:`..connectors.lake.table.LakeTable.erase`.

        What snapshots say of the slices that they brought stays.
        """
        if self._find() is None:
            return
        for table in self._tries():
            if forget_properties(table):
                Data(table, folder=FOLDER).remove()
                self._notes = None
                return
        raise self._contention_error()

    def current(self, files: Sequence[str]) -> bool:
        data, found = self._load_data(), active(self._load(), without_deletes=True)
        return all(data.path(name) in found for name in files)

    def find_strangers(self, plan_id: str, *, alone: bool) -> list[str]:
        """See :meth:`..connectors.lake.table.LakeTable.find_strangers`.

        Files of earlier plans may have been compacted.
        """
        return self._strangers(self._load(), plan_id) if alone else []

    def content(self) -> Content:
        """See :meth:`..connectors.lake.table.LakeTable.content`.

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
        """See :meth:`..connectors.lake.table.LakeTable.is_rearranged`. Each snapshot says it by its operation."""
        table = self._load()
        return str(table.metadata.table_uuid) == since.table and iceberg_history.keeps_rows(table, since.number)

    def read(self, files: Sequence[str] | None) -> Iterator[pyarrow.RecordBatch]:
        """See :meth:`..connectors.lake.table.LakeTable.read`. A file that is gone has no rows."""
        if files is None:
            yield from scan_rows(self._load())
            return
        for name in files:
            try:
                stream = self._load_data().input(name)
            except FileNotFoundError:
                continue
            yield from batches(stream)

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

    def _find(self) -> Table | None:
        try:
            return self._load()
        except (NoSuchTableError, NoSuchNamespaceError):
            return None

    def _load(self) -> Table:
        table = self._catalog.load_table(self.name)
        table.metadata.properties.update(_ONCE)
        return table

    def _tries(self) -> Iterator[Table]:
        """Yield the table as it is now, again and again for as long as commits may contend."""
        for _ in tries():
            yield self._load()

    def _contention_error(self) -> SinkUnavailable:
        return SinkUnavailable(f"{self.name} is written by so many that no commit came through.")

    def _check_history(self, table: Table | None) -> None:
        """Also before each of our snapshots: once one is made on top, nothing says that those before it are gone."""
        holder = None if table is None else read_holder(table)
        if table is None or holder is None:
            raise SinkRefused(format_missing_table(self.name))
        holder.check_table(str(table.metadata.table_uuid), self.name)
        iceberg_history.check_unreverted(table, table.properties.get(LAST), self.name)

    def _load_data(self) -> Data:
        if self._data is None:
            self._data = Data(self._load())
        return self._data

    def _read_notes(self, table: Table) -> Notes:
        if self._notes is None:
            self._notes = Notes(Data(table, folder=""))
        return self._notes

    def _clear(self, table: Table, plan_id: str | None) -> list[Any]:
        """Return every file; ``SinkRefused`` where one holds rows that the plan did not write."""
        if plan_id is None:
            return []
        others = self._strangers(table, plan_id)
        if others:
            raise SinkRefused(
                f"{self.name} holds files that the closed plan {plan_id} did not write, such as {others[0]}: it cannot "
                "be cleared. Empty it manually."
            )
        return list(active(table).values())

    def _strangers(self, table: Table, plan_id: str) -> list[str]:
        data = self._load_data()
        written = {data.path(name) for mark in self.marks(plan_id).values() for name in mark.files}
        return sorted(path for path, file in active(table).items() if path not in written and file.record_count)


def _slices(table: Table, name: str) -> dict[str, Any]:
    return dict(json.loads(table.properties.get(name, '{"plan": "", "slices": {}}')))


def _place_streams(table: Table, plan: Plan, name: str) -> dict[str, str]:
    """Return what sets the streams of an ordered plan to where it begins."""
    window = LogWindow.from_window(plan.read.window)
    if not plan.write.ordered or window is None:
        return {}
    there = read_stream_positions(table)
    return {
        STREAMS: json.dumps({**there, **find_start_positions(window, there, target=name, increment=plan.increment)})
    }


def _move_streams(table: Table, attempt: Attempt, name: str) -> dict[str, str]:
    """Return what moves the streams of a range; ``RangeFailed`` where one is not where it begins."""
    return (
        {STREAMS: json.dumps(move_streams(read_stream_positions(table), attempt.moves, name))} if attempt.moves else {}
    )


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
