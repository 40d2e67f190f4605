"""Whether a Delta table was set back behind what a plan committed: transaction ids outlive a RESTORE, files do not."""

from typing import Any

from deltalake import DeltaTable

from airflow_provider_backpressure.core.remedies import RESTART
from airflow_provider_backpressure.exceptions import SinkRefused


def check_unreverted(table: DeltaTable, ours: str, since: int, name: str) -> None:
    """Raise ``SinkRefused`` where a RESTORE took away an entry of ours.

    ``ours``: the key under which our entries say what they are. ``since``: the version that the plan began with. What
    stands is found from the last version backwards: an entry stands on the one before it, a RESTORE on its target.
    """
    head = table.version()
    entries = {entry["version"]: entry for entry in table.history(head - since + 1) if entry["version"] >= since}
    at, standing = head, set[int]()
    while at in entries:
        standing.add(at)
        at = _get_restored_version(entries[at]) if entries[at].get("operation") == "RESTORE" else at - 1
    lost = max((version for version in entries if ours in entries[version] and version not in standing), default=None)
    if lost is not None:
        raise SinkRefused(
            f"{name} no longer holds what was committed with version {lost}: a later RESTORE took it away. Restore "
            f"that version, or {RESTART}."
        )


def _get_restored_version(entry: dict[str, Any]) -> int:
    """Return the version that a RESTORE went back to; -1 where it names a time instead."""
    version = str(entry.get("operationParameters", {}).get("version"))
    return int(version) if version.isdigit() else -1
