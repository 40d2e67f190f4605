"""Messages between Airflow's side and Spark's: versioned JSON without secrets."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from airflow_provider_backpressure.core.connector_kinds import COPIED
from airflow_provider_backpressure.core.json_codec import from_dict
from airflow_provider_backpressure.core.snapshot.bounds import NullBounds
from airflow_provider_backpressure.core.snapshot.table_alterations import TableStorage
from airflow_provider_backpressure.core.stage_metrics import Stage, StageTime, flow_of, total
from airflow_provider_backpressure.exceptions import InvalidDeclaration

VERSION = 1


_DOMAIN = "domain of "


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column by its name and the database's own spelling of its type (``numeric(15,2)``)."""

    name: str
    type: str
    nullable: bool = True
    collation: str | None = None
    """How the source orders a text key by which ranges are cut; another order has other rows in the same bounds."""
    definition: str | None = None
    """What a type of the user's own is made of; ``None`` for other types, and where it is not known."""

    @property
    def base_type(self) -> str:
        """The type that a domain is of in the end, otherwise the type itself."""
        return base_type(self.type, self.definition)

    @property
    def is_enum(self) -> bool:
        """Whether it is an enum, or a domain of one in the end."""
        return _unwrap(self.type, self.definition)[1] == "enum"


def base_type(type_: str, definition: str | None) -> str:
    """Return the type that a domain is of in the end, otherwise the type itself."""
    return _unwrap(type_, definition)[0]


def _unwrap(type_: str, definition: str | None) -> tuple[str, str | None]:
    while definition and definition.startswith(_DOMAIN):
        type_, _, inner = definition.removeprefix(_DOMAIN).partition(" (")
        definition = inner.removesuffix(")")
    return type_, definition


def null_bounds(columns: Sequence[Column], split: Sequence[str]) -> list[NullBounds]:
    """Return the range of the rows without a key, where the column by which a table is cut may be NULL.

    It is planned although there may be no such row yet: one may come before the ranges are read.
    """
    nullable = len(split) == 1 and all(column.nullable for column in columns if column.name == split[0])
    return [NullBounds(column=split[0])] if nullable else []


@dataclass(frozen=True, kw_only=True)
class Slice:
    """What one Spark task copies: the statement that reads exactly these rows, made by the source."""

    slice_id: str
    query: str
    bounds: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Window:
    """The values of a rising column that one plan reads: above ``after``, up to and with ``upto``, as text."""

    column: str
    after: str | None
    """``None``: from the very first, rows without a value included."""
    upto: str


@dataclass(frozen=True, kw_only=True)
class Substitute:
    """A package in pure Python that travels with a job where executors lack a module."""

    module: str
    package: str
    """Top of the package's modules."""
    cost: str
    """What it costs to read by it, as the end of a sentence."""


@dataclass(frozen=True, kw_only=True)
class ReadSpec:
    """The source as a task needs it. ``kind`` names the reader; the endpoint travels apart from the message."""

    kind: str
    conn_id: str
    columns: tuple[Column, ...]
    place: str | None = None
    """What names the table by whatever address it is reached, so that a sink can refuse to write into its source."""
    window: Window | None = None
    parts: tuple[str, ...] = ()
    """Names of the tables whose blocks are read, where ranges are cut by blocks; of a lake its kind and address; of a
    table of Spark's catalogs the version that every range reads, and the table."""
    snapshot: str | None = None
    """The exported snapshot in which every range is read; known only while the lane that keeps it lives."""
    tells_position: bool = False
    """Whether each range records the position of the source's log after its rows were read."""
    every_row: bool = False
    """Whether it is an error if the source shows the login only some of the rows: it showed all when a run planned."""
    since: str = ""
    """The position from which the source's log is replayed: a server that has not come so far is not read. Empty where
    nothing is replayed, and in plans of earlier releases."""
    replayed: str = ""
    """The position to which windows of a log that tables share were replayed already: a server that has not come so
    far is not read either, since its rows would take back what they brought. Empty where there were none."""
    keep_bad: bool = False
    """Whether a record that cannot be taken apart is handed on with the reason, instead of failing its range."""
    marks_tombstones: bool = False
    """Whether each record comes with a mark that says if it is a tombstone."""
    row_key: tuple[str, ...] = ()
    """The target's key by which later records win over earlier ones; empty where their order does not matter."""
    trusts: bool = False
    """Whether values that are to be JSON are handed on unseen, since the target looks at them itself."""
    added: tuple[str, ...] = ()
    """Columns that the table got since the plan before: where its log does not know them yet, they are NULL."""
    storage: TableStorage | None = None
    """How the table was stored when it was planned; ``None`` where that does not matter, or in an earlier release."""
    decoding: Mapping[str, Any] = field(default_factory=dict)
    """How the ``key`` and the ``value`` of a topic's records are decoded, with every schema that they may have; neither
    where no registry has their schemas. And how the ``envelope`` is read that values may be in."""
    holds_deletes: bool = False
    """Whether records delete rows, beside tombstones: without their order they cannot be read."""
    substitutes: tuple[Substitute, ...] = ()
    """Of a plan those that its jobs carry; of a source those that it has."""
    tasks: int = 1
    """Tasks that read a range side by side, where the source lets several of them."""


