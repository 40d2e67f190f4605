"""A table of the cluster's catalog, through the connector that the cluster has for its format."""

import logging
import re
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, cast

from pyspark.errors import (
    AnalysisException,
    IllegalArgumentException,
    UnsupportedOperationException,
)
from pyspark.sql.types import DataType, ShortType, StructField, StructType

from airflow_provider_backpressure.connectors.lake.spark.commit_notes import KEY, Kind, LogState, Note
from airflow_provider_backpressure.connectors.lake.spark.connect_or_classic_session import (
    SPARK_ERRORS,
    TIME_ZONE,
    ask,
    clone_session,
)
from airflow_provider_backpressure.core.poll_policy import PollPolicy
from airflow_provider_backpressure.core.snapshot.spark_messages import Column
from airflow_provider_backpressure.exceptions import RESTART, SinkRefused, SinkUnavailable, strip_frames
from airflow_provider_backpressure.spark.column_types import carrier, declare_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

LOST_IN_PARTITIONS = ("", "__HIVE_DEFAULT_PARTITION__")
"""Texts that some formats keep as NULL in a column that a table is partitioned by."""
FORMATS = {"delta": "DeltaTable", "iceberg": "IcebergTable"}
"""Class of each format, in the module of the format's name."""
MISSING = (
    "TABLE_OR_VIEW_NOT_FOUND",
    "DELTA_TABLE_NOT_FOUND",
    "DELTA_MISSING",
    "SCHEMA_NOT_FOUND",
    "NoSuchTableException",
)
_DECLARED = "__CHAR_VARCHAR_TYPE_STRING"
"""Metadata of a column with the type that it was declared with, where Spark shows another one."""
_LOST = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "INVALID_HANDLE", "SESSION_", "Channel closed", "RETRIES_EXCEEDED")
_REFUSALS = (AnalysisException, IllegalArgumentException, UnsupportedOperationException)
_FIRST_LINE = 400
TRIES = 12
"""Times that a commit is tried where others come before it, beside the table's own retries."""
MakeStatement = Callable[[str], str]
"""Returns the statement for a target, which is the table or a branch of it."""
MakeMerge = Callable[[str, str], str]
"""Returns the statement for a target, and the view that holds the rows."""


