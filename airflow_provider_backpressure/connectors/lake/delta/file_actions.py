"""Files as a Delta log names them."""

import json
import time
from collections.abc import Mapping, Sequence

import pyarrow
from deltalake import DeltaTable
from deltalake.transaction import AddAction, RemoveAction

from airflow_provider_backpressure.connectors.lake.plan_and_mark_files import footer
from airflow_provider_backpressure.connectors.lake.storage import Place

Action = AddAction | RemoveAction


def active(table: DeltaTable) -> dict[str, tuple[int, int | None]]:
    """Return size and rows of every file that readers see; rows ``None`` where the log does not say."""
    files = pyarrow.table(table.get_add_actions(flatten=True))
    columns = (files[name].to_pylist() for name in ("path", "size_bytes", "num_records"))
    return {path: (size, rows) for path, size, rows in zip(*columns, strict=True)}


def additions(place: Place, names: Sequence[str]) -> list[Action]:
    """Return what adds these files."""
    return [_addition(place, name) for name in names]


def removals(names: Sequence[str], files: Mapping[str, tuple[int, int | None]]) -> list[Action]:
    """Return what removes these files."""
    return [RemoveAction(name, True, _now(), files[name][0], {}) for name in names]


def _addition(place: Place, name: str) -> AddAction:
    place.sync(name)
    (info,) = place.files.get_file_info([place.at(name)])
    return AddAction(
        path=name,
        size=info.size,
        partition_values={},
        modification_time=_now(),
        data_change=True,
        # With bounds of some columns, deltalake 1.6 skips the file for a filter on any other column.
        stats=json.dumps({"numRecords": footer(place, name).num_rows}),
    )


def _now() -> int:
    return int(time.time() * 1000)