@dataclass(frozen=True, kw_only=True)
class WriteSpec:
    """The sink as a task needs it. Table names are quoted and qualified by the sink that made them."""

    kind: str
    conn_id: str
    target: str
    """Where rows are written: the target, or under ``replace`` its shadow."""
    columns: tuple[Column, ...]
    """The target's columns in the order in which rows arrive, with the target's types."""
    mode: str
    key: tuple[str, ...]
    """Columns of the unique key that ``upsert`` goes by; may be empty under ``append``."""
    plan_table: str
    commit_table: str
    fence: str
    """The target's key in ``plan_table``."""
    quarantine: str | None = None
    """The table that takes rows which the target cannot; ``None``: such a row fails its range."""
    most_bad: int = 0
    """Most rows of one plan that it takes."""
    frontier_table: str = ""
    """Where the sink keeps the position of each stream of a log: a table of its own, or the target itself. Empty for a
    sink that has no such place."""
    ordered: bool = False
    """Whether later rows win over earlier ones: ranges go in one after another, and a tombstone deletes."""
    place: tuple[str, ...] = ("partition", "offset")
    """Columns with the position in its log of each row of a topic; the target has those that are not hidden."""
    most_deleted: int | None = None
    """Most rows of the target that the plan may delete under ``mirror``; ``None``: any number."""
    tasks: int = 1
    """Tasks that read a range side by side, where the target takes the rows of several at once."""


ZONE = "UTC"
"""The time zone of new plans' transforms: the rows are the same wherever Spark runs."""


@dataclass(frozen=True, kw_only=True)
class Transform:
    """What the frame path does between reader and writer.

    ``sql``: a SELECT over the view ``source``. ``python``: ``module:callable`` taking and giving a DataFrame, or an
    empty reference where the runner was handed the callable itself.
    """

    sql: str | None = None
    python: str | None = None
    zone: str | None = None
    """The time zone of its days and hours, a name as Spark knows it; ``None``: that of the Spark server, as in plans of
    earlier releases."""


def keep_zone(transform: Transform | None, before: Transform | None) -> Transform | None:
    """Return the transform in the time zone of the plan before: the rows of one target are all of one zone."""
    return replace(transform, zone=before.zone) if transform is not None and before is not None else transform


@dataclass(frozen=True, kw_only=True)
class LastWrite:
    """What a range held when it was written last: nothing is written while the source still holds that."""

    rows: int
    checksum: str
    staged: bool
    """Whether the range changed in the run before: then its rows are staged without being hashed first."""
    epoch: int = 0
    """The epoch of the plan's own marker, of an earlier snapshot, whose place the attempt takes; 0: another plan's."""
    proves: bool = True
    """Whether a range that still holds the same may do without a marker; ``False`` where no result would say so."""


@dataclass(frozen=True, kw_only=True)
class StreamTable:
    """One of the tables that share a log, as a window is replayed into it."""

    plan_id: str
    """The plan of the table's own hydration, which holds its target."""
    epoch: int
    query: str
    """What the source needs to know of the table, as a slice's query has it."""
    read: ReadSpec
    write: WriteSpec
    reading: bool = False
    """Whether ranges of it are still to be read: they must see all that the window brings."""
    since: str = ""
    """Position of the log that every range of it has seen. What came before may be of another table of this name, or
    be shown with gaps, where it was not published for a while."""
    start: str = ""
    """Position up to which the target has the log already, where windows are committed to each table by itself.
    Empty: ``since``."""

    @property
    def lacks_from(self) -> str:
        """Position from which the target lacks the log."""
        return self.start or self.since


@dataclass(frozen=True, kw_only=True)
class RangeSpec:
    """One attempt of one range, as it is submitted."""

    hydration_id: str
    plan_id: str
    epoch: int
    seq: int
    attempt: int
    tag: str
    path: str
    """``copy`` or ``frame``."""
    read: ReadSpec
    write: WriteSpec
    slices: tuple[Slice, ...]
    transform: Transform | None = None
    last_write: LastWrite | None = None
    """Under ``mirror``, and of a range of an earlier snapshot; ``None`` where no write proves what the target holds."""
    task_cpus: int = 1
    """Cores of an executor that its task takes."""
    small: bool = False
    """Whether it is expected to hold so little that it costs less than a job of its own."""
    since: int = 0
    """Markers of older epochs than this are of an earlier snapshot; 0: every marker counts."""
    tables: tuple[StreamTable, ...] = ()
    """Tables that share the log of a window, all of them written in one transaction; none: the one that is written."""
    pieces: tuple[Slice, ...] = ()
    """What its tasks read, where several do: together the rows of its slices."""

    @property
    def replaces(self) -> int:
        """The epoch of the plan's own marker whose place the attempt takes; 0: the range has none yet."""
        return self.last_write.epoch if self.last_write is not None else 0

    @property
    def corrects(self) -> bool:
        """Whether rows that the plan itself has written are exchanged, and no others may be."""
        return bool(self.replaces) and self.write.mode != "mirror"

    def is_unchanged(self, result: "SliceResult") -> bool:
        """Whether the rows of a result are those that the target holds already."""
        last = self.last_write
        return last is not None and last.proves and (last.rows, last.checksum) == (result.rows, result.checksum)

    def to_json(self) -> str:
        """Return the message with its version."""
        return json.dumps({"version": VERSION, **asdict(self)})

    @classmethod
    def from_json(cls, text: str) -> "RangeSpec":
        """Read a message; :class:`InvalidDeclaration` for another version or a missing field."""
        value = _object(text)
        try:
            return from_dict(cls, value)
        except (TypeError, AttributeError) as error:
            raise InvalidDeclaration(f"This is not a range specification of version {VERSION}: {error}.") from error


