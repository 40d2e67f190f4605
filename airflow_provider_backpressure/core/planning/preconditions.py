"""What a plan is refused for, before the first row moves."""

import logging
import re
from collections.abc import Callable, Iterable, Sequence

from airflow_provider_backpressure.core.config import Consistency, Mode
from airflow_provider_backpressure.core.connector_kinds import REPLAYED, TYPED_AS_FILES
from airflow_provider_backpressure.core.planning.catch_up_windows import SUFFIX
from airflow_provider_backpressure.core.ports import Source
from airflow_provider_backpressure.core.ports.ledger import LedgerReader, every_range, list_submitted
from airflow_provider_backpressure.core.ports.sink import FencesSlices, PlanRow, Sink
from airflow_provider_backpressure.core.snapshot.bounds import Bounds, FileBounds
from airflow_provider_backpressure.core.snapshot.plan import Plan, Snapshot
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, ReadSpec, WriteSpec
from airflow_provider_backpressure.core.snapshot.table_alterations import find_exchanged
from airflow_provider_backpressure.exceptions import (
    RESTART,
    InvalidDeclaration,
    LedgerRefused,
    SinkRefused,
    SourceRefused,
)

log = logging.getLogger(__name__)

_BY_VALUE = (
    r"smallint|integer|bigint|boolean|date|timestamp(\(\d+\))? with(out)? time zone|bytea|text"
    r"|character varying(\(\d+\))?|numeric\(([12]?\d|3[0-8]),\d+\)"
)
"""Types of which files hold the value, or the text that is the value. Not floats: 0 equals -0 in other bits."""
_ONE_SENT = re.compile(_BY_VALUE)
"""Types of which a value has one form in files, whatever text a topic's records write it in."""
_ONE_PRINTED = re.compile(
    rf"({_BY_VALUE}|numeric\(\d+,-?\d+\)|character\(\d+\)|name|\"char\"|uuid|inet|cidr|macaddr8?|money|oid|xid8|pg_lsn"
    r"|time(\(\d+\))? with(out)? time zone|bit( varying)?(\(\d+\))?|(int[48]|date|ts|tstz)(multi)?range)(\[\])?"
)
"""Types of which a server prints equal values as one text."""
_OTHER_ORDER = re.compile(r"numeric(?!\(([12]?\d|3[0-8]),\d+\)).*|bytea|character\(\d+\)")
"""Types whose values files keep as text or bytes that are not ordered as a server orders the values."""
_BY_BYTES = re.compile(r"C|libc C\.utf-?8( .*)?|.+_bin", re.IGNORECASE)
"""Collations of PostgreSQL and MySQL that order text as its bytes in UTF-8 are ordered, which is the order in files."""


def check_mode(mode: Mode, source: Source, sink: Sink) -> None:
    """Raise where only new rows would take the place of all rows, and where the sink cannot exchange a range's rows."""
    whole = (Mode.REPLACE, Mode.MIRROR)
    if mode is Mode.MIRROR and mode not in sink.modes:
        raise SinkRefused(
            f"{sink.identity} cannot be mirrored: it does not exchange the rows of a range in one transaction. Use "
            "PostgresSink or SparkTableSink, or copy with mode='replace' where the sink has that."
        )
    if mode in whole and source.increments:
        others = " or ".join(each.value for each in sink.modes if each not in whole)
        raise InvalidDeclaration(
            f"mode={mode.value!r} takes all rows again each time, and this source brings only new rows: "
            f"use {others}, or leave increment_column out where that is what asks for it."
        )


def check_deletes(read: ReadSpec, *, ordered: bool, mode: Mode) -> None:
    """Raise where records that delete rows would be kept as rows."""
    if read.holds_deletes and not ordered:
        raise InvalidDeclaration(
            f"The source's records are change events, of which some delete rows: mode={mode.value!r} would keep those. "
            "Use mode='upsert'."
        )


