"""What a new worker has to import before it reads its first row: every range of a cold session waits for that."""

import subprocess
import sys

import pytest

NOT_NEEDED = {"pandas", "pyarrow.compute", "airflow_provider_backpressure.spark.job"}
COPY = f"""
import json, sys
from airflow_provider_backpressure.core.snapshot.spark_messages import SliceResult
from airflow_provider_backpressure.connectors.postgres.tasks import copy
from airflow_provider_backpressure.spark.task import outcome
batch = outcome(lambda: SliceResult(slice_id="0", rows=1, bytes=2, checksum="ä"))
assert not {NOT_NEEDED} & set(sys.modules), sorted({NOT_NEEDED} & set(sys.modules))
(row,) = batch.to_pylist()
assert json.loads(row["result"])["checksum"] == "ä"
"""


FRAME = """
import sys
import pyarrow
from airflow_provider_backpressure.core.snapshot.spark_messages import Column
from airflow_provider_backpressure.spark import stream_end, value_hash
from airflow_provider_backpressure.spark import frame_path
from airflow_provider_backpressure.connectors.postgres.tasks import binary_copy, read
from airflow_provider_backpressure.connectors.relational import csv_blocks
from airflow_provider_backpressure.connectors.lake.tasks import parquet_writer, write
types = ("integer", "numeric(5,2)", "text", "boolean", "date", "timestamp with time zone", "double precision")
columns = [Column(name=type_, type=type_) for type_ in types]
line = b'"1","2.50","a","t","2024-02-29","2024-02-29 01:00:00+00","1.5"\\n,,,,,,\\n'
given = stream_end.append_end(csv_blocks.parse(line, columns, read.way_out).to_batches(), columns)
total = value_hash.BatchSum()
for batch in stream_end.complete(given):
    total.update(batch)
    binary_copy.rows(batch, [binary_copy.Target(type=field.type) for field in batch.schema])
    parquet_writer.find_repetitive_columns(pyarrow.Table.from_batches([batch]))
assert total.rows == 2
assert "pandas" not in sys.modules
"""
TOPIC = """
import sys
from airflow_provider_backpressure.core.snapshot.spark_messages import Column
from airflow_provider_backpressure.connectors.kafka.tasks import read, record_batches
class Record:
    partition = offset = lambda self: 3
    key = lambda self: None
    timestamp = lambda self: (1, 5)
    headers = lambda self: None
    value = lambda self: b"{}"
types = {"topic": "text", "partition": "integer", "offset": "bigint", "timestamp": "timestamp with time zone"}
types |= {"key": "bytea", "headers": "json", "value": "json"}
columns = [Column(name=name, type=type_) for name, type_ in types.items()]
batch = record_batches.to_batch([Record(), Record()], columns, "orders")
assert "pandas" not in sys.modules
assert batch.column(3).to_pylist()[1].microsecond == 5000
"""


@pytest.mark.parametrize("script", [COPY, FRAME, TOPIC], ids=["copy", "frame", "topic"])
def test_a_path_imports_no_more_than_it_needs(script: str) -> None:
    """Neither pandas, which PyArrow imports to look at a Python object, nor what only the other paths use."""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
