"""What the formats have in common: a table that takes a slice's rows and its mark in one step."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any, Protocol, cast

import pyarrow

from airflow_provider_backpressure.connectors.lake.last_row_per_key import Settled
from airflow_provider_backpressure.connectors.lake.markers import Attempt, Holder, Mark
from airflow_provider_backpressure.connectors.lake.plan_and_mark_files import Notes
from airflow_provider_backpressure.connectors.lake.visible_files import Content, ContentVersion
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.poll_policy import PollPolicy, SystemClock
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.spark_messages import WriteSpec
from airflow_provider_backpressure.exceptions import InvalidDeclaration

FILE_BYTES = 256 * 1024 * 1024
"""Size at which a file ends and the next one begins, where a slice may have several."""


class LakeTable(Protocol):
    """A table of files. Errors, once translated: ``SinkRefused``, ``SinkUnavailable``."""

    identity: str
    name: str
    """How sentences call it."""
    merges: bool
    """Whether rows can replace those with their key."""
    file_bytes: int | None
    """Size at which a file ends; ``None`` where a slice is one file."""

    def schema(self) -> pyarrow.Schema | None:
        """Return the table's columns; ``None`` where there is no table. ``SinkRefused`` for one of another making."""
        ...

    def check(self, schema: pyarrow.Schema) -> None:
        """Raise ``SinkRefused`` for what the format cannot hold, by the column's name."""
        ...

    def to_stored_schema(self, schema: pyarrow.Schema) -> pyarrow.Schema:
        """Return the schema as the format's files have it; values stay what they are."""
        ...

    def has_year_limit(self, mode: str) -> bool:
        """Whether the format's library cannot write, or read again, dates and times outside of the years 1 to 9999."""
        ...

    def create(self, schema: pyarrow.Schema) -> None:
        """Create it where it is not there. Idempotent."""
        ...

    def add_columns(self, fields: Sequence[pyarrow.Field]) -> None:
        """Give a table that is there further columns, in which earlier rows are NULL, all of them in one step.

        ``SinkRefused`` for a format whose files have the columns they have.
        """
        ...

    def holds_rows(self) -> bool:
        """Whether readers see a row."""
        ...

    def holder(self) -> Holder | None:
        """Return the plan that holds the table."""
        ...

    def check_history(self) -> None:
        """Raise ``SinkRefused`` where what its plans committed is no longer part of the table by its own history.

        That is so for a table that was dropped, created again or set back to an older version: it has our marks, or
        those of a copy, and not the rows.
        """
        ...

    def begin(self, plan: Plan, *, clear: str | None) -> int:
        """Let a plan hold the table under a new epoch; remove in the same step what the plan ``clear`` wrote.

        A plan that follows another one is refused as :meth:`check_history` has it.
        An ordered plan's streams are set to where it begins:
        :func:`..core.snapshot.topic_offsets.find_start_positions`.
        """
        ...

    def renew(self, plan_id: str) -> int | None:
        """Mint a newer epoch for the plan that holds the table; ``None`` for another plan."""
        ...

    def marks(self, plan_id: str, slice_ids: Sequence[str] | None = None) -> dict[str, Mark]:
        """Return the marks of committed slices by slice id."""
        ...

    def count_committed(self, plan_id: str) -> int:
        """Count the committed slices, without reading their marks."""
        ...

    def output(self, name: str) -> pyarrow.NativeFile:
        """Open a file that no reader sees before it is committed."""
        ...

    def commit(self, attempt: Attempt, mark: Mark, write: WriteSpec, settled: Settled | None = None) -> Mark:
        """Make the mark's files and the mark itself visible in one step, and return the mark that is valid.

        ``settled``: what of the files' rows stays, where they are those of a log; then its streams move in the same
        step, and ``RangeFailed`` says that one is not where the attempt begins.

        That is another execution's, and nothing of this one becomes visible, where one was there before.
        A file that is gone by then is an error that a new attempt mends, never a file without rows.
        ``PlanSuperseded`` for a plan that no longer holds the table.
        """
        ...

    def notes(self) -> Notes:
        """Return the small files that we keep beside the table's own."""
        ...

    def drop(self, files: Sequence[str]) -> None:
        """Delete files that were written and not committed."""
        ...

    def tidy(self, plan_id: str) -> None:
        """Delete what dead attempts of a complete plan have left behind, and that no reader sees."""
        ...

    def prune(self, plan_ids: Sequence[str], *, below: int) -> int:
        """Delete our files about these plans, whose epochs are ``below`` this one; return how many marks went.

        No reader needs them: rows of a plan are those of the table's own log. Idempotent.
        """
        ...

    def discard(self, plan_id: str, slice_id: str) -> bool:
        """Remove a slice's rows and its mark in one step, so that it can be written again; ``False``: not there.

        ``PlanSuperseded`` for a plan that no longer holds the table, ``SinkRefused`` where the rows no longer lie in
        files of their own.
        """
        ...

    def remove(self) -> None:
        """Remove the table with its files; nothing where it is not there."""
        ...

    def traces(self) -> tuple[str, ...]:
        """Name what we keep beside the table's own files: the fence, and the marks."""
        ...

    def erase(self) -> None:
        """Remove it: no plan holds the table from then on. Its files and their rows stay. Idempotent."""
        ...

    def current(self, files: Sequence[str]) -> bool:
        """Whether readers see each of these files."""
        ...

    def find_strangers(self, plan_id: str, *, alone: bool) -> list[str]:
        """Return files with rows that readers see and that are not of this plan's marks; sorted.

        Not ``alone``: nor of an earlier plan; none where those cannot be distinguished from other writers' rows.
        """
        ...

    def content(self) -> Content:
        """Return every file with rows that readers see, and the version of all of them, at one moment."""
        ...

    def is_rearranged(self, since: ContentVersion) -> bool:
        """Whether all that was committed since a version has only moved rows into other files, as a compaction does.

        ``False`` where the table's history no longer goes back so far.
        """
        ...

    def read(self, files: Sequence[str] | None, columns: Sequence[str] | None = None) -> Iterator[pyarrow.RecordBatch]:
        """Yield the rows of these files, or of the whole table, of which ``columns`` may name those that are wanted.

        A column that was added since a file was written is NULL in its rows.
        """
        ...

    def translate_errors(self) -> AbstractContextManager[None]:
        """Raise the format's errors as ours."""
        ...

    def close(self) -> None:
        """Give connections back; idempotent."""
        ...


