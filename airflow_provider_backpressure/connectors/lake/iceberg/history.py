"""Whether an Iceberg table was set back behind what we committed: its properties outlive a rollback, files do not."""

import json

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from airflow_provider_backpressure.core.remedies import RESTART
from airflow_provider_backpressure.exceptions import SinkRefused


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
