"""How a table is stored: what a statement leaves behind that changes rows past snapshots and past the log."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from airflow_provider_backpressure.exceptions import RESTART, SourceRefused


@dataclass(frozen=True, kw_only=True)
class StoredColumn:
    """A column as the catalogue has it."""

    name: str
    number: int
    """Never given twice: a column of the same name with another number is another column. 0 where none is known."""
    version: str
    """Changes whenever a statement alters the column."""
    filled: bool
    """Rows from before the column have a value that nobody wrote: the default of the moment when it was added."""
    generated: bool = False
    """The table makes its values, and the log may leave them out."""


@dataclass(frozen=True, kw_only=True)
class TableStorage:
    """The files of a table and its columns at one moment, and the statement that keeps both as they are."""

    table: str
    lock: str
    """Locks everything that a read of the table touches, until the transaction ends. It conflicts with no writer."""
    relations: tuple[tuple[int, int], ...]
    """Number and file of everything that is read: the table, its partitions and children; 0: it has no file. Empty
    where files do not matter."""
    columns: tuple[StoredColumn, ...] = ()
    """Of the table itself; empty in plans of earlier releases."""
    keys: tuple[int, ...] = ()
    """Numbers of the unique indexes by which the log may identify rows."""
    number: int | None = None
    """The table's own; ``None`` for a view, which may be made again over the same rows, and in earlier releases."""
    highest: int | None = None
    """Highest number that a column ever had, dropped ones included; ``None`` in plans of earlier releases."""
    dropped: tuple[int, ...] | None = None
    """Numbers of the columns that were dropped by then; ``None`` in plans of earlier releases."""
    dropped_lately: tuple[int, ...] = ()
    """Those of them that the log may still show, see :meth:`mark_changed_since`."""
    not_null: tuple[str, ...] = ()
    """Columns of the bounds, the key and the increments that no row lacked when the plan chose them, before any lock:
    no range has rows without them. Empty in plans of earlier releases."""
    highest_before: int | None = None
    """Columns with higher numbers were added since the moment before; ``None`` where that is not known."""

    def column(self, name: str) -> StoredColumn | None:
        """Return the column of this name."""
        return next((column for column in self.columns if column.name == name), None)

    def with_columns(self, columns: Iterable[StoredColumn]) -> "TableStorage":
        """Return it with these columns in place of those of the same names."""
        new = {column.name: column for column in columns}
        kept = [column for column in self.columns if column.name not in new]
        numbers = [column.number for column in new.values()]
        highest = None if self.highest is None else max(self.highest, *numbers)
        return replace(self, columns=(*kept, *new.values()), highest=highest)

    def mark_changed_since(self, before: "TableStorage | None") -> "TableStorage":
        """Return it with what is known of columns that were dropped or added since the moment ``before``."""
        known = before.dropped if before is not None else None
        return replace(
            self,
            dropped_lately=tuple(sorted({*(self.dropped or ())} - {*(known or ())})),
            highest_before=before.highest if before is not None else None,
        )

    def find_misplaced(self, logged: Sequence[str], names: Iterable[str]) -> list[str]:
        """Return which of these columns had another column's place in the log: names are lent and returned.

        ``logged``: the names of all columns as the log has them, of a time after the moment before and up to this one.
        The log has columns in the order of their numbers. Those that are there now with a lower number than another
        one in the log were there then, and so were those that were there at the moment before. Nothing is known in
        plans of earlier releases.
        """
        if self.dropped is None:
            return []
        there = [column.number for column in self.columns if not column.generated or column.name in logged]
        planned = [column for column in map(self.column, names) if column is not None and column.name in logged]
        misplaced, places, number = list[str](), [-1], 0
        for column in sorted(planned, key=lambda column: column.number):
            here = logged.index(column.name)
            least = sum(number < other < column.number for other in there)
            most = least + sum(number < other < column.number for other in self.dropped_lately)
            number = column.number
            if any(least <= here - place - 1 <= most for place in places):
                places = [here]
            else:
                misplaced.append(column.name)
                # Those behind it may be in their places all the same: counted from here, or from where it should be.
                places = [here, *(place + 1 + least for place in places)]
        if planned and not misplaced and not self._may_follow(len(logged) - places[0] - 1, number, there):
            # A column in front is missing or too many, so the last one is not where its name is.
            misplaced = [max(planned, key=lambda column: column.number).name]
        return misplaced

    def _may_follow(self, count: int, number: int, there: Sequence[int]) -> bool:
        """Whether the log may have had so many columns behind the one of this number."""
        behind = [other for other in (*there, *self.dropped_lately) if other > number]
        known = 0 if self.highest_before is None else self.highest_before
        least = sum(number < other <= known for other in there)
        return least <= count <= len(behind)


