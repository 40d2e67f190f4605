"""What is checked before ranges are exchanged, and the ranges of ``mirror``: those of the run before, split further."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from airflow_provider_backpressure.core.config import Budget, Consistency, Mode
from airflow_provider_backpressure.core.ports import Source
from airflow_provider_backpressure.core.ports.ledger import LedgerReader, every_range
from airflow_provider_backpressure.core.ports.sink import MirrorTarget, PlanRow, Sink
from airflow_provider_backpressure.core.snapshot.bounds import Bounds, KeyBounds, cut
from airflow_provider_backpressure.core.snapshot.plan import Plan, Snapshot
from airflow_provider_backpressure.core.snapshot.ranges import PlannedRange, RangeRecord, RangeState
from airflow_provider_backpressure.core.snapshot.spark_messages import COPY, Column, WriteSpec
from airflow_provider_backpressure.exceptions import ALLOW_DELETES, InvalidDeclaration, SinkRefused, SourceRefused

GROWN = 1.5
"""A range of the plan before is split where it held more than so many times the rows that a range is to hold."""


def check_mirrored(
    snapshot: Snapshot, arriving: Sequence[Column], write: WriteSpec, sink: Sink, *, place: str | None
) -> None:
    """Raise where a range of the source may be another one in the target, or rows of others would be deleted.

    ``place``: that of the source's table, as ``ReadSpec`` has it.
    """
    name, split = snapshot.source_identity, snapshot.split
    if snapshot.consistency not in (Consistency.STATIC, Consistency.SNAPSHOT) or snapshot.window is not None:
        raise SourceRefused(
            f"{name} cannot be mirrored: its later runs read only what is new. Use mode='upsert', or read a table."
        )
    if snapshot.hides_rows:
        raise SourceRefused(
            f"{name} cannot be mirrored: row security hides rows of it from the login, and mirror would delete them in "
            "the target. Let the login see every row (BYPASSRLS), or use another mode."
        )
    if not split or not set(split) <= set(write.key):
        how = f"it is cut by {', '.join(split)}, which is no part of the key" if split else "it is not cut by a key"
        raise SourceRefused(
            f"{name} cannot be mirrored: {how}, so a row could be in two ranges. Cut it by its key, or use "
            "mode='replace'."
        )
    source = {column.name: column for column in snapshot.columns}
    for column in arriving:
        before = source.get(column.name)
        if column.name in write.key and (before is None or before.type != column.type):
            raise SourceRefused(
                f"{name} cannot be mirrored: the transform changes the key column {column.name}, by which rows are "
                "deleted. Let it keep the key as it is, or use mode='replace'."
            )
    nullable = [each for each in write.key if each not in source or source[each].nullable]
    if nullable:
        raise SourceRefused(
            f"{name} cannot be mirrored: {', '.join(nullable)} of the key may be NULL. Set it NOT NULL, or use "
            "mode='replace'."
        )
    _check_owner(snapshot, write, sink.held(), sink, place)
    sink.mirror().check(write, split)


def _check_owner(snapshot: Snapshot, write: WriteSpec, row: PlanRow | None, sink: Sink, place: str | None) -> None:
    ours = row is not None and row.source_identity == snapshot.source_identity
    if row is not None and row.plan is not None and place is not None and row.plan.read.place == place:
        # A connection that leads to the same table under another address, and reads the same of it.
        ours = row.source_identity.rpartition("/")[2] == snapshot.source_identity.rpartition("/")[2]
    if row is not None and not ours:
        raise SinkRefused(
            f"{write.fence} is held by plan {row.plan_id} of {row.source_identity}: mirror would delete its rows. Use "
            "another target, or `airflow backpressure uninstall` if that hydration is gone."
        )
    mirrored = ours and row is not None and row.plan is not None and row.plan.mode in (Mode.MIRROR, Mode.REPLACE)
    if snapshot.filtered and not mirrored and sink.holds_rows():
        raise SinkRefused(
            f"{write.fence} may hold rows that the source's condition (where=) leaves out, and mirror would delete "
            "them. Leave where out, or empty the target first."
        )


def with_brake(draft: Plan, snapshot: Snapshot, target: MirrorTarget, budget: Budget, *, closes: Plan | None) -> Plan:
    """Return the plan with the number of rows that it may delete; ``SourceRefused`` where more are sure to go.

    ``closes``: the plan that it replaces because its snapshot is gone, fenced off by now. It may delete what that one
    has left of its own limit.
    """
    if budget.max_deletes >= 1:
        return draft
    held = target.rows(near=snapshot.total if snapshot.total_exact else None)
    most = math.floor(held * budget.max_deletes)
    if closes is not None and closes.write.most_deleted is not None:
        most = closes.write.most_deleted - target.count_deleted(closes.plan_id)
    if held and snapshot.total == 0:
        raise SourceRefused(
            f"{snapshot.source_identity} is empty, and mirror would delete all {held} rows of {draft.write.fence}: "
            f"{ALLOW_DELETES} if they are to go."
        )
    surplus = held - snapshot.total if snapshot.total is not None and snapshot.total_exact else 0
    if surplus > most and draft.transform is None:
        raise SourceRefused(
            f"{snapshot.source_identity} holds {snapshot.total} rows and {draft.write.fence} {held}: mirror would "
            f"delete at least {surplus}, more than Budget(max_deletes={budget.max_deletes:g}) allows ({most}): "
            f"{ALLOW_DELETES} if they are to go."
        )
    return replace(draft, write=replace(draft.write, most_deleted=most))


def renew_brake(plan: Plan, target: MirrorTarget, budget: Budget) -> Plan:
    """Return an open plan whose limit of deletes holds again, by the rows that the target still has."""
    most = None
    if budget.max_deletes < 1:
        most = target.count_deleted(plan.plan_id) + math.floor(target.rows() * budget.max_deletes)
    return replace(plan, allowed_by="", write=replace(plan.write, most_deleted=most))


def with_chain(draft: Plan, before: Plan | None, row: PlanRow | None, files: str) -> Plan:
    """Return the plan with what proves that the target still holds what the plan before has left there.

    ``before``: the plan before, all of which is committed and verified. ``row``: what holds the target. ``files``:
    where its rows lie now.
    """
    draft = replace(draft, files=files)
    if before is None or row is None or row.plan_id != before.plan_id or before.mode is not Mode.MIRROR:
        return draft
    same = (
        before.fingerprint == draft.fingerprint
        and before.path == draft.path
        and before.read.columns == draft.read.columns
        and (before.write.columns, before.write.key) == (draft.write.columns, draft.write.key)
        and before.transform is None
        and draft.transform is None
        and bool(files)
        and before.files == files
    )
    return replace(draft, mirrored_since=before.mirrored_since or before.epoch) if same else draft


def find_rewrite_key(draft: Plan, snapshot: Snapshot, sink: Sink, *, budget: Budget) -> tuple[Plan, str]:
    """Return the plan with the key by which a later snapshot corrects its ranges, and what becomes of a lost snapshot.

    The latter is the end of a sentence. Without such a key a lost snapshot closes the plan, so that none may be given
    up on purpose: ``InvalidDeclaration`` where the budget says so.
    """
    ages = budget.snapshot_age is not None
    if draft.consistency is not Consistency.SNAPSHOT:
        if ages:
            raise InvalidDeclaration("Budget(snapshot_age=...) goes with consistency='snapshot' only.")
        return draft, ""
    key = draft.write.key or snapshot.key
    reason = _against_rewriting(draft, snapshot, key, sink)
    if reason and ages:
        raise InvalidDeclaration(f"Budget(snapshot_age=...) needs another snapshot to continue with: {reason}.")
    if reason:
        return draft, f"; if its snapshot is lost, the whole is read again: {reason}"
    return replace(draft, rewrite_key=key), "; if its snapshot is lost, another one continues"


def _against_rewriting(draft: Plan, snapshot: Snapshot, key: Sequence[str], sink: Sink) -> str:
    """Return why ranges of the plan cannot be corrected in a later snapshot; empty where they can."""
    if draft.path != COPY or Mode.MIRROR not in sink.modes:
        return "its rows do not pass from PostgreSQL to PostgreSQL as they are"
    if snapshot.window is not None:
        return "it is read by a rising column"
    if not snapshot.split or not set(snapshot.split) <= set(key):
        return "it is not cut by columns of its key"
    source = {column.name: column for column in snapshot.columns}
    if not snapshot.unique or any(name not in source or source[name].nullable for name in key):
        return "several of its rows may have one key, or none"
    target = sink.mirror()
    if draft.mode is Mode.UPSERT and sink.holds_rows():
        return "the target holds rows already, which may be of others"
    try:
        target.check_rewrites(draft.write, key, snapshot.split)
    except SinkRefused as error:
        return str(error).removesuffix(".")
    return ""


def list_ranges(
    draft: Plan, before: Plan | None, snapshot: Snapshot, *, ledger: LedgerReader, source: Source, rows: int, bytes: int
) -> Iterator[PlannedRange]:
    """Yield the ranges of the plan before, split where they grew; those of a new cut where there is none to follow.

    They cover every key, so that rows are deleted wherever the source has none.
    """
    if not draft.mirrored_since or before is None:
        found = list(source.ranges(snapshot, rows=rows, bytes=bytes))
        every = KeyBounds(columns=snapshot.split, start=None, end=None)
        yield from found or [PlannedRange(seq=0, bounds=every, rows=0, bytes=0)]
        return
    known = [each for each in every_range(ledger, before.plan_id) if each.state is RangeState.COMMITTED or each.skipped]
    grown = (snapshot.total or 0) - sum(each.rows or 0 for each in known) > rows / 2
    fresh = _fresh_boundaries(draft, snapshot, known, source, rows=rows, bytes=bytes) if grown else {}
    seq = 0
    for record in known:
        pieces = fresh.get(record.bounds) or _split(draft, record, source, rows)
        for bounds in pieces:
            share = (record.rows or 0) // len(pieces)
            expected = rows if len(pieces) > 1 and record.bounds in fresh else share
            yield PlannedRange(seq=seq, bounds=bounds, rows=expected, bytes=int(expected * snapshot.row_bytes))
            seq += 1


def _split(draft: Plan, record: RangeRecord, source: Source, rows: int) -> Sequence[Bounds]:
    held = record.rows or 0
    return (
        source.cut(draft.read, record.bounds, parts=math.ceil(held / rows)) if held > GROWN * rows else [record.bounds]
    )


def _fresh_boundaries(
    draft: Plan, snapshot: Snapshot, known: Iterable[RangeRecord], source: Source, *, rows: int, bytes: int
) -> dict[Bounds, list[Bounds]]:
    """Return pieces of the last range, which takes in what was added behind it, by the bounds of a new cut."""
    last = next((each.bounds for each in known if isinstance(each.bounds, KeyBounds) and each.bounds.end is None), None)
    if last is None:
        return {}
    cuts = [each.bounds for each in source.ranges(snapshot, rows=rows, bytes=bytes)]
    starts = [each.start for each in cuts if isinstance(each, KeyBounds) and each.start is not None]
    if last.start is not None:
        ordered = source.in_order(draft.read, last.columns, [*starts, last.start])
        starts = ordered[ordered.index(last.start) + 1 :]
    return {last: list(cut(last, starts))} if starts else {}
