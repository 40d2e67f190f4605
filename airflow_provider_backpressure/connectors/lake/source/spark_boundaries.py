"""Boundaries of ranges over a column, from its quantiles as Spark finds them."""

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from airflow_provider_backpressure.connectors.lake.source.spark_sql_names import quote
from airflow_provider_backpressure.connectors.lake.source.spark_types import KeyKind
from airflow_provider_backpressure.core.snapshot.bounds import Bounds, KeyBounds, NullBounds, Values
from airflow_provider_backpressure.exceptions import InvalidDeclaration

log = logging.getLogger(__name__)

Ask = Callable[[str], list[Any]]
"""Runs a statement and returns its rows."""
MOST_BOUNDARIES = 20_000
"""Most that one statement asks for."""
_FINE, _MOST_FINE = 50, 1_000_000
"""How many times finer quantiles are than the ranges, and the finest."""
_SAMPLED, _MOST_SAMPLED = 200, 200_000
"""Texts that are sampled for each range, and in all."""
_LONGEST = 500
"""Most characters of a boundary: it is kept in ledger and target for each range."""
_SEED = 4_271


@dataclass(frozen=True, kw_only=True)
class CutColumn:
    """The column by which a table is cut, and the rows of which it is asked."""

    name: str
    kind: KeyKind
    rows: str
    """``FROM``, the table at its version, and the declared condition."""
    ask: Ask

    def list_boundaries(self, bounds: KeyBounds, *, parts: int) -> Iterator[Values]:
        """Yield boundaries within the bounds, rising, so that about as many rows lie between each two.

        Fewer where one value has more rows than that: what one value holds is never cut.
        """
        if parts < 2:
            return
        last = None
        for text in self._find_values(bounds, min(parts, MOST_BOUNDARIES + 1)):
            value = self._read(text)
            if value is None or (last is not None and value <= last) or not self._is_within(bounds, value):
                continue
            last = value
            yield (text,)

    def measure(self, bounds: KeyBounds | None = None) -> tuple[int, int, str | None]:
        """Return how many rows there are, how many have a value, and the smallest value."""
        name = quote(self.name)
        counts = f"count(*) AS n, count({name}) AS filled, CAST(min({name}) AS STRING) AS low"
        (row,) = self.ask(f"SELECT {counts} {self.select(bounds)}")
        return row["n"], row["filled"], row["low"]

    def select(self, bounds: Bounds | None) -> str:
        """Return ``FROM`` and ``WHERE`` of the rows of these bounds."""
        return " AND ".join([self.rows, *list_conditions(bounds, lambda name: self.kind)])

    def _find_values(self, bounds: KeyBounds, parts: int) -> list[str]:
        name, rows = quote(self.name), self.select(bounds)
        if self.kind.is_text:
            return self._sample_texts(rows, parts)
        shares = ", ".join(f"{number / parts:.8f}D" for number in range(1, parts))
        fine = min(_MOST_FINE, max(10_000, _FINE * parts))
        found = self.ask(
            f"SELECT transform(percentile_approx({name}, array({shares}), {fine}), v -> CAST(v AS STRING)) AS v {rows}"
        )
        return [f"{text}{self.kind.suffix}" for text in found[0]["v"] or () if text is not None]

    def _sample_texts(self, rows: str, parts: int) -> list[str]:
        name = quote(self.name)
        (counted,) = self.ask(f"SELECT count({name}) AS n {rows}")
        share = min(1.0, min(_MOST_SAMPLED, _SAMPLED * parts) / max(1, counted["n"]))
        sampled = f"SELECT {name} AS v {rows}"
        kept = f"v IS NOT NULL AND rand({_SEED}) < {share:.10f}D"
        found = self.ask(f"SELECT v FROM ({sampled}) WHERE {kept}")  # noqa: S608
        ordered = sorted((row["v"] for row in found), key=self.kind.order)
        return [ordered[math.floor(len(ordered) * number / parts)] for number in range(1, parts)] if ordered else []

    def _read(self, text: str) -> Any:
        """Return the value of a boundary; ``None`` for a text that cannot be one."""
        if "\x00" in text or len(text) > _LONGEST:
            return None
        try:
            return self.kind.order(text)
        except ValueError:
            # A year beyond 9999, which no plan can name, or a number beyond its type.
            return None

    def _is_within(self, bounds: KeyBounds, value: Any) -> bool:
        start, end = bounds.start, bounds.end
        return (start is None or value > self.kind.order(start[0])) and (end is None or value < self.kind.order(end[0]))


def list_conditions(bounds: Bounds | None, find_kind: Callable[[str], KeyKind]) -> list[str]:
    """Return the conditions of bounds in SQL; :class:`InvalidDeclaration` for bounds of another kind of source."""
    match bounds:
        case None:
            return []
        case NullBounds():
            return [f"{quote(bounds.column)} IS NULL"]
        case KeyBounds() if len(bounds.columns) < 2:
            ends = (("<=", bounds.start), (">", bounds.end))
            return [
                f"{find_kind(bounds.columns[0]).literal(end[0])} {sign} {quote(bounds.columns[0])}"
                for sign, end in ends
                if end is not None
            ]
    raise InvalidDeclaration(f"Tables of Spark's catalogs are not read by {bounds}.")
