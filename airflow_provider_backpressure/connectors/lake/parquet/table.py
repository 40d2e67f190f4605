"""A folder of Parquet files: each slice is one file, and its footer is the slice's mark."""

import contextlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pyarrow
import pyarrow.parquet as pq
from pyarrow import fs

from airflow_provider_backpressure.connectors.lake.base_table import format_foreign_files
from airflow_provider_backpressure.connectors.lake.last_row_per_key import Settled
from airflow_provider_backpressure.connectors.lake.markers import FOLDER, Attempt, Holder, Mark, format_missing_table
from airflow_provider_backpressure.connectors.lake.parquet.atomic_writes_and_lock import Folder, open_folder
from airflow_provider_backpressure.connectors.lake.plan_and_mark_files import MARK, Notes, batches, footer, times_folder
from airflow_provider_backpressure.connectors.lake.storage import Place
from airflow_provider_backpressure.connectors.lake.visible_files import Content, ContentVersion
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.spark_messages import WriteSpec
from airflow_provider_backpressure.exceptions import SinkRefused, SinkUnavailable, strip_frames

PLAN = f"{FOLDER}/plan.json"
NAME = re.compile(r"part-(?P<plan>[0-9a-f]{32})-(?P<slice>\d+\.\d+)\.parquet")
"""A slice's file. Other writers begin names with ``part-`` too, as Sqoop does (``part-m-00000.parquet``)."""


def file_of(plan_id: str, slice_id: str) -> str:
    """Return the name of a slice's file: the same for every attempt, so that there can only be one."""
    return f"part-{plan_id}-{slice_id}.parquet"