def check_open_plan(
    plan: Plan, *, mode: Mode, consistency: Consistency | None, is_complete: Callable[[], bool]
) -> None:
    """Raise where an open plan was begun with another mode, or a weaker consistency, than is declared now."""
    changed = f"mode={plan.mode.value!r}" if plan.mode is not mode else ""
    if consistency is Consistency.SNAPSHOT and plan.consistency is Consistency.STATIC:
        changed = f"consistency={plan.consistency.value!r}"
    if changed and not is_complete():
        raise InvalidDeclaration(
            f"Plan {plan.plan_id} of {plan.sink_identity} was begun with {changed} and is not complete: "
            'declare that until it is complete, or trigger the DAG with {"backpressure": "restart"} to plan again.'
        )


def check_consistency(wanted: Consistency | None, plan: Plan) -> None:
    """Raise where a target that follows the log, and one that does not, would have to become each other."""
    wanted = wanted or plan.consistency
    if wanted is not plan.consistency and Consistency.CATCH_UP in (wanted, plan.consistency):
        raise InvalidDeclaration(
            f"The hydration was planned with consistency={plan.consistency.value!r}, not {wanted.value!r}: name "
            'that, or trigger the DAG with {"backpressure": "restart"} to plan again.'
        )


def check_key(snapshot: Snapshot, arriving: Sequence[Column], write: WriteSpec, *, increments: bool) -> None:
    """Raise where one key of the source may be two of the target, or have several rows in no order."""
    if not set(snapshot.versions) <= set(write.key):
        raise SourceRefused(
            f"{write.fence} cannot be upserted by {', '.join(write.key)} from {snapshot.source_identity}: a log, "
            "increments or a lake that has them were appended there, so it may hold several versions of a row, in no "
            "order. Hydrate the lake with mode='upsert' from its upstream first, or use mode='append' here."
        )
    if not increments or snapshot.consistency is Consistency.CATCH_UP:
        return
    by = snapshot.window.column if snapshot.window is not None else None
    rising = next((column for column in arriving if column.name == by), None)
    if rising is not None and write.kind in TYPED_AS_FILES:
        _check_order_in_files(rising, write)
    folded = {column.name for column in write.columns if column.base_type.rpartition(".")[2] == "citext"}
    one = _ONE_SENT if snapshot.consistency is Consistency.OFFSETS else _ONE_PRINTED
    source = {column.name: column for column in snapshot.columns}
    for column in arriving:
        if column.name not in write.key:
            continue
        # A transform leaves text of a type that Spark does not have.
        read = source.get(column.name, column) if column.type == "text" else column
        if column.name in set(snapshot.loose) - folded:
            why = "the source takes different texts for one key"
            way_out = "Give it a collation that compares bytes, or follow the log with consistency='catch_up'"
        elif write.kind in TYPED_AS_FILES and not one.fullmatch(read.base_type) and not read.is_enum:
            why = f"equal values of the type {read.type} may differ in files"
            way_out = "Upsert by another key"
        else:
            continue
        raise SinkRefused(
            f"{write.fence} cannot be upserted by {column.name} in later runs: {why}, so a row would come beside the "
            f"one that it replaces. {way_out}."
        )


def _check_order_in_files(rising: Column, write: WriteSpec) -> None:
    """Raise where files order the values of increments otherwise than the source does."""
    if _OTHER_ORDER.fullmatch(rising.base_type):
        why = f"files keep a {rising.base_type} in another form, which has another order"
        way_out = "Read increments by another column"
    elif rising.collation is not None and not _BY_BYTES.fullmatch(rising.collation):
        why = f"its text is ordered by {rising.collation} in the source and by bytes in files"
        way_out = "Read increments by another column, or give this one a collation that compares bytes"
    else:
        return
    raise SinkRefused(
        f"Increments by {rising.name} cannot be upserted into {write.fence}: {why}, so no later run could be verified. "
        f"{way_out}."
    )


