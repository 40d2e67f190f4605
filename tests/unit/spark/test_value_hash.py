"""Which rows a checksum leaves out, and what that costs."""

from collections.abc import Iterator

import pyarrow
import pytest

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.spark_messages import ChecksumSpec, Column, ReadSpec, digest_row
from airflow_provider_backpressure.spark import value_hash
from airflow_provider_backpressure.spark.refused_rows import kept_of

ROWS = [{"id": number, "code": "abc"} for number in range(1000)]
COLUMNS = (Column(name="id", type="integer"), Column(name="code", type="text"))


@pytest.mark.parametrize(("at", "digested"), [({}, 1000), ({"id": (7, 300, 5000)}, 2)])
def test_only_rows_with_a_value_of_the_quarantine_are_digested(
    monkeypatch: pytest.MonkeyPatch, at: dict[str, tuple[int, ...]], digested: int
) -> None:
    """One of them is in quarantine as it is, one as it was, and one could not be read at all."""
    seen: list[object] = []

    class Reader:
        @staticmethod
        def read(*_: object) -> Iterator[pyarrow.RecordBatch]:
            yield from pyarrow.Table.from_pylist(ROWS).to_batches(max_chunksize=400)

    monkeypatch.setattr(value_hash, "reader", lambda kind: Reader)
    monkeypatch.setattr(value_hash, "kept_of", lambda row: seen.append(row) or kept_of(row))
    gone = (ROWS[7], {"id": 300, "code": "before"}, {"id": 5000, "value": "{"})
    spec = ChecksumSpec(
        kind="any",
        conn_id="c",
        query="",
        read=ReadSpec(kind="any", conn_id="c", columns=COLUMNS),
        quarantined=tuple(digest_row(kept_of(row)) for row in gone),
        quarantined_at=at,
    )
    found = value_hash.checksum_slice(spec, Endpoint(conn_id="c", host="", port=0, database="", user="", password=""))
    assert (found.rows, found.quarantined, len(seen)) == (999, 1, digested)
