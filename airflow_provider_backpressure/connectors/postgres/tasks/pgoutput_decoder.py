"""PostgreSQL's ``pgoutput`` messages (protocol 1), as rows of changes: of one table, or of several that share a log.

A value's length and bytes are the same in ``pgoutput`` as in a binary COPY of text, so that values are passed on as
they are: nothing is decoded but where one ends.
"""

from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from airflow_provider_backpressure.connectors.postgres.tasks.pgoutput_batches import PlainChanges, read_plain
from airflow_provider_backpressure.connectors.postgres.tasks.pgoutput_messages import Messages
from airflow_provider_backpressure.core.snapshot.bounds import LogPosition
from airflow_provider_backpressure.core.snapshot.table_alterations import TableStorage
from airflow_provider_backpressure.core.snapshot.transaction_snapshot import TransactionSnapshot
from airflow_provider_backpressure.exceptions import RangeFailed, SourceRefused
from airflow_provider_backpressure.spark.change_columns import OWN_FIELDS
from airflow_provider_backpressure.spark.change_rows import DELETE, MOVE, NULL, TRUNCATE, UPSERT, head, numbers

Field = bytes | None
"""A value with its length before it, :data:`..changes.NULL`, or ``None`` where the log leaves it out as unchanged."""
Type = tuple[int, int]
"""A type's object identifier and its modifier, such as a length; -1: it has none."""
_BEGIN, _RELATION, _INSERT, _UPDATE, _DELETE, _TRUNCATE = b"BRIUDT"
_TEXT, _NULL, _UNCHANGED = b"tnu"
_OLD_KEY, _NEW = b"KN"
_ONE_ROW, _OF_ONE_TABLE = (_INSERT, _DELETE), (_INSERT, _UPDATE, _DELETE)
FEW = 16
"""Messages up to which each is decoded by itself."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The places of the planned columns in a row of the log."""

    places: tuple[int | None, ...]
    """``None``: the table did not have it yet."""
    plain: bool
    """They are all that there are, in their order."""
    identity: frozenset[int]
    """Of the log's columns those that identify a row."""