def check_same_key(plan: Plan, write: WriteSpec) -> None:
    """Raise where rows of before were upserted by another key: a row would come beside the one that it replaces."""
    window, appended = plan.read.window, plan.mode is Mode.APPEND and write.kind in TYPED_AS_FILES
    offsets = plan.consistency is Consistency.OFFSETS
    several = plan.versions or (window is not None and (window.after is not None or offsets))
    if write.mode == Mode.UPSERT and appended and several:
        raise InvalidDeclaration(
            f"Rows of {write.fence} were appended, so a key may have several rows there, and an upsert would leave "
            f"them. Use mode='append', or empty the table and {RESTART}."
        )
    if plan.mode is not Mode.UPSERT or write.mode != Mode.UPSERT or set(plan.write.key) == set(write.key):
        return
    before, now = (", ".join(key) for key in (plan.write.key, write.key))
    raise InvalidDeclaration(
        f"Rows of {write.fence} were upserted by the key {before}, not by {now}: a row would come beside the one that "
        f"it replaces. Name {before} as the key of the sink, or {RESTART}."
    )


def check_same_database(plan: Plan, now: ReadSpec) -> None:
    """Raise where the source's address leads to another database than when rows were committed.

    One that was restored from a backup lacks the last of them, and gives their values to other rows.
    """
    here, there = plan.read.place, now.place
    if here is not None and there is not None and not is_same_database(here, there):
        raise SourceRefused(
            f"{plan.source_identity} is in another database than before: it was made again, as when a backup is "
            "restored or a server is upgraded. If it has every row that was committed, unchanged, trigger the DAG with "
            f'{{"backpressure": "same_rows"}}, and otherwise {RESTART}.'
        )


def is_same_database(here: str, there: str) -> bool:
    """Whether two tables are in one database, by their places (``ReadSpec.place``)."""
    return here.rpartition("/")[0] == there.rpartition("/")[0]


def check_same_table(plan: Plan, now: ReadSpec) -> None:
    """Raise where another table or column bears a planned name: of its rows nothing is known.

    Not in another database, where every number is another one: there the source was restored from a dump.
    """
    before, here, there = plan.read, plan.read.place, now.place
    if here is None or there is None or not is_same_database(here, there):
        return
    if before.storage is None or now.storage is None:
        return
    changed = find_exchanged(before.storage, now.storage, [column.name for column in before.columns])
    if changed:
        raise SourceRefused(
            f"{plan.source_identity} has changed since plan {plan.plan_id}: {', '.join(changed)}. What is committed "
            f"stays; {RESTART}."
        )


def check_empty(plan: Plan, sink: Sink) -> None:
    """Raise where a new plan would add its rows to those of others."""
    catches_up = plan.consistency is Consistency.CATCH_UP
    alone = plan.mode is Mode.APPEND or catches_up
    fresh = alone and not plan.increment and (plan.epoch or plan.clears is None)
    if fresh and sink.holds_rows():
        if catches_up:
            raise SinkRefused(
                f"The target {plan.write.target} already holds rows, and catch_up makes it equal to the source: "
                "empty it first."
            )
        raise SinkRefused(
            f"The target {plan.write.target} already holds rows, and a new plan in append mode would add to "
            f"them: {way_out(sink)}."
        )


def warn_other_source(plan: Plan, row: PlanRow | None) -> None:
    """Log a warning where the target holds what another source gave it: two DAGs may write into one by mistake."""
    if row is not None and row.source_identity != plan.source_identity and plan.mode is not Mode.APPEND:
        log.warning(
            "The target %s holds rows of another source, %s: plan %s of %s %s.",
            *(plan.write.target, row.source_identity, plan.plan_id, plan.source_identity),
            "adds to them" if plan.mode is Mode.UPSERT else "takes their place",
        )


def way_out(sink: Sink) -> str:
    """Return what may be done about a target that holds rows, as far as its kind offers it."""
    ways = []
    if Mode.REPLACE in sink.modes:
        ways.append("use mode='replace', which puts the new rows in their place at once")
    if Mode.UPSERT in sink.modes:
        ways.append("mode='upsert'" if ways else "use mode='upsert'")
    return ", or ".join([*ways, "empty it first" if ways else "empty it first, or name another target"])


def check_held(plan: Plan, sink: Sink) -> None:
    """Raise where the target is another plan's by now, or no longer has what its plans committed."""
    if sink.epoch(plan.plan_id) is None:
        raise _unknown(plan, plan.plan_id)
    sink.check_history()


