"""Keys of rows that are to replace others."""

from collections.abc import Sequence

import pyarrow
import pyarrow.compute as pc

from airflow_provider_backpressure.exceptions import SinkRefused


def check_unique(keys: pyarrow.Table, key: Sequence[str], name: str) -> None:
    """Raise ``SinkRefused`` where two rows of a range share their key, or one has none: which of them is to stay?

    ``keys``: the key's columns of all rows.
    """
    if any(column.null_count for column in keys.columns):
        raise SinkRefused(f"Rows for {name} have NULL in their key ({', '.join(key)}).")
    counted = keys.group_by(list(key)).aggregate([([], "count_all")])
    if counted.num_rows != keys.num_rows:
        double = counted.filter(pc.greater(counted["count_all"], 1)).select(list(key)).slice(0, 1).to_pylist()[0]
        raise SinkRefused(f"Several rows for {name} in one range have the key {double}.")