class Decoder:
    """Makes changes of one table's messages, for the transactions whose commit lies in ``[start, end)``."""

    def __init__(
        self,
        *,
        table: tuple[str, str],
        columns: Sequence[str],
        key: Sequence[str],
        start: LogPosition,
        end: LogPosition,
        types: Mapping[str, Type] | None = None,
        added: Collection[str] = (),
        number: int | None = None,
        storage: TableStorage | None = None,
        seen: TransactionSnapshot | None = None,
    ) -> None:
        """``types``: those that columns must have in the log; a column that is not named may be of any.

        ``added``: columns that the table may lack in the log, where they are NULL then. ``number``: the table's own, by
        which it is known whatever name it has; ``None`` where that is not known. ``storage``: all columns of the table
        at the end of the log, by which each is known; ``None``: by its name alone. ``seen``: changes of others are left
        out; ``None``: of none.
        """
        self._number, self._storage, self._seen = number, storage, seen
        self._table, self._columns, self._types, self._added = table, tuple(columns), types or {}, frozenset(added)
        self._key = [self._columns.index(name) for name in key]
        self._start, self._end = start.at, end.at
        self._layouts: dict[int, Layout | SourceRefused | None] = {}
        self._within = False
        self.xids = array("I")
        """The 32-bit numbers of the transactions whose changes were returned, 4 bytes each."""
        self._made = 0
        """Rows that were returned."""
        self._fields = OWN_FIELDS + len(self._key) + len(self._columns)
        self._nothing_kept = NULL * (1 + len(self._key))
        """What is kept and the old key, where there is neither."""

    def rows(self, messages: Sequence[bytes] | Messages) -> Sequence[bytes]:
        """Return the changes in the next messages."""
        if (found := self._read_changes_of_rows(messages)) is not None:
            return found
        rows: list[bytes] = []
        plain, common = list[bytes](), None
        for body in messages:
            kind = body[0]
            if self._within and _is_plain(body):
                layout = self._find_layout(_read_table(body))
                if layout is not None:
                    if layout is not common:
                        self._add_plain(common, plain, rows)
                        plain, common = [], layout
                    plain.append(body)
            elif kind == _BEGIN:
                xid = int.from_bytes(body[17:21], "big")
                self._within = self._start <= int.from_bytes(body[1:9], "big") < self._end and self._is_seen(xid)
                if self._within:
                    self.xids.append(xid)
            elif kind == _RELATION:
                self._learn(body)
            elif self._within and kind in (_UPDATE, _TRUNCATE):
                self._add_plain(common, plain, rows)
                plain, common = [], None
                if kind == _TRUNCATE:
                    self._truncate(body, rows)
                elif (layout := self._find_layout(_read_table(body))) is not None:
                    self._update(layout, body, rows)
        self._add_plain(common, plain, rows)
        return rows

    def _read_changes_of_rows(self, messages: Sequence[bytes] | Messages) -> PlainChanges | None:
        """Return the changes where each message changes one row, all of one table; ``None`` where that may not be so.

        Most of a large transaction is such, and to look at each of its messages costs as much as to decode it.
        """
        if not self._within or len(messages) <= FEW:
            return None
        some = messages if isinstance(messages, Messages) else Messages.join(messages)
        table = some.find_common_table()
        layout = None if table is None else self._find_layout(table)
        return None if layout is None else self._read_plain(layout, some)

    def _read_plain(self, layout: Layout, messages: Messages) -> PlainChanges | None:
        found = read_plain(messages, layout.places, first=self._made + 1, key=self._key)
        self._made += len(found or ())
        return found

    def _add_plain(self, layout: Layout | None, messages: Sequence[bytes], rows: list[bytes]) -> None:
        """Add messages of one row of a table each, all at once where none of them leaves out a value."""
        if layout is None:
            return
        if len(messages) > FEW and (found := self._read_plain(layout, Messages.join(messages))) is not None:
            rows += found
            return
        for body in messages:
            values = self._match_fields(layout, fields(body, 6)[0])
            rows.append(self._encode_delete(values) if body[0] == _DELETE else self._row(UPSERT, values))

    def _find_layout(self, table: int) -> Layout | None:
        """Return the layout of a table, ``None`` for another one; ``SourceRefused`` for ours as another."""
        layout = self._layouts[table]
        if isinstance(layout, SourceRefused):
            raise layout
        return layout

    def _is_seen(self, xid: int) -> bool:
        return self._seen is None or not self._seen.list_unseen([xid])

    def has_table(self, number: int) -> bool:
        """Whether a table that the log has named is the decoder's own."""
        return self._layouts.get(number) is not None

    def _update(self, layout: Layout, body: bytes, rows: list[bytes]) -> None:
        old, at = fields(body, 6)
        new, _ = fields(body, at + 1)
        known = layout.identity if body[5] == _OLD_KEY else range(len(old))
        for place in known:
            if new[place] is None:
                new[place] = old[place]
        before, after = self._match_fields(layout, old), self._match_fields(layout, new)
        if all(before[place] == after[place] for place in self._key):
            rows.append(self._row(UPSERT, after))
            return
        rows.append(self._encode_delete(before))
        rows.append(self._row(MOVE, after, [before[place] for place in self._key]))

    def _encode_delete(self, old: Sequence[Field]) -> bytes:
        values: list[Field] = [NULL] * len(self._columns)
        for place in self._key:
            values[place] = old[place]
        return self._row(DELETE, values)

    def _row(self, op: int, values: Sequence[Field], old_key: Sequence[Field] = ()) -> bytes:
        self._made += 1
        beginning = head(self._made, op, self._fields)
        if None not in values and not old_key:
            return beginning + self._nothing_kept + b"".join(values)  # type: ignore[arg-type]
        kept = [number for number, value in enumerate(values) if value is None]
        old = [value or NULL for value in old_key] or [NULL] * len(self._key)
        return b"".join([beginning, numbers(kept) if kept else NULL, *old, *(value or NULL for value in values)])

    def _match_fields(self, layout: Layout, found: list[Field]) -> list[Field]:
        return found if layout.plain else [NULL if place is None else found[place] for place in layout.places]

    def _truncate(self, body: bytes, rows: list[bytes]) -> None:
        if any(self._layouts[int.from_bytes(table, "big")] is not None for table in _list_truncated(body)):
            rows.append(self._row(TRUNCATE, [NULL] * len(self._columns)))

    def _learn(self, body: bytes) -> None:
        """Take in what the log says of a table as it was then.

        Where ours was not as it is planned, its changes are refused as soon as one of them is to be replayed. Without
        the key in its replica identity, the log does not show which rows were deleted then.
        """
        schema, at = _text(body, 5)
        name, at = _text(body, at)
        table = int.from_bytes(body[1:5], "big")
        if (schema, name) != self._table:
            self._layouts[table] = self._refusal([f"was named {schema}.{name}"]) if table == self._number else None
            return
        if self._number is not None and table != self._number:
            # Another table had the name for a while: what was written to it is not in this one.
            self._layouts[table] = None
            return
        number, at = int.from_bytes(body[at + 1 : at + 3], "big"), at + 3
        names, identity, types = [], set(), {}
        for place in range(number):
            if body[at] & 1:
                identity.add(place)
            column, at = _text(body, at + 1)
            names.append(column)
            types[column] = (
                int.from_bytes(body[at : at + 4], "big"),
                int.from_bytes(body[at + 4 : at + 8], signed=True),
            )
            at += 8
        others = [
            f"had no column {column}" for column in self._columns if column not in types and column not in self._added
        ]
        if self._added:
            # Every column is read then, in the table's order. Another name at a place was renamed or dropped since.
            others += [
                f"had column {column} in another column's place"
                for place, column in enumerate(names)
                if column not in self._columns[place : place + 1]
            ]
        if self._storage is not None:
            wrong = self._storage.find_misplaced(names, self._columns)
            others += [f"had {column} as the name of another column" for column in wrong]
        others += [
            f"had {column} of another type"
            for column in types
            if self._types.get(column, types[column]) != types[column]
        ]
        if not others:
            keys = [self._columns[place] for place in self._key]
            others = [f"did not have {key} in its replica identity" for key in keys if names.index(key) not in identity]
        if others:
            self._layouts[table] = self._refusal(others)
            return
        places = tuple(names.index(column) if column in types else None for column in self._columns)
        self._layouts[table] = Layout(places=places, plain=places == tuple(range(number)), identity=frozenset(identity))

    def _refusal(self, others: Sequence[str]) -> SourceRefused:
        return SourceRefused(
            f"{'.'.join(self._table)} {', and '.join(others)} when changes were logged that are to be replayed: "
            'trigger the DAG with {"backpressure": "restart"} to plan again.'
        )


