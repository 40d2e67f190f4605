"""The snapshots of an Iceberg table: whether ours are still among them, and what those behind have changed."""

import json

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from airflow_provider_backpressure.exceptions import RESTART, SinkRefused

OURS = "backpressure.plan"
"""Key in the summary of each of our snapshots."""
_CHANGES = ("added-data-files", "deleted-data-files", "added-delete-files", "removed-delete-files")


def describe_snapshot(snapshot: Snapshot | None) -> str:
    """Return what a property says of our last snapshot: its id and sequence number."""
    return json.dumps([snapshot.snapshot_id, snapshot.sequence_number or 0] if snapshot is not None else [])


def check_unreverted(table: Table, last: str | None, name: str) -> None:
    """Raise ``SinkRefused`` where the current snapshot does not descend from our last one.

    Where that one has expired, the oldest that is left has to be younger.
    """
    if not last or last == "[]":
        return
    wanted, number = json.loads(last)
    snapshots = {each.snapshot_id: each for each in table.metadata.snapshots}
    line, at = list[Snapshot](), table.current_snapshot()
    while at is not None:
        line.append(at)
        at = snapshots.get(at.parent_snapshot_id or 0) if at.snapshot_id != wanted else None
    expired = wanted not in snapshots and line and (line[-1].sequence_number or 0) >= number
    if not expired and all(each.snapshot_id != wanted for each in line):
        raise SinkRefused(
            f"{name} no longer holds what was committed with snapshot {wanted}: it was rolled back or replaced since. "
            f"Make that snapshot the current one, or {RESTART}."
        )


def keeps_rows(table: Table, since: int) -> bool:
    """Whether all snapshots after one leave the rows as they are; ``False`` where it has expired.

    A compaction makes a snapshot whose operation is ``replace``; a plan, and a range without rows, one without files.
    """
    snapshots = {each.snapshot_id: each for each in table.metadata.snapshots}
    at = table.current_snapshot()
    while at is not None and at.snapshot_id != since:
        if not _keeps_rows(at):
            return False
        at = snapshots.get(at.parent_snapshot_id or 0)
    return at is not None


def _keeps_rows(snapshot: Snapshot) -> bool:
    summary = snapshot.summary
    if summary is None:
        return False
    if summary.operation is Operation.REPLACE:
        return True
    facts = summary.additional_properties
    return OURS in facts and not any(int(facts.get(name, 0)) for name in _CHANGES)
