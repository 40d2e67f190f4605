"""A range's checksum, as the target's rows have it, without asking the target."""

from collections.abc import Iterable

import pyarrow

from airflow_provider_backpressure.connectors.postgres.tasks import binary_copy as binary
from airflow_provider_backpressure.connectors.postgres.tasks.staging_table import RowSum
from airflow_provider_backpressure.core.snapshot.spark_messages import RangeSpec, SliceResult
from airflow_provider_backpressure.exceptions import RangeFailed
from airflow_provider_backpressure.spark.stream_end import apart, check_names, complete


def hash_batches(spec: RangeSpec, batches: Iterable[pyarrow.RecordBatch]) -> SliceResult | None:
    """Hash rows as the target has them, without asking it; ``None`` where only the server can make its types of them.

    It is also ``None`` where a row cannot go into the target: writing it says so.
    """
    columns, total = binary.read_targets(spec.write.columns), RowSum()
    if columns is None:
        return None
    for batch in complete(batches):
        rows, bad = apart(batch, keep_bad=False)
        check_names(rows, spec.write)
        if bad or not binary.fits(rows.schema, columns):
            return None
        if not rows.num_rows:
            continue
        try:
            total.add(binary.rows(rows, columns).to_pylist())
        except RangeFailed:
            return None
    piece = spec.slices[0]
    return SliceResult(slice_id=piece.slice_id, rows=total.rows, bytes=total.bytes, checksum=str(total))
