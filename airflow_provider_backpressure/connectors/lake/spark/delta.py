"""Delta: the token of a note is an app transaction. Delta skips a commit whose token the table has already."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import BinaryType, DataType, StringType, StructType, TimestampType

from airflow_provider_backpressure.connectors.lake.markers import FOLDER
from airflow_provider_backpressure.connectors.lake.spark.commit_notes import CHAIN, KEY, Kind, LogState, Note
from airflow_provider_backpressure.connectors.lake.spark.connect_or_classic_session import (
    SPARK_ERRORS,
    clone_session,
    get_session_in_utc,
)
from airflow_provider_backpressure.connectors.lake.spark.table import MakeStatement, SparkTable, first_line
from airflow_provider_backpressure.exceptions import RESTART, SinkRefused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

ATTEMPT, FENCE = 1, 2
"""Versions of a token's app transaction: a fence is newer than every attempt, so it also stops one that is running."""
RETENTION = "delta.setTransactionRetentionDuration"
_SETTINGS = (
    "spark.databricks.delta.write.txnAppId",
    "spark.databricks.delta.write.txnVersion",
    "spark.databricks.delta.commitInfo.userMetadata",
)
LISTING, LISTING_TASKS = "spark.sql.sources.parallelPartitionDiscovery.parallelism", 32
"""Setting of a session, and its value where a table's folders are listed."""
FIRST = 4
"""Commits that are asked for at first: those of one plan, roughly."""
MARGIN = 8
"""Commits that may come while the log is read, before it is read once more."""
_OURS = f'{{"{KEY}"'
_REPLACED = ("REPLACE TABLE", "CLONE")
"""In the names of Delta's operations that give a table other rows as a whole: by itself, AS SELECT, or a copy's."""
_KEEPS_ROWS = ("OPTIMIZE", "SET TBLPROPERTIES", "UNSET TBLPROPERTIES", "VACUUM START", "VACUUM END")
"""Delta's operations that change neither rows nor columns."""


@dataclass(frozen=True, kw_only=True)
class _Commit:
    """A commit with a note, or one that restored the table, or replaced it."""

    version: int
    note: Note | None
    restored: int | None
    """Version whose rows the table has since; before every other one where it is not said."""
    foreign: bool
    """Whether others have changed rows or columns by it."""

    @classmethod
    def read(cls, row: Any) -> "_Commit":
        text = row["userMetadata"] or ""
        note = Note.from_json(text) if text.startswith(_OURS) else None
        restored = None
        if row["operation"] == "RESTORE":
            version = row["operationParameters"].get("version") or ""
            restored = int(version) if version.isdecimal() else -1
        elif any(name in row["operation"] for name in _REPLACED):
            restored = -1
        foreign = note is None and row["operation"] not in _KEEPS_ROWS
        return cls(version=row["version"], note=note, restored=restored, foreign=foreign)


