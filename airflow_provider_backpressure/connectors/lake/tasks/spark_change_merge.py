"""The last change of each key of a window, as a frame that one MERGE applies.

A value that the log leaves out since it did not change is taken from an earlier change of the same row in the window;
otherwise it stays as it is in the target. A row whose key changed takes it from the row of its old key. Where none of
these is known to have it, the row is to be asked for again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from pyspark.sql import functions
from pyspark.sql.window import Window

from airflow_provider_backpressure.connectors.lake.tasks.change_batches import ASK, KEPT, OP, SEQ
from airflow_provider_backpressure.core.snapshot.spark_messages import WriteSpec
from airflow_provider_backpressure.spark.change_rows import DELETE, MOVE, TRUNCATE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

UNKNOWN = "backpressure_unknown"
"""Whether a value of the row is known nowhere here."""
_STAYS = "backpressure_stays_"
"""Beginning of the names of columns that say whether the target's own value stays."""
_LAST, _ORIGIN, _THERE = "backpressure_last", "backpressure_origin_", "backpressure_there"
_OLD, _VALUE, _KNOWN = "backpressure_old_", "backpressure_value_", "backpressure_known_"


@dataclass(frozen=True, kw_only=True)
class ChangeFold:
    """One window, folded by key. ``changes``: as :class:`..change_batches.ChangeBatches` made them."""

    write: WriteSpec
    kept: tuple[int, ...]
    """Numbers of columns that some change leaves out."""
    truncated: int
    """Number of the last change that emptied the table; -1: none did."""

    moved: bool = False
    """Whether rows whose key changed are among those that leave something out."""
    once: bool = False
    """Whether every key comes once."""
    spans: Sequence[tuple[int, int, int]] = ()
    """Numbers of columns of the key, each with the least and the greatest value that comes."""

    def fold(self, changes: "DataFrame", trusted: "DataFrame | None" = None) -> "DataFrame":
        """Return a row for each key: :data:`OP`, :data:`UNKNOWN`, the columns by their names, and which values stay.

        ``trusted``: the target's rows, where they are the source's as they were when the window begins. Only then a
        row under an old key is the one that moved: otherwise it may be another one, of a later time.
        """
        rows = changes.where((quote(SEQ) > self.truncated) & (quote(OP) != TRUNCATE))
        if self.moved:
            rows = self._follow_moves(rows, trusted if self.truncated < 0 else None)
        if self.once and not self.kept:
            return rows.select(*self._list_columns())
        # They come from one task: otherwise that one partition would be sorted and folded by one task, too.
        key = [quote(f"_{place}") for place in self._key]
        rows, by_key = rows.repartition(*key), Window.partitionBy(*key)
        if not self.kept:
            newest = functions.row_number().over(by_key.orderBy(quote(SEQ).desc()))
            last = rows.withColumn(_LAST, newest).where(quote(_LAST) == 1)
        else:
            last = self._find_origins(rows).withColumn(_LAST, functions.max(quote(SEQ)).over(by_key))
            last = last.where(quote(SEQ) == quote(_LAST))
        return last.select(*self._list_columns())

    def select_asked(self, folded: "DataFrame", there: "DataFrame") -> "DataFrame":
        """Return the rows with :data:`UNKNOWN` also where a value is to stay and the target has no such row.

        ``there``: the target's rows. It is looked at however far it is: otherwise NULL would be inserted there.
        """
        keys = there.select(*map(quote, self.write.key)).withColumn(_THERE, functions.lit(True))
        found = folded.join(keys, list(self.write.key), "left")
        stays = reduce(or_, (quote(f"{_STAYS}{number}") for number in self.kept))
        missing = stays & quote(_THERE).isNull()
        return found.withColumn(UNKNOWN, quote(UNKNOWN) | missing).drop(_THERE)

    def replace_asked(self, folded: "DataFrame", again: "DataFrame") -> "DataFrame":
        """Return the rows with those that were asked for in their place; what the source has no more is deleted.

        ``again``: as :class:`..change_batches.ChangeBatches` made them.
        """
        found = again.select(*self._list_columns(whole=True))
        keys = found.select(*map(quote, self.write.key))
        gone = functions.when(quote(UNKNOWN), DELETE).otherwise(quote(OP)).cast("short")
        rest = folded.withColumn(OP, gone).withColumn(UNKNOWN, functions.lit(False))
        return rest.join(keys, list(self.write.key), "left_anti").unionByName(found)

    def make_merge(self, target: str, view: str) -> str:
        """Return the statement that applies the rows of a view to a target."""
        names = [column.name for column in self.write.columns]
        same = " AND ".join(f"t.{tick(name)} = s.{tick(name)}" for name in self.write.key)
        if self.truncated < 0:
            # Known before the statement runs, so that files of other keys are not read.
            same += "".join(f" AND t.{tick(names[n])} BETWEEN {low} AND {high}" for n, low, high in self.spans)
        every = ", ".join(f"t.{tick(name)} = {self._choose(number)}" for number, name in enumerate(names))
        columns, values = (", ".join(f"{prefix}{tick(name)}" for name in names) for prefix in ("", "s."))
        clauses = [
            f"WHEN MATCHED AND s.{OP} = {DELETE} THEN DELETE",
            f"WHEN MATCHED THEN UPDATE SET {every}",
            f"WHEN NOT MATCHED AND s.{OP} <> {DELETE} THEN INSERT ({columns}) VALUES ({values})",  # noqa: S608
            *(["WHEN NOT MATCHED BY SOURCE THEN DELETE"] if self.truncated >= 0 else []),
        ]
        return f"MERGE INTO {target} AS t USING {tick(view)} AS s ON {same} {' '.join(clauses)}"

    def _choose(self, number: int) -> str:
        name = tick(self.write.columns[number].name)
        if number not in self.kept:
            return f"s.{name}"
        return f"CASE WHEN s.{_STAYS}{number} THEN t.{name} ELSE s.{name} END"

    @property
    def _key(self) -> list[int]:
        order = [column.name for column in self.write.columns]
        return [order.index(name) for name in self.write.key]

    def _follow_moves(self, rows: "DataFrame", trusted: "DataFrame | None") -> "DataFrame":
        """Fill in what rows whose key changed had under the old one: in the window, otherwise in the target.

        The delete of the old key has the number before the move's. A row that moved twice in the window is left.
        """
        moves = rows.where((quote(OP) == MOVE) & quote(KEPT).isNotNull()).select(SEQ)
        before = self._find_origins(rows, last=-1).where(quote(OP) == DELETE)
        found = moves.join(before.withColumn(SEQ, quote(SEQ) + 1).select(SEQ, *self._list_old()), SEQ)
        old = [f"{_OLD}{place}" for place in self._key]
        if trusted is not None:
            names = [column.name for column in self.write.columns]
            keys = [quote(names[place]).alias(f"{_OLD}{place}") for place in self._key]
            values = [quote(names[number]).alias(f"{_VALUE}{number}") for number in self.kept]
            there = trusted.select(*keys, *values, functions.lit(True).alias(_THERE))
            found = found.join(there, old, "left")
        known = [self._choose_old(number, there=trusted is not None) for number in self.kept]
        rows = rows.join(found.select(SEQ, *known), SEQ, "left")
        left = []
        for number in self.kept:
            told = quote(f"{_KNOWN}{number}")
            is_known = is_kept(number) & functions.coalesce(told["known"], functions.lit(False))
            rows = rows.withColumn(f"_{number}", functions.when(is_known, told["value"]).otherwise(quote(f"_{number}")))
            left.append(functions.when(is_kept(number) & ~is_known, functions.lit(number).cast("short")))
        return rows.withColumn(KEPT, functions.array_compact(functions.array(*left)))

    def _list_old(self) -> "Iterable[Column]":
        """Yield the key of a row that was deleted, and what is known of its values before."""
        for place in self._key:
            yield quote(f"_{place}").alias(f"{_OLD}{place}")
        for number in self.kept:
            yield quote(f"{_ORIGIN}{number}")

    def _choose_old(self, number: int, *, there: bool) -> "Column":
        """Return whether a value under the old key is known, and the value."""
        origin = quote(f"{_ORIGIN}{number}")
        known, value = functions.coalesce(origin["known"], functions.lit(False)), origin["value"]
        if there:
            known = functions.when(origin.isNull(), quote(_THERE).isNotNull()).otherwise(known)
            value = functions.when(origin.isNull(), quote(f"{_VALUE}{number}")).otherwise(value)
        return functions.struct(known.alias("known"), value.alias("value")).alias(f"{_KNOWN}{number}")

    def _find_origins(self, rows: "DataFrame", *, last: int = Window.currentRow) -> "DataFrame":
        """Add to each change, for each column that is kept, the latest change up to it that begins or knows a value.

        That is a delete, a move from another key, or one that holds the value: nothing before it is of the same row.
        ``last``: up to which change, counted from each.
        """
        up_to = (
            Window.partitionBy(*(quote(f"_{place}") for place in self._key))
            .orderBy(quote(SEQ))
            .rowsBetween(Window.unboundedPreceding, last)
        )
        for number in self.kept:
            holds = ~is_kept(number) & (quote(OP) != DELETE)
            begins = holds | quote(OP).isin(DELETE, MOVE)
            value = functions.struct(holds.alias("known"), quote(f"_{number}").alias("value"))
            found = functions.last(functions.when(begins, value), ignorenulls=True)
            rows = rows.withColumn(f"{_ORIGIN}{number}", found.over(up_to))
        return rows

    def _list_columns(self, *, whole: bool = False) -> "Iterable[Column]":
        """Yield the columns of a folded row. ``whole``: of a row that was read again, which keeps nothing."""
        kept = () if whole else self.kept
        for number, column in enumerate(self.write.columns):
            own = quote(f"_{number}")
            if number in kept:
                own = functions.when(is_kept(number), quote(f"{_ORIGIN}{number}")["value"]).otherwise(own)
            yield own.alias(column.name)
        yield quote(OP)
        yield quote(ASK)
        lost = [self._is_lost(number) for number in kept]
        yield reduce(or_, lost, functions.lit(False)).alias(UNKNOWN)
        for number in self.kept:
            stays = functions.lit(False) if whole else self._may_stay(number)
            yield stays.alias(f"{_STAYS}{number}")

    def _is_lost(self, number: int) -> "Column":
        """Whether a value is left out by the last change, and by the one with which its row began here."""
        origin = quote(f"{_ORIGIN}{number}")
        known = functions.coalesce(origin["known"], functions.lit(self.truncated < 0))
        return is_kept(number) & (quote(OP) != DELETE) & ~known

    def _may_stay(self, number: int) -> "Column":
        """Whether no change of the window holds a value, so that the target's row does, which the table still has."""
        if self.truncated >= 0:
            return functions.lit(False)
        return is_kept(number) & (quote(OP) != DELETE) & quote(f"{_ORIGIN}{number}").isNull()


def is_kept(number: int) -> "Column":
    """Whether a change leaves out a column."""
    contains = functions.array_contains(quote(KEPT), functions.lit(number).cast("short"))
    return functions.coalesce(contains, functions.lit(False))


def list_keys(asked: "DataFrame") -> Sequence[Sequence[str]]:
    """Return the texts of the keys of rows with :data:`UNKNOWN`."""
    return [list(row[0]) for row in asked.where(quote(UNKNOWN)).select(ASK).collect()]


def quote(name: str) -> "Column":
    """Return a column by its name, whatever is in that."""
    return functions.col(tick(name))


def tick(name: str) -> str:
    """Return a name as SQL takes it."""
    return f"`{name}`"
