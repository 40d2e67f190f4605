"""What Delta and Iceberg have in common: a commit is decided on one version, and again where another came."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import ClassVar, Generic, TypeVar

from airflow_provider_backpressure.connectors.lake.base_table import FILE_BYTES, format_foreign_files, tries
from airflow_provider_backpressure.connectors.lake.last_row_per_key import Settled
from airflow_provider_backpressure.connectors.lake.markers import Attempt, Holder, Mark, format_missing_table
from airflow_provider_backpressure.connectors.lake.plan_and_mark_files import Notes
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.spark_messages import WriteSpec
from airflow_provider_backpressure.core.snapshot.topic_offsets import LogWindow, find_start_positions, move_streams
from airflow_provider_backpressure.exceptions import SinkRefused, SinkUnavailable

V = TypeVar("V")
"""A table of the format's library, as it is at one version."""


class VersionedTable(ABC, Generic[V]):
    """Template of a :class:`..connectors.lake.base_table.LakeTable` whose log refuses a commit on an older version.

    Such a commit is decided again. So what was true of fence and marks when it was decided is true when it becomes
    visible. A format says how one version is read, and how one commit is added to it: ``False`` where the table has
    another version by now.
    """

    merges = True
    file_bytes: int | None = FILE_BYTES
    name: str
    MISSING: ClassVar[tuple[type[Exception], ...]]
    """What the library raises where there is no table."""

    @abstractmethod
    def drop(self, files: Sequence[str]) -> None:
        """Delete files that were written and not committed."""

    @abstractmethod
    def _load(self) -> V:
        """Return the table as it is now."""

    @abstractmethod
    def _id(self, table: V) -> str:
        """Return the table's own id: another one under its name has another."""

    @abstractmethod
    def _notes(self, table: V) -> Notes:
        """Return our files beside the table."""

    @abstractmethod
    def _holder(self, table: V) -> Holder | None:
        """Return the plan that holds the table."""

    @abstractmethod
    def _create_holder(self, table: V, plan: Plan) -> Holder:
        """Return the row of a plan that is to hold the table from this version on."""

    @abstractmethod
    def _nonces(self, table: V, plan_id: str, slice_ids: Collection[str] | None = None) -> dict[str, int]:
        """Return the executions that were committed, by slice: of these slices, or of all."""

    @abstractmethod
    def _rows(self, table: V) -> Mapping[str, int | None]:
        """Return the rows of each file that readers see, by its path; ``None`` where they are not known."""

    @abstractmethod
    def _positions(self, table: V, streams: Sequence[str]) -> dict[str, int]:
        """Return the positions of streams, these among them; unknown ones are left out."""

    @abstractmethod
    def _check_unreverted(self, table: V, holder: Holder) -> None:
        """Raise ``SinkRefused`` where what the plan committed was taken away by the table's own history."""

    @abstractmethod
    def _take(self, table: V, holder: Holder, starts: Mapping[str, int], *, clear: bool) -> bool:
        """Let a plan hold the table, set streams to ``starts``, and remove all files for ``clear``, in one commit."""

    @abstractmethod
    def _commit(
        self, table: V, attempt: Attempt, mark: Mark, merged: WriteSpec | None, settled: Settled | None
    ) -> bool:
        """Add files and mark in one commit. ``merged``: by what rows replace those with their key, where they do."""

    @abstractmethod
    def _discard(self, table: V, holder: Holder, mark: Mark, paths: Sequence[str]) -> bool:
        """Remove these files and the mark in one commit."""

    def _path(self, name: str) -> str:
        """Return the path of one of our files, as the table has it."""
        return name

    def _check_base(self, table: V) -> None:
        """Raise ``SinkRefused`` where no later commit would show that this version lacks one of our commits."""

    def _is_rewritten(self, settled: Settled | None) -> bool:
        """Whether a merge writes rows into files of its own, and those of the attempt are no longer needed."""
        return True

    def holds_rows(self) -> bool:
        table = self._find()
        return table is not None and any(rows != 0 for rows in self._rows(table).values())

    def holder(self) -> Holder | None:
        table = self._find()
        return None if table is None else self._holder(table)

    def check_history(self) -> None:
        self._check_history(self._find())

    def begin(self, plan: Plan, *, clear: str | None) -> int:
        for table in self._tries():
            if plan.increment:
                self._check_history(table)
            if taken := Holder.check_turn(self._holder(table), plan):
                clear = None
            if clear is not None and (others := self._strangers(table, clear)):
                raise SinkRefused(format_foreign_files(self.name, clear, others))
            starts = {} if taken else self._find_starts(table, plan)
            holder = self._create_holder(table, plan)
            if self._take(table, holder, starts, clear=clear is not None):
                return holder.epoch
        raise self._contention_error()

    def renew(self, plan_id: str) -> int | None:
        for table in self._tries():
            holder = self._holder(table)
            if holder is None or holder.plan_id != plan_id:
                return None
            self._check_base(table)
            if self._take(table, holder.with_epoch(holder.epoch + 1), {}, clear=False):
                return holder.epoch + 1
        raise self._contention_error()

    def marks(self, plan_id: str, slice_ids: Sequence[str] | None = None) -> dict[str, Mark]:
        """See :meth:`..connectors.lake.base_table.LakeTable.marks`. A note counts where the table names its nonce."""
        table = self._find()
        if table is None:
            return {}
        found = self._nonces(table, plan_id, slice_ids)
        return {each: self._notes(table).mark(plan_id, each, nonce) for each, nonce in found.items()}

    def count_committed(self, plan_id: str) -> int:
        table = self._find()
        return 0 if table is None else len(self._nonces(table, plan_id))

    def commit(self, attempt: Attempt, mark: Mark, write: WriteSpec, settled: Settled | None = None) -> Mark:
        merged = write if write.mode == "upsert" and mark.rows > 0 else None
        for table in self._tries():
            notes, plan_id, slice_id = self._notes(table), attempt.plan_id, attempt.slice_id
            nonce = self._nonces(table, plan_id, [slice_id]).get(slice_id)
            valid = None if nonce is None else notes.mark(plan_id, slice_id, nonce)
            if valid is None:
                attempt.check(self._holder(table), self.name)
                self._check_base(table)
                notes.write_mark(mark)
                if not self._commit(table, attempt, mark, merged, settled):
                    continue
                valid = mark
            if valid.nonce != attempt.nonce:
                notes.drop_mark(mark)
            elif merged is not None and self._is_rewritten(settled):
                self.drop(mark.files)
            return valid
        raise self._contention_error()

    def discard(self, plan_id: str, slice_id: str) -> bool:
        for table in self._tries():
            holder, nonce = self._holder(table), self._nonces(table, plan_id, [slice_id]).get(slice_id)
            if holder is None or nonce is None:
                return False
            holder.check_plan(plan_id, self.name)
            self._check_base(table)
            mark, visible = self._notes(table).mark(plan_id, slice_id, nonce), self._rows(table)
            paths = [self._path(name) for name in mark.files] if mark.rows else []
            if not all(path in visible for path in paths):
                raise SinkRefused(f"The rows of slice {slice_id} no longer lie in files of their own in {self.name}.")
            if self._discard(table, holder, mark, paths):
                return True
        raise self._contention_error()

    def find_strangers(self, plan_id: str, *, alone: bool) -> list[str]:
        # Files of earlier plans may have been compacted.
        return self._strangers(self._load(), plan_id) if alone else []

    def _find(self) -> V | None:
        with contextlib.suppress(*self.MISSING):
            return self._load()
        return None

    def _tries(self) -> Iterator[V]:
        """Yield the table as it is now, again and again for as long as commits may contend."""
        for _ in tries():
            yield self._load()

    def _contention_error(self) -> SinkUnavailable:
        return SinkUnavailable(f"{self.name} is written by so many that no commit came through.")

    def _check_history(self, table: V | None) -> None:
        holder = None if table is None else self._holder(table)
        if table is None or holder is None:
            raise SinkRefused(format_missing_table(self.name))
        holder.check_table(self._id(table), self.name)
        self._check_unreverted(table, holder)

    def _strangers(self, table: V, plan_id: str) -> list[str]:
        """Return files with rows that a plan has not written."""
        # In this order: a range may be committed meanwhile.
        visible = self._rows(table)
        written = {self._path(name) for mark in self.marks(plan_id).values() for name in mark.files}
        return sorted(path for path, rows in visible.items() if path not in written and rows != 0)

    def _find_starts(self, table: V, plan: Plan) -> dict[str, int]:
        """Return where the streams of an ordered plan begin."""
        window = LogWindow.from_window(plan.read.window)
        if not plan.write.ordered or window is None:
            return {}
        there = self._positions(table, [window.stream(partition) for partition in window.start])
        return find_start_positions(window, there, target=self.name, increment=plan.increment)

    def _move_streams(self, table: V, attempt: Attempt) -> dict[str, int]:
        """Return the streams' positions after a range; ``RangeFailed`` where one of its own is not at its start."""
        there = self._positions(table, [step.stream for step in attempt.moves])
        return move_streams(there, attempt.moves, self.name) if attempt.moves else {}
