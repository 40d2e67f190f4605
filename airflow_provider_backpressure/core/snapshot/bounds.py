"""Bounds: which rows a range holds. Pieces of one snapshot never overlap and leave no gap."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from airflow_provider_backpressure.core.snapshot.gtid_set import GtidSet, is_gtid_set
from airflow_provider_backpressure.exceptions import InvalidDeclaration, LedgerRefused

LOG = "log"
"""Kind of a piece of a log, in its JSON object."""


@dataclass(frozen=True, kw_only=True, order=True)
class LogPosition:
    """A place in a database's log: what was committed before it has ``at`` below its own.

    Written as ``<at> <text>``, and so kept in plans, markers and windows.
    """

    at: int
    """Rises with the log: in bytes of it, as an LSN does; of a binlog it is the number of transactions."""
    text: str = field(compare=False)
    """As the database has it: ``0/1A2B3C``, or a binlog's GTIDs. What only the log's reader needs follows an ``@``:
    where in a binlog's files to look, or what marks a publication."""

    def __post_init__(self) -> None:
        """Refuse what lies before the beginning."""
        if self.at < 0:
            raise InvalidDeclaration(f"No log has a position {self.at}.")

    def __str__(self) -> str:
        """Return ``<at> <text>``."""
        return f"{self.at} {self.text}"

    @property
    def label(self) -> str:
        """Return the text as people read it."""
        return self.text.partition("@")[0]

    @property
    def transactions(self) -> GtidSet | None:
        """The set of transactions before it; ``None`` where the log is one line, so that ``at`` is the whole answer."""
        return GtidSet.parse(self.label) if is_gtid_set(self.label) else None

    @property
    def places(self) -> dict[str, int]:
        """How far it is in each of the binlog's files that it names."""
        named = [each.rpartition(":") for each in self.text.split("@")[1:] if not is_gtid_set(each)]
        return {file: int(at) for file, _, at in named if file}

    def has_reached(self, other: "LogPosition") -> bool:
        """Whether everything that was committed before the other position was committed before this one.

        Numbers of transactions do not answer that: after a fail-over a server may have as many, and others.
        """
        own, wanted = self.transactions, other.transactions
        return self.at >= other.at if own is None or wanted is None else wanted.within(own)

    @classmethod
    def parse(cls, value: str) -> Self:
        """Read what ``str`` wrote."""
        at, _, text = value.partition(" ")
        return cls(at=int(at), text=text)


Values = tuple[str, ...]
"""A key's values, one for each of its columns, as text."""
Place = tuple[int, int]
"""A block of a file, and the number of a row in it."""


@dataclass(frozen=True, kw_only=True)
class KeyBounds:
    """Half-open piece ``[start, end)`` of a key's order in the source; ``None`` is the open end on that side.

    A key of several columns is ordered by the first, then the second, and so on. The values are text as the source
    prints them: only the source knows their order (collation, numeric text), so a piece is made from consecutive
    boundaries by :func:`cover` rather than checked for its order here. A row whose key is NULL is in no such piece but
    one that is open at both ends.
    """

    columns: tuple[str, ...]
    start: Values | None
    end: Values | None

    def __post_init__(self) -> None:
        """Refuse the empty piece, and values that are not those of the columns."""
        # Spelled out: it runs a million times for a plan of a million ranges.
        start, end, number = self.start, self.end, len(self.columns)
        if (start is not None and len(start) != number) or (end is not None and len(end) != number):
            raise InvalidDeclaration(
                f"Bounds of {', '.join(self.columns)} need {len(self.columns)} values at each end."
            )
        if start is not None and start == end:
            raise InvalidDeclaration(f"The range {self} is empty.")

    @property
    def is_open(self) -> bool:
        """Whether it is open at both ends: then it has no condition, and holds the rows without a key too."""
        return self.start is None and self.end is None

    @classmethod
    def of_column(cls, *, column: str, start: str | None, end: str | None) -> Self:
        """Return the piece of a key of one column."""
        return cls(columns=(column,), start=None if start is None else (start,), end=None if end is None else (end,))

    def __str__(self) -> str:
        """Return ``id [1, 9)``."""
        return f"{_row(self.columns)} [{_row(self.start or ('',))}, {_row(self.end or ('',))})"

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object with its kind."""
        return {
            "kind": "key",
            "columns": list(self.columns),
            "start": None if self.start is None else list(self.start),
            "end": None if self.end is None else list(self.end),
        }


@dataclass(frozen=True, kw_only=True)
class NullBounds:
    """The rows whose value in the column by which ranges are cut is NULL."""

    column: str

    def __str__(self) -> str:
        """Return ``id is NULL``."""
        return f"{self.column} is NULL"

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object with its kind."""
        return {"kind": "null", "column": self.column}