class ParquetTable:
    """Implements :class:`..base_table.LakeTable`. Files appear whole under their name, or not at all."""

    merges = False
    file_bytes = None

    def __init__(self, *, path: str, endpoint: Endpoint) -> None:
        self._place = Place(path, endpoint)
        self._folder: Folder = open_folder(self._place, endpoint)
        self._known: dict[tuple[str, int, int], Mark] = {}
        self.name = path
        self.identity = f"parquet://{path if self._place.local else path.removeprefix('s3://')}"

    def schema(self) -> pyarrow.Schema | None:
        """See :meth:`..base_table.LakeTable.schema`: that of a file, since all are to be alike."""
        for info in self._visible():
            with self._place.input(info.base_name) as stream:
                return pq.ParquetFile(stream).schema_arrow
        return None

    def check(self, schema: pyarrow.Schema) -> None:
        """See :meth:`..base_table.LakeTable.check`: Parquet holds them all."""

    def to_stored_schema(self, schema: pyarrow.Schema) -> pyarrow.Schema:
        return schema

    def has_year_limit(self, mode: str) -> bool:
        return False

    def create(self, schema: pyarrow.Schema) -> None:
        """See :meth:`..base_table.LakeTable.create`: a folder comes with its first file."""
        self._folder.check_publishing()

    def add_columns(self, fields: Sequence[pyarrow.Field]) -> None:
        """See :meth:`..base_table.LakeTable.add_columns`: all files of a folder are to be alike."""
        names = ", ".join(field.name for field in fields)
        raise SinkRefused(
            f"{self.name} cannot be given the column {names}: its files have the columns they have. Leave it "
            "out with columns= on the source, or land the rows again in another table."
        )

    def holds_rows(self) -> bool:
        return any(footer(self._place, info.base_name).num_rows for info in self._visible()) or bool(self._foreign())

    def holder(self) -> Holder | None:
        found = self._place.read(PLAN)
        return Holder.from_json(found.decode()) if found else None

    def check_history(self) -> None:
        """See :meth:`..base_table.LakeTable.check_history`.

        A folder has none but the plan that it is held by.
        """
        if self.holder() is None:
            raise SinkRefused(format_missing_table(self.name))

    def begin(self, plan: Plan, *, clear: str | None) -> int:
        """See :meth:`..base_table.LakeTable.begin`. A writer of a file is refused meanwhile."""
        with self._folder.hold_fence():
            if plan.increment:
                self.check_history()
            before = self.holder()
            again = Holder.check_turn(before, plan)
            if clear is not None and not again:
                self._refuse_others(clear)
            epoch = before.epoch + 1 if before else 1
            self._move_fence(Holder.create(plan, epoch))
            if clear is not None:
                # Also by a plan that holds the folder already: its task may have been killed among these files.
                for mark in self.marks(clear).values():
                    self.drop(mark.files)
            return epoch

    def renew(self, plan_id: str) -> int | None:
        with self._folder.hold_fence():
            holder = self.holder()
            if holder is None or holder.plan_id != plan_id:
                return None
            self._move_fence(holder.with_epoch(holder.epoch + 1))
            return holder.epoch + 1

    def marks(self, plan_id: str, slice_ids: Sequence[str] | None = None) -> dict[str, Mark]:
        """See :meth:`..base_table.LakeTable.marks`. Each footer is read once."""
        if slice_ids is not None:
            names = [file_of(plan_id, each) for each in slice_ids]
            infos = [each for each in self._folder.infos(names) if each.type == fs.FileType.File]
        else:
            infos = [each for each in self._visible() if _plan_of(each.base_name) == plan_id]
        marks = (self._mark(info) for info in infos)
        return {mark.slice_id: mark for mark in marks if mark is not None}

    def count_committed(self, plan_id: str) -> int:
        """See :meth:`..base_table.LakeTable.count_committed`: a file under a slice's name is whole."""
        return sum(_plan_of(each.base_name) == plan_id for each in self._visible())

    def output(self, name: str) -> pyarrow.NativeFile:
        return self._folder.output(name)

    def commit(self, attempt: Attempt, mark: Mark, write: WriteSpec, settled: Settled | None = None) -> Mark:
        """See :meth:`..base_table.LakeTable.commit`.

        An attempt that the fence has passed finds its file gone.
        """
        (name,) = mark.files
        final = file_of(attempt.plan_id, attempt.slice_id)
        attempt.check(self.holder(), self.name)
        try:
            published = self._folder.publish(name, final)
        except FileNotFoundError as error:
            attempt.check(self.holder(), self.name)
            raise SinkUnavailable(
                f"The file {name} of {self.name} was deleted before it was committed."
            ) from strip_frames(error)
        if published:
            return replace(mark, files=(final,))
        found = self.marks(attempt.plan_id, [attempt.slice_id]).get(attempt.slice_id)
        if found is None:
            raise SinkUnavailable(f"The file {final} of {self.name} was there and has vanished.")
        return found

    def drop(self, files: Sequence[str]) -> None:
        for name in files:
            self._folder.drop(name)

    def notes(self) -> Notes:
        return Notes(self._place)

    def tidy(self, plan_id: str) -> None:
        self._folder.tidy(plan_id)
        self._place.remove(times_folder(plan_id))

    def prune(self, plan_ids: Sequence[str], *, below: int) -> int:
        """See :meth:`..base_table.LakeTable.prune`: marks are in the files of the rows."""
        return 0

    def discard(self, plan_id: str, slice_id: str) -> bool:
        with self._folder.hold_fence():
            holder = self.holder()
            if holder is None or not self.marks(plan_id, [slice_id]):
                return False
            holder.check_plan(plan_id, self.name)
            self._place.delete(file_of(plan_id, slice_id))
            return True

    def remove(self) -> None:
        self._place.remove()

    def traces(self) -> tuple[str, ...]:
        return (f"{self._place.path}/{FOLDER}",) if self._place.holds(FOLDER) else ()

    def erase(self) -> None:
        """See :meth:`..base_table.LakeTable.erase`. Marks in the files' own footers hinder nobody."""
        self._place.remove(FOLDER)

    def current(self, files: Sequence[str]) -> bool:
        """See :meth:`..base_table.LakeTable.current`: nobody rewrites the files of a folder."""
        return True

    def find_strangers(self, plan_id: str, *, alone: bool) -> list[str]:
        """See :meth:`..base_table.LakeTable.find_strangers`.

        Files of earlier plans are known by their names.
        """
        # In this order: a range may be committed meanwhile.
        plans = {info.base_name: _plan_of(info.base_name) for info in self._visible()}
        ours = {file_of(plan_id, slice_id) for slice_id in self.marks(plan_id)}
        strange = (name for name, plan in plans.items() if name not in ours and (alone or plan in (None, plan_id)))
        return sorted(name for name in strange if footer(self._place, name).num_rows) + self._foreign()

    def content(self) -> Content:
        """See :meth:`..base_table.LakeTable.content`. Of every plan: each file has its mark.

        A range that is repaired has a file of the same name, which is younger. ``SinkRefused`` where readers see rows
        in files of another place or ending.
        """
        if foreign := self._foreign():
            raise SinkRefused(
                f"{self.name} holds files that readers take for data too, in a folder below it or without the ending "
                f".parquet, such as {foreign[0]}: they are not read. Move them to another place."
            )
        marks, visible, ages = [], {}, {}
        for info in self._visible():
            visible[info.base_name] = (info.size, footer(self._place, info.base_name).num_rows)
            ages[info.base_name] = info.mtime_ns or 0
            marks.append(self._mark(info))
        return Content.from_files((mark for mark in marks if mark is not None), visible, ages=ages)

    def is_rearranged(self, since: ContentVersion) -> bool:
        """See :meth:`..base_table.LakeTable.is_rearranged`. A folder does not say what became of a file."""
        return False

    def read(self, files: Sequence[str] | None, columns: Sequence[str] | None = None) -> Iterator[pyarrow.RecordBatch]:
        """See :meth:`..base_table.LakeTable.read`. A file that is gone has no rows."""
        for name in [info.base_name for info in self._visible()] if files is None else files:
            with contextlib.suppress(FileNotFoundError):
                yield from batches(self._place.input(name), columns)

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        try:
            yield
        except (PermissionError, NotADirectoryError, IsADirectoryError) as error:
            raise SinkRefused(f"{self.name} cannot be used: {type(error).__name__}.") from strip_frames(error)
        except pyarrow.ArrowException as error:
            raise SinkRefused(f"{self.name} has a file or rows that Parquet does not take: {error}") from strip_frames(
                error
            )
        except OSError as error:
            raise SinkUnavailable(f"{self.name} does not answer: {error}") from strip_frames(error)

    def close(self) -> None:
        """See :meth:`..base_table.LakeTable.close`."""

    def _move_fence(self, holder: Holder) -> None:
        """Let a plan hold the table under its epoch. In this order: an attempt looks at the fence and then commits."""
        self._place.write(PLAN, holder.to_json().encode())
        self._folder.cut_off()

    def _visible(self) -> list[fs.FileInfo]:
        """Return what a plain reader takes for data."""
        return [
            info
            for info in self._place.names()
            if info.base_name.endswith(".parquet") and not _is_hidden(info.base_name)
        ]

    def _foreign(self) -> list[str]:
        """Return files that readers take for data too and that are not ours by their place or ending, as of Hive."""
        names = [name for name, size in self._place.walk() if size and not any(map(_is_hidden, name.split("/")))]
        return sorted(name for name in names if "/" in name or not name.endswith(".parquet"))

    def _refuse_others(self, plan_id: str) -> None:
        """Raise where rows would stay behind that are not of the plan that is to be cleared."""
        others = [each.base_name for each in self._visible() if _plan_of(each.base_name) != plan_id]
        others = [name for name in others if footer(self._place, name).num_rows] + self._foreign()
        if others:
            raise SinkRefused(format_foreign_files(self.name, plan_id, others))

    def _mark(self, info: fs.FileInfo) -> Mark | None:
        key = (info.base_name, info.mtime_ns or 0, info.size)
        if key not in self._known:
            text = (footer(self._place, info.base_name).metadata or {}).get(MARK)
            if text is None:
                return None
            self._known[key] = replace(Mark.from_json(text.decode()), files=(info.base_name,))
        return self._known[key]


def _is_hidden(name: str) -> bool:
    """Whether readers pass a file or folder of this name over."""
    return name.startswith(("_", "."))


def _plan_of(name: str) -> str | None:
    match = NAME.fullmatch(name)
    return match["plan"] if match else None
