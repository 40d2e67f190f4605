"""What is attacked, and what must be true of it: its rows as both sides show them, taken at the moments that count."""

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from airflow_provider_backpressure.core.snapshot.plan import Plan
from tests.support.composed import Composed


class Different(Exception):
    """Source and target differ, and the product has not said so."""


class Subject(Protocol):
    """A source, a target, and what one knows of both."""

    system: str
    draw: random.Random
    history: list[str]
    """How it was made."""
    restarts: bool
    """Whether a later run only does something when it is told to begin again."""

    def composed(self) -> Composed:
        """Make source and target."""
        ...

    def change(self, *, define: bool, between: bool) -> str:
        """Change something at random and return what; nothing where the source does not allow it now.

        ``define``: not the rows but what they are in. ``between``: no range is being read.
        """
        ...

    def empty_target(self) -> str:
        """Empty the target where the mode asks for that before a restart; return what was done."""
        ...

    def capture(self, plan_id: str) -> None:
        """Remember what there is to be read by this plan."""
        ...

    def check_finished(self, plan: Plan) -> None:
        """Raise ``Different`` where a run ended as if well, and the target does not hold what it must."""
        ...

    def check_settled(self, plan_id: str) -> None:
        """Raise ``Different`` where nothing is left to do, and the target does not hold what it must."""
        ...


Row = tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class Content:
    """Rows of a table at a moment."""

    names: tuple[str, ...]
    rows: "Counter[Row]"

    @classmethod
    def of(cls, names: Sequence[str], rows: Sequence[Row]) -> "Content":
        """Return these rows."""
        return cls(names=tuple(names), rows=Counter(map(tuple, rows)))

    def of_columns(self, names: Sequence[str]) -> "Counter[Row] | None":
        """Return the rows with these columns only; ``None`` where there is no such column."""
        if not set(names) <= set(self.names):
            return None
        places = [self.names.index(name) for name in names]
        found: Counter[Row] = Counter()
        for row, times in self.rows.items():
            found[tuple(row[place] for place in places)] += times
        return found


@dataclass(kw_only=True)
class TableOracle:
    """Knows which contents a plan may have brought."""

    mode: str
    consistency: str
    captured: dict[str, list[Content]] = field(default_factory=lambda: defaultdict(list))
    """By plan: what was there when it was made, and at each of its snapshots."""

    def check_finished(self, plan: Plan, target: Content) -> None:
        """See ``Subject``."""
        if self.consistency == "catch_up":
            return
        names = [column.name for column in plan.read.columns]
        found = target.of_columns(names)
        if found is None:
            raise Different(f"the target has {target.names}, the plan {names}")
        differences = [self._difference(content, names, found) for content in self.captured[plan.plan_id]]
        if differences and all(differences):
            raise Different(f"finished, {differences[-1]} (of {len(differences)} moments)")

    def check_settled(self, source: Content, target: Content) -> None:
        """See ``Subject``."""
        if self.consistency != "catch_up":
            return
        if not set(source.names) <= set(target.names):
            raise Different(f"source has {source.names}, target {target.names}")
        found = target.of_columns(source.names)
        assert found is not None
        told = _told(source.rows, found)
        if told:
            raise Different(f"settled, {told}")

    def _difference(self, content: Content, names: Sequence[str], found: "Counter[Row]") -> str:
        wanted = content.of_columns(names)
        if wanted is None:
            return f"the source had {content.names}, the plan {names}"
        if self.mode != "upsert":
            return _told(wanted, found)
        earlier: Counter[Row] = Counter()
        for contents in self.captured.values():
            for each in contents:
                rows = each.of_columns(names)
                if rows is None:
                    return _told(wanted, found & wanted)
                earlier |= rows
        return _told(wanted, found - (found - wanted & earlier))


def _told(wanted: "Counter[Row]", found: "Counter[Row]") -> str:
    """Return how two multisets differ, or nothing."""
    missing, surplus = wanted - found, found - wanted
    if not missing and not surplus:
        return ""
    samples = [str(row)[:160] for rows in (missing, surplus) for row in list(rows)[:2]]
    return f"{missing.total()} rows missing, {surplus.total()} surplus of {wanted.total()}: {'; '.join(samples)}"