def check_kept(before: TableStorage, now: TableStorage, names: Iterable[str], *, plan_id: str) -> None:
    """Raise ``SourceRefused`` where rows may have got values of these columns that are not in the log.

    Files that changed alone do not matter: TRUNCATE is in the log, and VACUUM FULL or CLUSTER changes no value.
    Columns that changed alone do not matter either: no row was written. Both at once are what ALTER TABLE leaves behind
    where it rewrites rows.
    """
    against = []
    if {number for number, _ in before.relations} != {number for number, _ in now.relations}:
        against.append("it is another table, or others inherit from it now")
    if not against and not set(before.keys) <= set(now.keys):
        against.append("a unique key was dropped or created again, and rows may have shared it meanwhile")
    kept = [(old, now.column(old.name)) for old in map(before.column, names) if old is not None]
    against += [f"column {old.name} is gone" for old, new in kept if new is None]
    against += [
        f"column {old.name} is another one, which was added or renamed"
        for old, new in kept
        if new is not None and new.number != old.number
    ]
    if not against and before.relations != now.relations:
        altered = [old.name for old, new in kept if new is not None and new.version != old.version]
        against += [f"column {name} was altered and the table was rewritten" for name in altered]
    if against:
        raise SourceRefused(_sentence(now.table, plan_id, against))


def find_exchanged(before: TableStorage, now: TableStorage, names: Iterable[str]) -> list[str]:
    """Return what of a table is another one under its name, as parts of a sentence: rows of it were never compared."""
    if None in (before.number, now.number):
        return []
    if before.number != now.number:
        return ["it is another table, dropped and made again or renamed"]
    kept = [(old, now.column(old.name)) for old in map(before.column, names) if old is not None]
    return [
        f"column {old.name} is another one, which was added or renamed"
        for old, new in kept
        if new is not None and new.number != old.number
    ]


def check_added(before: TableStorage | None, now: TableStorage, names: Iterable[str], *, plan_id: str) -> None:
    """Raise ``SourceRefused`` where rows of before may have values of an added column that are not in the log.

    ``before``: at the plan before; ``None`` where that did not look.
    """
    found = [(name, now.column(name)) for name in names]
    against = [
        f"column {name} was added with a default" for name, column in found if column is not None and column.filled
    ]
    against += [f"column {name} is gone again" for name, column in found if column is None]
    if not against and before is not None and before.relations != now.relations:
        against = [f"column {name} was added and the table was rewritten" for name, _ in found]
    if not against and before is not None and before.highest is not None:
        # A gap is a column that was added and dropped meanwhile: the log shows its values under a name that may be
        # that of a later one.
        numbers = sorted(column.number for _, column in found if column is not None)
        if numbers != list(range(before.highest + 1, before.highest + 1 + len(numbers))):
            against = [f"column {name} was added, and another one was added and dropped" for name, _ in found]
    if not against and before is not None:
        passed = [name for name, _ in found if before.column(name) is not None]
        against = [f"column {name} was there already, and changes of it were left out" for name in passed]
    if against:
        raise SourceRefused(_sentence(now.table, plan_id, against))


def _sentence(table: str, plan_id: str, against: list[str]) -> str:
    return (
        f"{table} has changed since plan {plan_id}: {', '.join(against)}, and the log does not show which values its "
        f"rows got by that. What is committed stays; {RESTART}."
    )