@dataclass(frozen=True, kw_only=True)
class BlockBounds:
    """Half-open piece ``[start, end)`` of a table's file; ``end`` is ``None`` for all that follows.

    A place is a block and a row's number in it, from 0: most pieces begin and end with whole blocks. Blocks are only
    good for the file that they were counted in: a rewrite puts the rows elsewhere.
    """

    table: str
    """The table that has the file (of a partitioned one a partition), as ``schema.table``, quoted where needed."""
    file: int
    """The file's number in the source when the plan was made."""
    start: Place
    end: Place | None

    def __post_init__(self) -> None:
        """Refuse the empty piece."""
        if self.end is not None and self.end <= self.start:
            raise InvalidDeclaration(f"The range {self} is empty.")

    def __str__(self) -> str:
        """Return ``public.t blocks [0, 128)``; a row within a block after a dot."""
        return f"{self.table} blocks [{_place(self.start)}, {'' if self.end is None else _place(self.end)})"

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object with its kind."""
        end = None if self.end is None else list(self.end)
        return {"kind": "blocks", "table": self.table, "file": self.file, "start": list(self.start), "end": end}


Piece = tuple[int, int, int]
"""A partition of a log, and the half-open piece of its offsets."""
Part = tuple[int, int]
"""One of how many parts of a log's keys, from 0: ``(2, 4)`` is the third of four."""
FIRST = -1
"""In place of the number of a range: none."""


