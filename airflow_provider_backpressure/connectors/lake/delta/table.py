"""A Delta table: each slice is one entry of its log, which holds files, mark and fence together."""

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyarrow
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, Field, Transaction
from deltalake.exceptions import (
    CommitFailedError,
    DeltaError,
    DeltaProtocolError,
    SchemaMismatchError,
    TableNotFoundError,
)
from deltalake.table import TableMerger

from airflow_provider_backpressure.connectors.lake.delta import features, version_history
from airflow_provider_backpressure.connectors.lake.delta import file_actions as delta_files
from airflow_provider_backpressure.connectors.lake.delta.int96_timestamps import check_mergeable
from airflow_provider_backpressure.connectors.lake.last_row_per_key import GONE, Settled
from airflow_provider_backpressure.connectors.lake.markers import FOLDER, Attempt, Holder, Mark, format_other_sink
from airflow_provider_backpressure.connectors.lake.plan_and_mark_files import (
    Notes,
    batches,
    complete_columns,
    footer,
    marks_folder,
    times_folder,
)
from airflow_provider_backpressure.connectors.lake.storage import Place
from airflow_provider_backpressure.connectors.lake.tasks.parquet_writer import StagedRows, check_arriving, require_files
from airflow_provider_backpressure.connectors.lake.versioned_base_table import VersionedTable
from airflow_provider_backpressure.connectors.lake.visible_files import Content, ContentVersion
from airflow_provider_backpressure.core.config import Mode
from airflow_provider_backpressure.core.endpoints import REGION, S3_ADDRESS, Endpoint
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.spark_messages import WriteSpec
from airflow_provider_backpressure.exceptions import SinkRefused, SinkUnavailable, strip_frames

FENCE = "backpressure"
"""App id of the fence, whose version is the epoch. Each of our commits writes it: no two can pass each other."""


_READING = ds.ParquetReadOptions(coerce_int96_timestamp_unit="us")
"""Spark writes timestamps as INT96 by default; as nanoseconds they would end in 2262."""