class TableDecoder(Protocol):
    """Decodes the changes of one table: :class:`Decoder`, or one within another object."""

    def rows(self, messages: Sequence[bytes]) -> Sequence[bytes]:
        """See :meth:`Decoder.rows`."""
        ...

    def has_table(self, number: int) -> bool:
        """See :meth:`Decoder.has_table`."""
        ...


class TableSplitter:
    """Splits the messages of a log among the decoders of its tables; a transaction begins only where it changes one."""

    def __init__(self, decoders: Sequence[TableDecoder]) -> None:
        """Begin before the first message."""
        self._decoders = decoders
        self._owners: dict[bytes, list[int]] = {}
        """Places of the decoders of each table, by its number."""
        self._begin = b""
        self._begun: set[int] = set()
        """Places of the decoders that have got the beginning of this transaction."""

    def rows(self, messages: Iterable[bytes]) -> Iterator[tuple[int, Sequence[bytes]]]:
        """Yield the changes in the next messages with the place of their decoder, those of a table in one piece."""
        parts: list[list[bytes]] = [[] for _ in self._decoders]
        owners, begun = self._owners, self._begun
        for body in messages:
            kind = body[0]
            if kind in _OF_ONE_TABLE:
                for place in owners[body[1:5]]:
                    if place not in begun:
                        begun.add(place)
                        parts[place].append(self._begin)
                    parts[place].append(body)
            elif kind == _BEGIN:
                self._begin = body
                begun.clear()
            elif kind == _RELATION:
                # A table may have other columns from here on: what came before is decoded by the old ones.
                yield from self._decode(parts)
                self._learn(body)
            elif kind == _TRUNCATE:
                truncated = {place for number in _list_truncated(body) for place in owners[number]}
                for place in sorted(truncated):
                    parts[place] += [body] if place in begun else [self._begin, body]
                begun |= truncated
        yield from self._decode(parts)

    def _decode(self, parts: list[list[bytes]]) -> Iterator[tuple[int, Sequence[bytes]]]:
        for place, some in enumerate(parts):
            if some and (rows := self._decoders[place].rows(some)):
                yield place, rows
            parts[place] = []

    def _learn(self, body: bytes) -> None:
        number = int.from_bytes(body[1:5], "big")
        for decoder in self._decoders:
            decoder.rows([body])
        self._owners[body[1:5]] = [place for place, each in enumerate(self._decoders) if each.has_table(number)]


def _is_plain(body: bytes) -> bool:
    """Whether a message, of which the beginning is enough, is an insert, a delete, or an update without an old row."""
    kind = body[0]
    return kind in _ONE_ROW or (kind == _UPDATE and body[5] == _NEW)


def _read_table(body: bytes) -> int:
    """Return the number of the table that a message is of."""
    return int.from_bytes(body[1:5], "big")


def _list_truncated(body: bytes) -> list[bytes]:
    """Return the numbers of the tables that a message says were truncated, as their bytes."""
    number = int.from_bytes(body[1:5], "big")
    return [body[at : at + 4] for at in range(6, 6 + 4 * number, 4)]


def fields(body: bytes, at: int) -> tuple[list[Field], int]:
    """Return the values of a row that begins at a place, and where it ends."""
    number, at = int.from_bytes(body[at : at + 2], "big"), at + 2
    values: list[Field] = []
    for _ in range(number):
        kind = body[at]
        at += 1
        if kind == _TEXT:
            end = at + 4 + int.from_bytes(body[at : at + 4], "big")
            values.append(body[at:end])
            at = end
        elif kind == _NULL:
            values.append(NULL)
        elif kind == _UNCHANGED:
            values.append(None)
        else:
            raise RangeFailed(f"The log has a value of the kind {chr(kind)!r}, which was not asked for.")
    return values, at


def _text(body: bytes, at: int) -> tuple[str, int]:
    end = body.index(0, at)
    return body[at:end].decode(), end + 1