class DeltaTable(SparkTable):
    """Implements :class:`SparkTable`."""

    format = "delta"
    overtaken = ("Concurrent", "MetadataChanged")
    """In the names of errors: another commit changed rows of the same files first, or a property that we keep."""

    def __init__(self, session: "SparkSession", name: str) -> None:
        """See :class:`SparkTable`."""
        super().__init__(session, name)
        self._seen, self._commits = -1, list[_Commit]()
        self._state = LogState()
        self._last_change, self._oldest = -1, 0
        self._partitions: Mapping[str, DataType] | None = None

    def check(self, there: StructType | None) -> None:
        """See :meth:`SparkTable.check`."""
        if there is None:
            check_format(self.session, self.format, self.name)
            return
        try:
            (detail,) = self.ask(f"DESCRIBE DETAIL {self.quoted}")
        except SPARK_ERRORS as error:
            raise SinkRefused(f"{self.name} is no Delta table for this cluster: {first_line(error)}") from None
        if detail["format"] != self.format:
            raise SinkRefused(f"{self.name} is a table of the format {detail['format']}, not {self.format}.")
        if RETENTION in detail["properties"]:
            raise SinkRefused(
                f"{self.name} forgets app transactions after {detail['properties'][RETENTION]}, and a late attempt "
                f"could then commit twice: remove the property {RETENTION}."
            )
        if binary := [name for name, type_ in self._find_partitions(detail).items() if type_ == BinaryType()]:
            raise SinkRefused(
                f"{self.name} is partitioned by {', '.join(binary)}, and Delta keeps bytes there as text, which "
                "changes some of them: partition it by another column."
            )

    def is_held_by_task_sink(self) -> bool:
        """See :meth:`SparkTable.is_held_by_task_sink`.

        No statement shows the log's app transactions, but plans lie beside it.
        """
        (detail,) = self.ask(f"DESCRIBE DETAIL {self.quoted}")
        try:
            found = self.session.read.format("binaryFile").load(f"{detail['location']}/{FOLDER}/plans").select("path")
            return bool(found.limit(1).collect())
        except SPARK_ERRORS as error:
            if "PATH_NOT_FOUND" in str(error):
                return False
            raise

    def list_lossy_partitions(self) -> tuple[str, ...]:
        """See :meth:`SparkTable.list_lossy_partitions`."""
        return self._list_partitions(StringType())

    def depends_on_zone(self) -> bool:
        """See :meth:`SparkTable.depends_on_zone`.

        Delta makes a text of a partition's time by the zone, and reads that back: in a zone with a summer time two
        times have one text each autumn.
        """
        return bool(self._list_partitions(TimestampType()))

    def _list_partitions(self, type_: DataType) -> tuple[str, ...]:
        """Return the columns of a type that the table is partitioned by, as they are when it is first asked."""
        if self._partitions is None:
            (detail,) = self.ask(f"DESCRIBE DETAIL {self.quoted}")
            self._partitions = self._find_partitions(detail)
        return tuple(name for name, found in self._partitions.items() if found == type_)

    def _find_partitions(self, detail: "Row") -> dict[str, DataType]:
        """Return the columns that the table is partitioned by. ``detail``: what ``DESCRIBE DETAIL`` says."""
        fields = self.session.table(self.quoted).schema.fields
        return {field.name: field.dataType for field in fields if field.name in detail["partitionColumns"]}

    def read_state(self) -> LogState:
        """See :meth:`SparkTable.read_state`. After a RESTORE the marks count that the restored version had.

        After CREATE OR REPLACE TABLE none does: the log continues, and no row of before is in the table.
        The table has the tokens of all others still, as far as its retention goes: what they say besides counts on.
        Properties are changed by commits too, so that nothing else is read while the table's version stays.
        """
        rows = self._read_unseen()
        commits = [_Commit.read(row) for row in rows]
        self._commits += [one for one in commits if one.note is not None or one.restored is not None]
        self._last_change = max([self._last_change, *(one.version for one in commits if one.foreign)])
        if rows:
            present = list(_list_present(self._commits))
            others = [one.note for one in self._commits if one.note is not None and one.note.kind is not Kind.MARK]
            marks = [note for note in present if note.kind is Kind.MARK]
            tokens = {note.token for note in present}
            self._state = LogState.read([*others, *marks], self.properties(), present=tokens)
            self._seen = rows[-1]["version"]
        return self._state

    def _read_unseen(self) -> list[Any]:
        """Return the commits that were not read yet, the oldest first.

        Each question is answered by the newest ones. So it is asked for more until they reach what was read before,
        however many commits come in between two questions.
        """
        most = FIRST
        while True:
            rows = sorted(self._history(most), key=lambda each: int(each["version"]))
            oldest, newest = rows[0]["version"], rows[-1]["version"]
            if newest < self._seen:
                self._seen, self._commits = -1, []
                self._last_change = -1
            if self._seen < 0:
                self._oldest = oldest
            if oldest <= self._seen + 1 or len(rows) < most:
                return [row for row in rows if row["version"] > self._seen]
            most = newest - self._seen + MARGIN

    def find_last_change(self) -> str:
        """See :meth:`SparkTable.find_last_change`."""
        state = self.state(with_losses=True)
        if self._last_change >= 0:
            return str(self._last_change)
        last, _, known = state.properties.get(CHAIN, "").partition("@")
        return last if known and self._oldest <= int(known) + 1 else f"before {self._seen}"

    def describe_chain(self) -> dict[str, str]:
        """See :meth:`SparkTable.describe_chain`."""
        return {CHAIN: f"{self.find_last_change()}@{self._seen}"}

    def has_kept_columns(self) -> bool:
        """See :meth:`SparkTable.has_kept_columns`. Its log has a commit of each change of columns."""
        return True

    def append(self, note: Note, rows: "DataFrame | None" = None) -> None:
        """See :meth:`SparkTable.append`. Only an append takes a token by its options, so an empty one is a fence."""
        version = FENCE if note.kind is Kind.FENCE else ATTEMPT
        with self._give_in_utc(note, rows) as frame:
            frame.writeTo(self.quoted).option("txnAppId", note.token).option("txnVersion", str(version)).option(
                "userMetadata", note.to_json()
            ).append()

    @contextmanager
    def _give_in_utc(self, note: Note, rows: "DataFrame | None") -> "Iterator[DataFrame]":
        """Give the rows, or none, in a session that may write them."""
        if rows is None or not self.depends_on_zone():
            yield self.empty() if rows is None else rows
            return
        view = f"{KEY}_{note.nonce:013x}"
        rows.createOrReplaceTempView(view)
        try:
            with get_session_in_utc(self.session) as session:
                yield session.table(view)
        finally:
            self.session.catalog.dropTempView(view)

    def note_settings(self, note: Note) -> dict[str, str]:
        """See :meth:`SparkTable.note_settings`."""
        return dict(zip(_SETTINGS, (note.token, str(ATTEMPT), note.to_json()), strict=True))

    def replace_rows(self, session: "SparkSession", state: LogState, make_statement: MakeStatement) -> None:
        """See :meth:`SparkTable.replace_rows`. Delta skips a statement whose token the table has."""
        session.sql(make_statement(self.quoted))

    def tidy(self) -> None:
        """See :meth:`SparkTable.tidy`. Files that no commit names go with a VACUUM."""

    def compact(self) -> None:
        """See :meth:`SparkTable.compact`. Its commit changes no data, and conflicts with none that adds rows."""
        zone = get_session_in_utc(self.session) if self.depends_on_zone() else nullcontext(self.session)
        with zone as session:
            session.sql(f"OPTIMIZE {self.quoted}")

    def remove_old_versions(self) -> None:
        """See :meth:`SparkTable.remove_old_versions`. Files go, by ``delta.deletedFileRetentionDuration``.

        What we need is in the log, which keeps its commits for a time of its own. A table's folders are listed by as
        many tasks as a setting of the session says, 10,000 unless set: minutes for a small table. No merge of this lane
        is under way meanwhile: where the table keeps files for no time at all, its new ones would go too.
        """
        with self._merging, clone_session(self.session) as session:
            session.conf.set(LISTING, str(LISTING_TASKS))
            session.sql(f"VACUUM {self.quoted}")

    def _history(self, most: int) -> list[Any]:
        return self.ask(f"DESCRIBE HISTORY {self.quoted} LIMIT {most}")


def _list_present(commits: Sequence[_Commit]) -> Iterator[Note]:
    """Give the notes of the commits that the newest version comes from, the newest first."""
    upto = commits[-1].version if commits else -1
    for commit in reversed(commits):
        if commit.version > upto:
            continue
        if commit.restored is not None:
            upto = commit.restored
        elif commit.note is not None:
            yield commit.note


def check_format(session: "SparkSession", format_: str, name: str) -> None:
    """Raise ``SinkRefused`` where the cluster has no connector for a format."""
    try:
        _ = session.read.format(format_).load("/backpressure/probe/of/the/connector").schema
    except SPARK_ERRORS as error:
        text = str(error)
        if any(sign in text for sign in ("DATA_SOURCE_NOT_FOUND", "ClassNotFound", "NoSuchMethod", "NoClassDef")):
            raise SinkRefused(
                f"{name} cannot be made: Spark {session.version} has no working connector for {format_}. Add its jar "
                "to the Spark Connect server, or to conf of a connection of type spark, or use a task-written sink; "
                f"{RESTART}."
            ) from None
