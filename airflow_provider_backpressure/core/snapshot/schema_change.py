"""What becomes of a plan when the source's columns change."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from airflow_provider_backpressure.core.config import NewColumn
from airflow_provider_backpressure.core.snapshot.plan import Plan, Snapshot
from airflow_provider_backpressure.core.snapshot.spark_messages import (
    Column,
)
from airflow_provider_backpressure.exceptions import RESTART, SourceRefused


@dataclass(frozen=True, kw_only=True)
class SchemaChange:
    """How columns of now differ from those of before."""

    before: tuple[Column, ...]
    now: tuple[Column, ...]

    @property
    def added(self) -> tuple[Column, ...]:
        """Columns that are new."""
        known = {column.name for column in self.before}
        return tuple(column for column in self.now if column.name not in known)

    @property
    def gone(self) -> list[str]:
        """Columns that are no longer there, in words."""
        now = {column.name for column in self.now}
        return [f"column {column.name} is gone" for column in self.before if column.name not in now]

    @property
    def others(self) -> list[str]:
        """What else has changed, in words."""
        now = {column.name: column for column in self.now}
        gone = self.gone
        retyped = [
            f"column {column.name} was {column.type} and is {now[column.name].type}"
            for column in self.before
            if column.name in now and now[column.name].type != column.type
        ]
        kept = [column.name for column in self.now if column.name in {each.name for each in self.before}]
        moved = not gone and not retyped and kept != [column.name for column in self.before]
        return [*gone, *retyped, *(["its columns come in another order"] if moved else [])]

    def check_logged(self, snapshot: Snapshot, plan_id: str) -> None:
        """Raise ``SourceRefused`` where rows got a value of a new column that is in no log."""
        names = [column.name for column in self.added if column.name in snapshot.defaults]
        if names:
            raise SourceRefused(
                f"{snapshot.source_identity} has changed since plan {plan_id}: column {', '.join(names)} was added "
                f"with a default, which rows have that nobody has changed. What is committed stays; {RESTART}."
            )

    def check_shared(self, identity: str, plan_id: str) -> None:
        """Raise ``SourceRefused`` for a column that was added to a table whose windows are those of several tables."""
        if self.added:
            names = ", ".join(column.name for column in self.added)
            raise SourceRefused(
                f"{identity} has changed since plan {plan_id}: column {names} was added, and windows of a log that "
                "tables share bring no new column. What is committed stays; leave it out with columns=, or add it to "
                f"the target and {RESTART}."
            )

    def check_gone(self, identity: str, plan_id: str) -> None:
        """Raise ``SourceRefused`` where a column is gone: a target that still has it would keep values of before.

        Of a column that came or has another type the target itself says whether it takes it.
        """
        if self.gone:
            raise SourceRefused(
                f"{identity} has changed since plan {plan_id}: {'; '.join(self.gone)}. What is committed stays; "
                f"{RESTART}."
            )

    def check(self, identity: str, plan_id: str, policy: NewColumn) -> None:
        """Raise ``SourceRefused`` for what the policy does not let pass; nothing that is committed is lost by it."""
        strict = [column.name for column in self.added if not column.nullable]
        since = f"{identity} has changed since plan {plan_id}"
        if self.others or strict:
            what = [*self.others, *(f"column {name}, which may not be NULL, was added" for name in strict)]
            raise SourceRefused(f"{since}: {'; '.join(what)}. What is committed stays; {RESTART}.")
        if self.added and policy is NewColumn.STOP:
            names = ", ".join(column.name for column in self.added)
            raise SourceRefused(
                f"{since}: column {names} was added. What is committed stays; set on_new_column='add' to bring it from "
                f"the next plan on, leave it out with columns=, or {RESTART}."
            )


def check_columns(plan: Plan, types: Mapping[str, str], identity: str) -> None:
    """Raise ``SourceRefused`` where a column of a plan is gone or of another type; one read as text may be of any."""
    now = [
        replace(column, type=column.type if column.type == "text" else types[column.name])
        for column in plan.read.columns
        if column.name in types
    ]
    SchemaChange(before=plan.read.columns, now=tuple(now)).check(identity, plan.plan_id, NewColumn.STOP)


def keep_planned_columns(snapshot: Snapshot, plan: Plan, policy: NewColumn) -> Snapshot:
    """Return what a plan that is not complete continues with: its own columns, whatever was added since."""
    change, identity = SchemaChange(before=plan.read.columns, now=snapshot.columns), snapshot.source_identity
    change.check(identity, plan.plan_id, NewColumn.ADD if plan.stream else policy)
    if plan.stream and policy is NewColumn.STOP:
        change.check_shared(identity, plan.plan_id)
    return replace(snapshot, columns=plan.read.columns)