class SparkTable(ABC):
    """One table. The log of it is read again at each question, from where it was read before."""

    format: str
    """As ``USING`` names it."""
    overtaken: ClassVar[tuple[str, ...]]
    """Parts of the errors of a statement that replaces rows where another commit came first."""

    def __init__(self, session: "SparkSession", name: str) -> None:
        """Read nothing yet. ``name``: ``catalog.schema.table``."""
        self.session = session
        self.name = name
        self._reading = threading.Lock()
        self._merging = threading.Lock()

    @property
    def quoted(self) -> str:
        """The name as SQL takes it."""
        return ".".join(f"`{part}`" for part in self.name.split("."))

    def run(self, statement: str) -> None:
        """Run a statement that changes something, by one request: what it returns is not fetched."""
        self.session.sql(statement)

    def ask(self, query: str) -> list[Any]:
        """Return the rows of a query, or of a command that changes nothing."""
        return ask(self.session, query)

    def schema(self) -> StructType | None:
        """Return the columns; ``None`` where there is no table."""
        try:
            return self.session.table(self.quoted).schema
        except SPARK_ERRORS as error:
            if is_missing(error):
                return None
            raise

    def create(self, columns: Sequence[Column], *, follows: bool = False) -> None:
        """Create it where it is not there. Idempotent. ``follows``: whether changes of a log are merged into it."""
        properties = {**self.creation, **(self.creation_to_follow if follows else {})}
        pairs = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
        options = f" TBLPROPERTIES ({pairs})" if pairs else ""
        fields = ", ".join(f"`{each.name}` {declare_type(carrier(each.type)[1])}" for each in columns)
        self.run(f"CREATE TABLE IF NOT EXISTS {self.quoted} ({fields}) USING {self.format}{options}")

    creation: ClassVar[Mapping[str, str]] = {}
    """Table properties that it is created with."""
    creation_to_follow: ClassVar[Mapping[str, str]] = {}
    """What is added to them where many small changes are merged: deletes are written beside the files."""

    def takes(self, there: DataType, arriving: DataType) -> bool:
        """Whether a column of one type holds every value of another."""
        return there == arriving

    def list_lossy_partitions(self) -> tuple[str, ...]:
        """Return the columns in which :data:`LOST_IN_PARTITIONS` would be lost; as they are when it is first asked."""
        return ()

    def depends_on_zone(self) -> bool:
        """Whether what a commit keeps depends on the time zone of its session, which must be UTC then."""
        return False

    def is_held_by_task_sink(self) -> bool:
        """Whether a sink whose tasks write holds the table; asked where the state does not say so."""
        return False

    def properties(self) -> dict[str, str]:
        """Return our table properties."""
        return {name: value for name, value in self.all_properties().items() if name.startswith(f"{KEY}.")}

    def all_properties(self) -> dict[str, str]:
        """Return every table property."""
        return {row["key"]: row["value"] for row in self.ask(f"SHOW TBLPROPERTIES {self.quoted}")}

    def keep(self, properties: Mapping[str, str]) -> None:
        """Set table properties; their values need no quotes, see :func:`.commit_notes.pack`."""
        pairs = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
        self.run(f"ALTER TABLE {self.quoted} SET TBLPROPERTIES ({pairs})")

    def forget(self, names: Sequence[str]) -> None:
        """Remove table properties."""
        if names:
            listed = ", ".join(f"'{name}'" for name in names)
            self.run(f"ALTER TABLE {self.quoted} UNSET TBLPROPERTIES IF EXISTS ({listed})")

    def state(self, *, with_losses: bool = False) -> LogState:
        """Return what the table's log and its properties say of our plans and slices; of a missing table nothing.

        ``with_losses``: also where the log has lost what the plan that holds the table needs, for who is to take it
        over.
        """
        with self._reading:
            try:
                state = self.read_state()
            except SPARK_ERRORS as error:
                if is_missing(error):
                    return LogState()
                raise
        if not with_losses and (gone := state.find_loss()):
            raise SinkRefused(
                f"The log of {self.name} no longer has the commit {gone}, which the plan that is being written needs: "
                "the table was restored to a moment before it or replaced, or its old snapshots or log entries were "
                f"removed. Keep those of a plan until it has ended, and {RESTART}."
            )
        return state

    def rows(self) -> "DataFrame":
        """Return the rows as they are now.

        What anybody has cached (``CACHE TABLE``) is every session's, and stays where others than Spark have changed the
        table.
        """
        self.run(f"REFRESH TABLE {self.quoted}")
        return self.session.table(self.quoted)

    def empty(self) -> "DataFrame":
        """Return no row of this table."""
        return self.session.table(self.quoted).where("false")

    def publish(self, note: Note, rows: "DataFrame | None" = None) -> None:
        """Commit rows, or none, with the note, unless the note's token is taken. :meth:`state` says what was done.

        A slice's note goes in only where :meth:`.LogState.admits` says so.
        """
        if note.kind is not Kind.MARK or self.state().admits(note):
            self.append(note, rows)

    def clear(self, note: Note) -> None:
        """Delete every row in one commit, unless the note's token is taken. :meth:`state` says what was done."""
        self._replace(note, lambda target: f"DELETE FROM {target}")  # noqa: S608

    def merge(self, note: Note, rows: "DataFrame", make_merge: "MakeMerge") -> None:
        """Commit what a MERGE makes of the rows of a slice, as :meth:`publish` does."""
        with self._merging:
            if not note.about["rows"] and not note.about["deleted"]:
                self.publish(note, rows)
                return
            view = f"{KEY}_{note.nonce:013x}"
            rows.createOrReplaceTempView(view)
            try:
                self._replace(note, lambda target: make_merge(target, view))
            finally:
                self.session.catalog.dropTempView(view)

    def _replace(self, note: Note, make_statement: "MakeStatement") -> None:
        """Replace rows in one commit, unless the note's token is taken; again where other commits come first.

        Only settings of a session give the commit of a MERGE or a DELETE its note, so each has a session of its own.
        """
        zone = {TIME_ZONE: "UTC"} if self.depends_on_zone() else {}
        with clone_session(self.session) as session:
            for name, value in {**zone, **self.note_settings(note)}.items():
                session.conf.set(name, value)
            for number, pause in enumerate(PollPolicy(jitter=True).waits(), start=1):
                state = self.state()
                if not state.admits(note):
                    return
                try:
                    self.replace_rows(session, state, make_statement)
                except SPARK_ERRORS as error:
                    if not any(sign in str(error) for sign in self.overtaken):
                        raise
                    if number == TRIES:
                        text = f"Other commits came before ours in {self.name}, {TRIES} times."
                        raise SinkUnavailable(text) from strip_frames(error)
                    log.info("%s was committed to by others, trying again: %s", self.name, first_line(error))
                    time.sleep(pause)
                else:
                    return

    @abstractmethod
    def note_settings(self, note: Note) -> dict[str, str]:
        """Return the settings of a session that give each of its commits the note, and the note's token."""
        ...

    @abstractmethod
    def replace_rows(self, session: "SparkSession", state: LogState, make_statement: "MakeStatement") -> None:
        """Run a statement in a session that has a note's settings, on top of what the table's log says, or fail."""
        ...

    @abstractmethod
    def check(self, there: StructType | None) -> None:
        """Raise ``SinkRefused`` where the cluster lacks what the format needs, or the table has another format.

        ``there``: what :meth:`schema` returns.
        """
        ...

    @abstractmethod
    def read_state(self) -> LogState:
        """Return what notes and properties say: the notes of commits that the table's present rows come from."""
        ...

    def describe_head(self) -> dict[str, str]:
        """Return the property that names the version that :meth:`state` saw last; none where properties go back too."""
        return {}

    @abstractmethod
    def find_last_change(self) -> str:
        """Return what names the last commit in which others changed rows or columns; of several calls one that is new

        where the log no longer says so. Compactions change no row, and are none.
        """
        ...

    @abstractmethod
    def describe_chain(self) -> dict[str, str]:
        """Return the property that keeps :meth:`find_last_change` where a retention removes the log behind it."""
        ...

    @abstractmethod
    def has_kept_columns(self) -> bool:
        """Whether the columns are those of the commit at which :meth:`describe_chain` was kept last.

        It is asked behind a commit. ``True`` where :meth:`find_last_change` says so by itself.
        """
        ...

    @abstractmethod
    def tidy(self) -> None:
        """Remove what attempts that died have left behind and the table's own maintenance would keep."""
        ...

    @abstractmethod
    def compact(self) -> None:
        """Write small files, and those that many rows were deleted of, again as large ones; no row changes."""
        ...

    @abstractmethod
    def remove_old_versions(self) -> None:
        """Remove versions, and files of theirs alone, that are older than the table's properties want them to be kept.

        None goes that a plan needs: neither a commit of the plan that holds the table, nor the version at which the
        plan before it has left the table.
        """
        ...

    @abstractmethod
    def append(self, note: Note, rows: "DataFrame | None" = None) -> None:
        """Do what :meth:`publish` says, whatever plan holds the table."""
        ...