KINDS = {"parquet": "ParquetTable", "delta": "DeltaLakeTable", "iceberg": "IcebergTable"}
"""Class of each kind, in the module of the kind's name."""


def open_table(kind: str, address: str, endpoint: Endpoint) -> LakeTable:
    """Return the table at an address, which is JSON as :func:`address_of` makes it."""
    if kind not in KINDS:
        raise InvalidDeclaration(f"This version knows no {kind}.")
    module = import_module(f"airflow_provider_backpressure.connectors.lake.{kind}.table")
    make = cast("Callable[..., LakeTable]", getattr(module, KINDS[kind]))
    return make(endpoint=endpoint, **json.loads(address))


def address_of(**parts: Any) -> str:
    """Return what names a table wherever it is opened: no secrets."""
    return json.dumps(parts, sort_keys=True)


def query_of(address: str, files: Sequence[str] | None, **rest: Mapping[str, Any] | Sequence[Any] | None) -> str:
    """Return what selects rows of a table for a task: those of these files, or (``None``) all."""
    return json.dumps({"at": address, "files": None if files is None else list(files), **rest})


def format_foreign_files(name: str, plan_id: str, files: Sequence[str]) -> str:
    """Return the sentence about files that keep a table from being cleared of what a closed plan wrote."""
    return (
        f"{name} holds files that the closed plan {plan_id} did not write, such as {files[0]}: it cannot be cleared. "
        "Empty it manually."
    )


CONTENDED = PollPolicy(initial=0.02, factor=2.0, maximum=2.0, jitter=True)
COMMIT_SECONDS = 300.0
"""Longest; ranges in flight are few, and each commit of another is a step ahead."""


def tries() -> Iterator[int]:
    """Yield the number of each try to commit, for as long as others may be faster."""
    return CONTENDED.tries(timeout=COMMIT_SECONDS, clock=SystemClock())
