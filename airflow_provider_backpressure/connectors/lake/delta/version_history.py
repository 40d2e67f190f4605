"""The versions of a Delta table: whether ours are still among them, and what those behind have changed."""

import json
from typing import Any

from deltalake import DeltaTable

from airflow_provider_backpressure.connectors.lake.storage import Place
from airflow_provider_backpressure.exceptions import RESTART, SinkRefused


def check_unreverted(table: DeltaTable, ours: str, since: int, name: str) -> None:
    """Raise ``SinkRefused`` where a RESTORE removed one of our entries.

    ``ours``: the key under which our entries say what they are. ``since``: the version that the plan began with. The
    valid entries are found from the last version backwards: an entry builds on its predecessor, a RESTORE on its
    target.
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


def keeps_rows(place: Place, since: int, head: int) -> bool:
    """Whether all entries after a version leave the rows as they are; ``False`` where one was cleaned from the log.

    An entry that only compacts or clusters files says so of each file by ``dataChange``.
    """
    entries = (place.read(f"_delta_log/{version:020}.json") for version in range(since + 1, head + 1))
    return since <= head and all(entry is not None and _keeps_rows(entry) for entry in entries)


def _keeps_rows(entry: bytes) -> bool:
    actions = [json.loads(line) for line in entry.splitlines() if line.strip()]
    files = (action[kind] for action in actions for kind in ("add", "remove") if kind in action)
    return not any(file.get("dataChange", True) for file in files)