_known: "weakref.WeakKeyDictionary[SparkSession, dict[tuple[str, str], SparkTable]]" = weakref.WeakKeyDictionary()
_opening = threading.Lock()


def open_table(session: "SparkSession", format_: str, name: str) -> SparkTable:
    """Return a table, the same for all ranges of a session: what was read of its log is not read again."""
    with _opening:
        tables = _known.setdefault(session, {})
        if (format_, name) not in tables:
            module = import_module(f"airflow_provider_backpressure.connectors.lake.spark.{format_}")
            tables[format_, name] = cast("SparkTable", getattr(module, FORMATS[format_])(session, name))
        return tables[format_, name]


def build_merge(target: str, view: str, columns: Sequence[str], key: Sequence[str]) -> str:
    """Return the statement. It updates the key's columns too, so that there is a commit where no other is there."""
    same = " AND ".join(f"t.`{name}` = s.`{name}`" for name in key)
    every = ", ".join(f"t.`{name}` = s.`{name}`" for name in columns)
    names, values = (", ".join(f"{prefix}`{name}`" for name in columns) for prefix in ("", "s."))
    new = f"({names}) VALUES ({values})"
    clauses = f"WHEN MATCHED THEN UPDATE SET {every} WHEN NOT MATCHED THEN INSERT {new}"
    return f"MERGE INTO {target} AS t USING `{view}` AS s ON {same} {clauses}"