@dataclass(frozen=True, kw_only=True)
class ChecksumSpec:
    """A piece of a table to be counted and hashed where the executors are. ``query`` selects it, ordered as written.

    With ``read`` the rows are read as a source's slice is, and their values are hashed; otherwise the target of this
    kind hashes them as its markers have it.
    """

    kind: str
    conn_id: str
    query: str
    read: ReadSpec | None = None
    bounds: Mapping[str, Any] = field(default_factory=dict)
    quarantined: tuple[str, ...] = ()
    """Digests (:func:`digest_row`) of rows that are counted apart and not hashed: their target has refused them."""
    quarantined_at: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Values of these rows, by column: no other row is digested. Empty: every row is."""
    snapshot: str | None = None
    """The exported snapshot in which it is read; ``None``: as it is when the task comes to it."""
    storage: TableStorage | None = None
    """The files that the table had when the snapshot was exported; ``None`` where they cannot be exchanged unnoticed.
    """
    like: str = ""
    """The checksum that it is compared with, whose algorithm is to be used; empty: the one of most markers."""


def digest_row(text: str) -> str:
    """Return the digest of a row as a quarantine keeps it: 64 hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class SliceResult:
    """What a task says of its slice. Only the sink's marker decides; this adds what the marker does not hold."""

    slice_id: str
    rows: int
    bytes: int
    checksum: str
    """``<algorithm>:<16 hex digits>``: sum modulo 2^64 of row hashes, see ``copy_hash.py``."""
    quarantined: int = 0
    """Rows that went into the quarantine table instead."""
    read_at: str = ""
    """The position of the source's log after the rows were read (a ``LogPosition``); empty where that was not asked."""
    times: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    """Seconds that reader, transform and sink were busy, idle and held back, by stage; empty: nothing was copied."""
    peak_memory_bytes: int = 0
    """Peak resident memory of the task's own process."""
    unchanged: bool = False
    """Whether the target holds these rows already, so that nothing was written: there is no marker."""
    deleted: int = 0
    """Rows of the target that were deleted under ``mirror``."""


@dataclass(frozen=True, kw_only=True)
class RangeResult:
    """What came of an attempt."""

    plan_id: str
    seq: int
    attempt: int
    slices: tuple[SliceResult, ...] = field(default=())

    @property
    def rows(self) -> int:
        """Rows written, over all slices."""
        return sum(piece.rows for piece in self.slices)

    @property
    def bytes(self) -> int:
        """Bytes moved, over all slices."""
        return sum(piece.bytes for piece in self.slices)

    @property
    def flow(self) -> dict[Stage, StageTime]:
        """What reader, transform and sink did, over all slices."""
        return total(*(flow_of(piece.times) for piece in self.slices))

    @property
    def peak_memory_bytes(self) -> int:
        """Memory that the tasks took together, at the most."""
        return sum(piece.peak_memory_bytes for piece in self.slices)

    def to_json(self) -> str:
        """Return the message with its version."""
        return json.dumps({"version": VERSION, **asdict(self)})

    @classmethod
    def from_json(cls, text: str) -> "RangeResult":
        """Read a message; :class:`InvalidDeclaration` for another version or a missing field."""
        value = _object(text)
        try:
            return from_dict(cls, value)
        except (TypeError, AttributeError) as error:
            raise InvalidDeclaration(f"This is not a range result of version {VERSION}: {error}.") from error


def _object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict) or value.pop("version", None) != VERSION:
        raise InvalidDeclaration(f"A message of another version than {VERSION} arrived: both sides need one release.")
    return value


def columns_from_json(values: list[dict[str, Any]]) -> tuple[Column, ...]:
    """Build columns from their JSON objects."""
    return tuple(Column(**value) for value in values)


COPY = "copy"
"""From one server to another as binary COPY, never decoded."""
FRAME = "frame"
"""Any source to any sink as a DataFrame of typed rows."""
REPLAY = "replay"
"""A database's log as upserts and deletes by key, in the log's order."""


def choose_path(read: ReadSpec, write: WriteSpec, transform: Transform | None) -> str:
    """Return ``copy`` if rows may pass undecoded: same columns and types, no transform; otherwise ``frame``."""
    same = [(each.name, each.type) for each in read.columns] == [(each.name, each.type) for each in write.columns]
    return COPY if same and transform is None and (read.kind, write.kind) in COPIED else FRAME
