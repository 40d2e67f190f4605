"""Files as a Delta log names them."""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.transaction import AddAction, RemoveAction

from airflow_provider_backpressure.connectors.lake.footers import footer
from airflow_provider_backpressure.connectors.lake.storage import Place

Action = AddAction | RemoveAction
_PLAIN = (pyarrow.types.is_integer, pyarrow.types.is_date)
"""Types whose least and greatest value a log holds as JSON has them."""


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
        stats=json.dumps(_statistics(footer(place, name))),
    )


def _statistics(found: pq.FileMetaData) -> dict[str, Any]:
    schema = found.schema.to_arrow_schema()
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    groups = [found.row_group(number) for number in range(found.num_row_groups)]
    for index, field in enumerate(schema):
        parts = [group.column(index).statistics for group in groups]
        if any(part is None or not part.has_null_count for part in parts):
            continue
        nulls[field.name] = sum(part.null_count for part in parts)
        bounded = [part for part in parts if part.has_min_max]
        if bounded and len(bounded) == len(parts) and any(plain(field.type) for plain in _PLAIN):
            least[field.name] = _text(min(part.min for part in bounded))
            greatest[field.name] = _text(max(part.max for part in bounded))
    return {"numRecords": found.num_rows, "minValues": least, "maxValues": greatest, "nullCount": nulls}


def _text(value: Any) -> int | str:
    return value if isinstance(value, int) else value.isoformat()


def _now() -> int:
    return int(time.time() * 1000)