@dataclass(frozen=True, kw_only=True)
class OffsetBounds:
    """Half-open pieces of a log's partitions, in the order of partitions. An offset need not hold a record."""

    pieces: tuple[Piece, ...]
    ordered: bool = False
    """Whether what it holds wins over what the ranges before it hold, so that it goes in after them."""
    behind: int | None = None
    """Number of the one range that it goes in after, :data:`FIRST` where it is the first of its partitions; ``None``:
    it goes in after all ranges before it. Only of one that is ordered."""
    part: Part | None = None
    """Whose keys' records it holds; ``None``: all records. Only of one that is ordered."""

    def __post_init__(self) -> None:
        """Refuse empty pieces, a partition that comes twice, and a part that there is not."""
        if not self.pieces or any(end <= start or start < 0 for _, start, end in self.pieces):
            raise InvalidDeclaration(f"The range {self} is empty.")
        if len({partition for partition, _, _ in self.pieces}) != len(self.pieces):
            raise InvalidDeclaration(f"The range {self} names a partition twice.")
        if self.part is not None and not 0 <= self.part[0] < self.part[1]:
            raise InvalidDeclaration(f"The range {self} is of a part that there is not.")

    def __str__(self) -> str:
        """Return ``0 [5, 9), 1 [0, 3)``, of some keys with their part: ``0 [5, 9) of part 3 of 4``."""
        text = ", ".join(f"{partition} [{start}, {end})" for partition, start, end in self.pieces)
        return text if self.part is None else f"{text} of {name_part(self.part)}"

    @property
    def offsets(self) -> int:
        """Offsets in all, with and without a record, of whatever part."""
        return sum(end - start for _, start, end in self.pieces)

    @property
    def share(self) -> int:
        """What it counts of its offsets: the shares of all parts add up to them."""
        number, parts = self.part or (0, 1)
        return self.offsets * (number + 1) // parts - self.offsets * number // parts

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object with its kind."""
        value = {"kind": "offsets", "pieces": [list(piece) for piece in self.pieces], "ordered": self.ordered}
        value |= {} if self.behind is None else {"behind": self.behind}
        return value if self.part is None else {**value, "part": list(self.part)}


def name_part(part: Part) -> str:
    """Return ``part 3 of 4``, as people count."""
    return f"part {part[0] + 1} of {part[1]}"


@dataclass(frozen=True, kw_only=True)
class LogBounds:
    """Half-open piece ``[start, end)`` of a database's log: what was committed in it. Goes in after those before it."""

    stream: str
    """Names who reads the log, as in :class:`..core.snapshot.replay_window.ReplayWindow`."""
    start: LogPosition
    end: LogPosition

    def __post_init__(self) -> None:
        """Refuse the empty piece."""
        if self.end <= self.start:
            raise InvalidDeclaration(f"The range {self} is empty.")

    def __str__(self) -> str:
        """Return ``log [0/1A, 0/2B)``."""
        return f"log [{self.start.label}, {self.end.label})"

    @property
    def length(self) -> int:
        """Bytes of the log, or of a binlog transactions."""
        return self.end.at - self.start.at

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object with its kind."""
        return {"kind": LOG, "stream": self.stream, "start": str(self.start), "end": str(self.end)}


@dataclass(frozen=True, kw_only=True)
class FileBounds:
    """The rows of some files of a table that a hydration has landed, and what they were when they were."""

    files: tuple[str, ...]
    rows: int
    checksum: str
    """Of all rows together; empty where it is not known."""

    def __post_init__(self) -> None:
        """Refuse none."""
        if not self.files:
            raise InvalidDeclaration("A range of landed rows needs a file.")

    def __str__(self) -> str:
        """Return the files' names, or the first of many."""
        more = f" and {len(self.files) - 1} more files" if len(self.files) > 1 else ""
        return f"{self.files[0]}{more}"

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object with its kind."""
        return {"kind": "files", "files": list(self.files), "rows": self.rows, "checksum": self.checksum}


Bounds = KeyBounds | NullBounds | BlockBounds | OffsetBounds | LogBounds | FileBounds


def bounds_from_json(value: dict[str, Any]) -> Bounds:
    """Build bounds from their JSON object; :class:`InvalidDeclaration` for an unknown kind."""
    rest = {name: part for name, part in value.items() if name != "kind"}
    match value.get("kind"):
        case "key":
            ends = {name: None if rest[name] is None else tuple(rest[name]) for name in ("start", "end")}
            return KeyBounds(columns=tuple(rest["columns"]), **ends)
        case "null":
            return NullBounds(**rest)
        case "blocks":
            end = None if rest["end"] is None else tuple(rest["end"])
            return BlockBounds(**{**rest, "start": tuple(rest["start"]), "end": end})
        case "offsets":
            pieces = tuple((partition, start, end) for partition, start, end in rest["pieces"])
            part = tuple(rest["part"]) if rest.get("part") is not None else None
            return OffsetBounds(**{**rest, "pieces": pieces, "part": part})
        case "log":
            start, stop = LogPosition.parse(rest["start"]), LogPosition.parse(rest["end"])
            return LogBounds(stream=rest["stream"], start=start, end=stop)
        case "files":
            return FileBounds(**{**rest, "files": tuple(rest["files"])})
        case kind:
            raise InvalidDeclaration(f"Bounds of kind {kind!r} are not known to this version.")


def check_marked(marked: Mapping[str, Any], wanted: Mapping[str, Any], *, slice_id: str, plan_id: str) -> None:
    """Raise ``LedgerRefused`` where a slice's marker has other bounds than the range that asks for it.

    Both are bounds as JSON objects. A ledger that was restored may number other ranges in the same way.
    """
    if marked == wanted:
        return
    there, asked = bounds_from_json(dict(marked)), bounds_from_json(dict(wanted))
    if there != asked:
        raise LedgerRefused(
            f"Slice {slice_id} of plan {plan_id} is committed in the target with the bounds {there}, and the ledger "
            f"has it with {asked}: the ledger was restored from an older copy. Run `airflow backpressure reindex`, or "
            "clear the plan_snapshot task, which does the same."
        )


def cover(columns: tuple[str, ...], boundaries: Iterable[Values]) -> Iterator[KeyBounds]:
    """Yield pieces that cover the whole key: before the first boundary, between each two, and from the last on.

    ``boundaries`` are in the source's order; a repeated one is passed over.
    """
    return cut(KeyBounds(columns=columns, start=None, end=None), boundaries)


def cut(bounds: KeyBounds, boundaries: Iterable[Values]) -> Iterator[KeyBounds]:
    """Yield pieces that cover just these bounds, cut at the boundaries, which lie within them."""
    start = bounds.start
    for boundary in boundaries:
        if None in boundary:
            raise InvalidDeclaration(f"Bounds of {', '.join(bounds.columns)} are values, and NULL is none.")
        if boundary != start:
            yield KeyBounds(columns=bounds.columns, start=start, end=boundary)
            start = boundary
    yield KeyBounds(columns=bounds.columns, start=start, end=bounds.end)


def _place(place: Place) -> str:
    block, row = place
    return f"{block}.{row}" if row else str(block)


def _row(values: tuple[str, ...]) -> str:
    return values[0] if len(values) == 1 else f"({', '.join(values)})"