class DeltaLakeTable(VersionedTable[DeltaTable]):
    """Implements :class:`..base_table.LakeTable`. A version is one of the log, a commit its next entry."""

    MISSING = (TableNotFoundError,)

    def __init__(self, *, path: str, endpoint: Endpoint) -> None:
        self._place = Place(path, endpoint)
        self._files = Notes(self._place)
        self._options = None if self._place.local else _storage_options(endpoint)
        self.name = path
        self.identity = f"delta://{path if self._place.local else path.removeprefix('s3://')}"

    def schema(self) -> pyarrow.Schema | None:
        table = self._find()
        return None if table is None else features.schema_of(table, self.name)

    def check(self, schema: pyarrow.Schema) -> None:
        features.check_names(schema, self.name)

    def to_stored_schema(self, schema: pyarrow.Schema) -> pyarrow.Schema:
        return schema

    def has_year_limit(self, mode: str) -> bool:
        """See :meth:`..base_table.LakeTable.has_year_limit`. A merge writes bounds that no dataset reads."""
        return mode == Mode.UPSERT

    def create(self, schema: pyarrow.Schema) -> None:
        path, bounded = self._place.path, dict[str, str | None](features.select_bounded(schema))
        DeltaTable.create(path, schema, mode="ignore", configuration=bounded, storage_options=self._options)

    def add_columns(self, fields: Sequence[pyarrow.Field]) -> None:
        """See :meth:`..base_table.LakeTable.add_columns`. An entry of the log without files."""
        table = self._load()
        features.check_features(table, self.name)
        table.alter.add_columns([Field.from_arrow(each) for each in fields])

    def begin(self, plan: Plan, *, clear: str | None) -> int:
        table = self._find()
        features.list_implied_features(table)
        if plan.mode is Mode.UPSERT or clear:
            features.check_changeable(table, self.name)
        # A merge writes bounds by a setting of the table.
        features.keep_bounds_right(table if plan.mode is Mode.UPSERT else None, self.name)
        return super().begin(plan, clear=clear)

    def output(self, name: str) -> pyarrow.NativeFile:
        """See :meth:`..base_table.LakeTable.output`: what the log does not name, nobody sees."""
        return self._place.output(name)

    def drop(self, files: Sequence[str]) -> None:
        for name in files:
            self._place.delete(name)

    def tidy(self, plan_id: str) -> None:
        """See :meth:`..base_table.LakeTable.tidy`. What readers see stays, also where its note is gone."""
        table = self._find()
        if table is None:
            return
        kept = {name for mark in self.marks(plan_id).values() for name in mark.files} | delta_files.active(table).keys()
        names = (info.base_name for info in self._place.names())
        self.drop([name for name in names if name.startswith(f"{plan_id}-") and name not in kept])
        self._place.remove(times_folder(plan_id))

    def notes(self) -> Notes:
        return self._files

    def prune(self, plan_ids: Sequence[str], *, below: int) -> int:
        """See :meth:`..base_table.LakeTable.prune`. Transaction ids stay in the table's log."""
        number = sum(len(self._files.slices(each)) for each in plan_ids)
        for each in plan_ids:
            self._place.remove(marks_folder(each))
        self._files.drop_holders(plan_ids, below=below)
        return number

    def remove(self) -> None:
        self._place.remove()

    def traces(self) -> tuple[str, ...]:
        return (f"{self._place.path}/{FOLDER}",) if self._place.holds(FOLDER) else ()

    def erase(self) -> None:
        """See :meth:`..base_table.LakeTable.erase`. Marks in the table's log hinder nobody."""
        holder = self.holder()
        if holder is not None:
            self.tidy(holder.plan_id)
            self._open_fence()
        self._files = Notes(self._place)
        self._place.remove(FOLDER)

    def current(self, files: Sequence[str]) -> bool:
        active = delta_files.active(self._load())
        return all(name in active for name in files)

    def content(self) -> Content:
        """See :meth:`..base_table.LakeTable.content`.

        Where the log has no row count of a file, the file itself is read.
        """
        table = self._load()
        features.check_features(table, self.name)
        holder = self._holder(table)
        active = delta_files.active(table)
        visible = {
            name: (size, footer(self._place, name).num_rows if rows is None else rows)
            for name, (size, rows) in active.items()
        }
        marks = self.marks(holder.plan_id).values() if holder else ()
        return Content.from_files(marks, visible, table=str(table.metadata().id), number=table.version())

    def is_rearranged(self, since: ContentVersion) -> bool:
        """See :meth:`..base_table.LakeTable.is_rearranged`. Each entry of the log says it of its files."""
        table = self._load()
        same = str(table.metadata().id) == since.table
        return same and version_history.keeps_rows(self._place, since.number, table.version())

    def read(self, files: Sequence[str] | None, columns: Sequence[str] | None = None) -> Iterator[pyarrow.RecordBatch]:
        """See :meth:`..base_table.LakeTable.read`. A file that is gone has no rows.

        So has one that the log no longer names: a caller that names files knows how many rows they hold.
        """
        table = self._load()
        features.check_features(table, self.name)
        if files is None:
            yield from table.to_pyarrow_dataset(parquet_read_options=_READING).to_batches(columns=columns)
            return
        active, schema = delta_files.active(table), features.schema_of(table, self.name)
        for name in files:
            if name in active:
                with contextlib.suppress(FileNotFoundError):
                    yield from (complete_columns(batch, schema) for batch in batches(self._place.input(name)))

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        try:
            yield
        except (DeltaProtocolError, SchemaMismatchError, TableNotFoundError) as error:
            raise SinkRefused(f"{self.name} cannot be used: {error}") from strip_frames(error)
        except pyarrow.ArrowException as error:
            raise SinkRefused(f"{self.name} does not take these rows: {error}") from strip_frames(error)
        except (DeltaError, OSError) as error:
            raise SinkUnavailable(f"{self.name} does not answer: {error}") from strip_frames(error)

    def close(self) -> None:
        """See :meth:`..base_table.LakeTable.close`."""

    def _load(self) -> DeltaTable:
        return DeltaTable(self._place.path, storage_options=self._options)

    def _id(self, table: DeltaTable) -> str:
        return str(table.metadata().id)

    def _notes(self, table: DeltaTable) -> Notes:
        return self._files

    def _rows(self, table: DeltaTable) -> dict[str, int | None]:
        return {name: rows for name, (_, rows) in delta_files.active(table).items()}

    def _nonces(self, table: DeltaTable, plan_id: str, slice_ids: Collection[str] | None = None) -> dict[str, int]:
        wanted = self._files.slices(plan_id) if slice_ids is None else slice_ids
        nonces = {each: table.transaction_version(f"{FENCE}:{plan_id}:{each}") for each in wanted}
        return {each: nonce for each, nonce in nonces.items() if nonce}

    def _holder(self, table: DeltaTable) -> Holder | None:
        """Return the plan whose own version is that of the fence."""
        epoch = table.transaction_version(FENCE)
        holders = self._files.holders(epoch) if epoch else []
        return next((one for one in holders if table.transaction_version(f"{FENCE}:{one.plan_id}") == epoch), None)

    def _create_holder(self, table: DeltaTable, plan: Plan) -> Holder:
        if any(name.startswith(f"{FENCE}.") for name in table.metadata().configuration):
            raise SinkRefused(format_other_sink(self.name, "SparkTableSink"))
        epoch = (table.transaction_version(FENCE) or 0) + 1
        return Holder.create(plan, epoch, table=self._id(table), version=table.version() + 1)

    def _check_unreverted(self, table: DeltaTable, holder: Holder) -> None:
        if "version" in holder.about:
            version_history.check_unreverted(table, FENCE, holder.about["version"], self.name)

    def _take(self, table: DeltaTable, holder: Holder, starts: Mapping[str, int], *, clear: bool) -> bool:
        self._files.write_holder(holder)
        active = delta_files.active(table) if clear else {}
        entry = [Transaction(FENCE, holder.epoch), Transaction(f"{FENCE}:{holder.plan_id}", holder.epoch)]
        about = {"plan": holder.plan_id, "epoch": holder.epoch}
        return self._append(table, delta_files.removals(list(active), active), [*entry, *_streams(starts)], about)

    def _open_fence(self) -> None:
        """Move the fence to an epoch that no plan has: what a process remembers of the one before does not count."""
        for table in self._tries():
            epoch = (table.transaction_version(FENCE) or 0) + 1
            if self._append(table, (), [Transaction(FENCE, epoch)], {"epoch": epoch}):
                return
        raise self._contention_error()

    def _positions(self, table: DeltaTable, streams: Sequence[str]) -> dict[str, int]:
        found = {stream: table.transaction_version(_stream(stream)) for stream in streams}
        return {stream: at for stream, at in found.items() if at is not None}

    def _commit(
        self, table: DeltaTable, attempt: Attempt, mark: Mark, merged: WriteSpec | None, settled: Settled | None
    ) -> bool:
        features.check_features(table, self.name)
        entry = [
            Transaction(FENCE, attempt.epoch),
            _slice(attempt.plan_id, attempt.slice_id, attempt.nonce),
            *_streams(self._move_streams(table, attempt)),
        ]
        about = {"slice": attempt.slice_id, "plan": attempt.plan_id, "rows": mark.rows, "checksum": mark.checksum}
        if merged is None:
            with require_files(self.name):
                added = delta_files.additions(self._place, mark.files) if mark.rows else []
            return self._append(table, added, entry, about)
        check_mergeable(table, self._place)
        staged = StagedRows(mark=mark, table=self.name, open_file=self._place.input)
        merging = self._merge(table, staged, merged, settled, _properties(entry, about))
        version = table.version()
        try:
            merging.execute()
        except CommitFailedError:
            features.check_changeable(self._load(), self.name)
            return False
        except DeltaError:
            if staged.error is not None:
                raise staged.error from None
            raise
        # Tombstones of keys that are not there change nothing, and then the merge has written no entry.
        return table.version() > version or self._append(table, [], entry, about)

    def _discard(self, table: DeltaTable, holder: Holder, mark: Mark, paths: Sequence[str]) -> bool:
        removed = delta_files.removals(paths, delta_files.active(table))
        entry = [_slice(mark.plan_id, mark.slice_id, 0), Transaction(FENCE, holder.epoch)]
        done = self._append(table, removed, entry, {"discarded": mark.slice_id})
        if done:
            self._files.drop_mark(mark)
        return done

    def _append(
        self,
        table: DeltaTable,
        actions: Sequence[delta_files.Action],
        entry: list[Transaction],
        about: dict[str, object],
    ) -> bool:
        try:
            table.create_write_transaction(
                list(actions), "append", table.schema(), commit_properties=_properties(entry, about)
            )
        except CommitFailedError:
            return False
        return True

    def _merge(
        self,
        table: DeltaTable,
        staged: StagedRows,
        write: WriteSpec,
        settled: Settled | None,
        properties: CommitProperties,
    ) -> TableMerger:
        schema = pyarrow.schema(table.schema().to_arrow())
        check_arriving(self.name, schema.names, write)
        rows = staged.read_as(schema)
        if settled is not None:
            schema, rows = settled.with_deletes(schema, staged.read())
        merger = table.merge(
            pyarrow.RecordBatchReader.from_batches(schema, rows),
            " AND ".join(f"target.{_quote(name)} = source.{_quote(name)}" for name in write.key),
            source_alias="source",
            target_alias="target",
            commit_properties=properties,
            writer_properties=features.create_writer_properties(schema),
        )
        if settled is None:
            return merger.when_matched_update_all().when_not_matched_insert_all()
        gone = f"source.{GONE}"
        merger = merger.when_matched_delete(gone).when_matched_update_all(except_cols=[GONE])
        return merger.when_not_matched_insert_all(f"NOT {gone}", except_cols=[GONE])


def _slice(plan_id: str, slice_id: str, nonce: int) -> Transaction:
    return Transaction(f"{FENCE}:{plan_id}:{slice_id}", nonce)


def _stream(name: str) -> str:
    return f"{FENCE}:stream:{name}"


def _streams(positions: Mapping[str, int]) -> list[Transaction]:
    return [Transaction(_stream(name), at) for name, at in positions.items()]


def _properties(entry: list[Transaction], about: dict[str, object]) -> CommitProperties:
    """Return the properties of an entry that is written at the next version, or not at all."""
    return CommitProperties(custom_metadata={FENCE: about}, max_commit_retries=0, app_transactions=entry)


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _storage_options(endpoint: Endpoint) -> dict[str, str]:
    options: dict[str, str] = {}
    if endpoint.user:
        options |= {"AWS_ACCESS_KEY_ID": endpoint.user, "AWS_SECRET_ACCESS_KEY": endpoint.password}
    if region := endpoint.options.get(REGION):
        options["AWS_REGION"] = region
    if address := endpoint.options.get(S3_ADDRESS):
        options |= {"AWS_ENDPOINT_URL": address, "AWS_ALLOW_HTTP": str(address.startswith("http://")).lower()}
    return options