def check_columns(table: SparkTable, there: StructType | None, columns: Sequence[Column]) -> None:
    """Raise ``SinkRefused`` unless an existing table has exactly the columns that arrive. It names all at once."""
    names = [column.name for column in columns]
    if len({name.lower() for name in names}) < len(names):
        raise SinkRefused(f"{table.name} cannot have columns whose names differ by case alone: rename one of them.")
    odd = [name for name in names if "`" in name]
    if odd:
        raise SinkRefused(f"{table.name} cannot have a column {odd[0]!r}: leave the backtick out of its name.")
    if there is None:
        return
    fields = {field.name: field for field in there.fields}
    against = [f"it has no column {name}" for name in names if name not in fields]
    against += [f"{name} there does not arrive" for name in fields if name not in names]
    against += [text for column in columns if (text := _mismatch(table, fields.get(column.name), column))]
    if against:
        raise SinkRefused(f"Rows cannot go into {table.name}: {'; '.join(against)}.")


def _mismatch(table: SparkTable, field: StructField | None, column: Column) -> str:
    if field is None:
        return ""
    declared = str(field.metadata.get(_DECLARED, ""))
    if declared.startswith("char("):
        return f"column {column.name} is {declared} there, which Spark fills with spaces: make it a string"
    arriving = carrier(column.type)[1]
    if not table.takes(field.dataType, arriving):
        return f"column {column.name} is {arriving.simpleString()} here and {field.dataType.simpleString()} there"
    if not field.nullable:
        return f"column {column.name} is NOT NULL there, which is not supported yet: drop the constraint"
    return ""


def is_widened(there: DataType, arriving: DataType) -> bool:
    """Whether a table has an integer where a smallint arrives: a format without smallint makes one of it."""
    return isinstance(arriving, ShortType) and there.simpleString() == "int"


def is_missing(error: Exception) -> bool:
    """Whether the error says that there is no such table."""
    return any(sign in str(error) for sign in MISSING)


def is_lost(error: Exception) -> bool:
    """Whether the error says that the server is gone, or knows the session no more."""
    return any(sign in str(error) for sign in _LOST)


def first_line(error: Exception) -> str:
    """Return what the server says, without its trace."""
    text = str(error).split("JVM stacktrace:")[0].split("\n\tat ")[0].strip()
    return re.sub(r"\s+", " ", text)[:_FIRST_LINE]


@contextmanager
def translate_errors(name: str) -> Iterator[None]:
    """Raise Spark's errors as ours, in a sentence that names the table. A job that broke off may go well later."""
    try:
        with translate_refusals(name):
            yield
    except SPARK_ERRORS as error:
        text = first_line(error)
        if is_lost(error):
            raise SinkUnavailable(f"Spark does not answer for {name}: {text}") from strip_frames(error)
        if "Conflict" in text or "CONCURRENT" in text or "Concurrent" in text or "CommitFailed" in text:
            raise SinkUnavailable(f"Another commit came before ours in {name}: {text}") from strip_frames(error)
        raise SinkUnavailable(f"A statement on {name} failed: {text}") from strip_frames(error)


@contextmanager
def translate_refusals(name: str) -> Iterator[None]:
    """Raise ``SinkRefused`` for what Spark refuses before it runs. Other errors are left to the runner."""
    try:
        yield
    except _REFUSALS as error:
        raise SinkRefused(f"Spark refuses a statement on {name}: {first_line(error)}") from strip_frames(error)