def check_followed(plan: Plan, sink: Sink) -> None:
    """Raise where the target of an increment no longer has what the plans before committed, or is gone.

    Otherwise it would be created again, and hold only what follows.
    """
    if plan.held_by and sink.held() is None:
        raise _unknown(plan, plan.held_by)
    sink.check_history()


def _unknown(plan: Plan, plan_id: str) -> LedgerRefused:
    return LedgerRefused(
        f"The target {plan.write.fence} does not know plan {plan_id}: the ledger or the target was restored or "
        'another plan took the target; trigger the DAG with {"backpressure": "restart"}.'
    )


_AGAIN = 'trigger the DAG with {"backpressure": "restart"} to read it again'


def describe_change(plan: Plan, now: Snapshot, *, source: Source, ledger: LedgerReader) -> str:
    """Return how a source differs from what a complete plan has read; empty where it does not.

    A source with versions is compared by them: rows may change and their number may not. Any other one is compared by
    the number of its rows.
    """
    if now.total_exact and plan.total_exact and now.total != sum(plan.frontier.values()):
        return (
            f"{source.identity} holds {now.total} rows, the committed snapshot {plan.total}: the source has moved; "
            f"{_AGAIN}"
        )
    if not now.version:
        return ""
    if now.version != plan.version if plan.version else _has_other_files(plan, now, source, ledger):
        return (
            f"{source.identity} has changed since it was read: it still holds {now.total} rows, but not the same; "
            f"{_AGAIN}"
        )
    return ""


def _has_other_files(plan: Plan, now: Snapshot, source: Source, ledger: LedgerReader) -> bool:
    """Whether a table has other files than a plan of an earlier release, which kept no version, has read."""
    before = (record.bounds for record in every_range(ledger, plan.plan_id))
    after = (piece.bounds for piece in source.ranges(now, rows=1, bytes=1))
    return _files(before) != _files(after)


def _files(ranges: Iterable[Bounds]) -> set[str]:
    return {name for bounds in ranges if isinstance(bounds, FileBounds) for name in bounds.files}


def tell_submitted(sink: Sink, ledger: LedgerReader) -> None:
    """Let a sink that fences slices one by one ask the ledger which of a plan's were submitted; others need nothing."""
    if isinstance(sink, FencesSlices):
        sink.tell_submitted(lambda plan_id: list_submitted(ledger, plan_id))


def check_replayable(snapshot: Snapshot, write: WriteSpec, *, kind: str, mode: Mode, transformed: bool) -> None:
    """Raise for every obstacle to replaying a log into a target. ``kind``: of the source."""
    if all(write.kind != into for _, into in REPLAYED):
        raise SinkRefused(f"No log can be replayed into {write.fence}: a {write.kind} sink does not take deletes.")
    if (kind.removesuffix(SUFFIX), write.kind) not in REPLAYED:
        raise SinkRefused(
            f"The log of {snapshot.source_identity} cannot be replayed into {write.fence} yet: changes of a {kind} "
            f"table do not go into a {write.kind} sink. Follow it into PostgreSQL, or read it with "
            "consistency='static'."
        )
    if mode is not Mode.UPSERT:
        raise InvalidDeclaration(
            f"consistency='catch_up' changes and deletes rows by their key: it needs mode='upsert', not {mode.value!r}."
        )
    if transformed:
        raise InvalidDeclaration("consistency='catch_up' brings rows as they are: leave the transform out.")
    if set(write.key) not in map(set, snapshot.log_keys):
        keys = " or ".join(f"({', '.join(key)})" for key in snapshot.log_keys)
        raise SourceRefused(
            f"The log of {snapshot.source_identity} does not show which row of {write.fence} was deleted by "
            f"({', '.join(write.key)}), by which that is upserted: upsert by {keys}."
        )
    empty = [column.name for column in snapshot.columns if column.name in write.key and column.nullable]
    if empty:
        raise SourceRefused(
            f"The changes of {snapshot.source_identity} cannot be replayed: {', '.join(empty)} of the key may arrive "
            "as NULL, by which no row is found."
        )
