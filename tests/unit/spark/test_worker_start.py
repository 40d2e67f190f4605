"""What a new worker has to import before it reads its first row: every range of a cold session waits for that."""

import subprocess
import sys

NOT_NEEDED = {"pandas", "pyarrow.compute", "airflow_provider_backpressure.spark.job"}
SCRIPT = f"""
import json, sys
from airflow_provider_backpressure.core.messages import SliceResult
from airflow_provider_backpressure.spark.paths import copy
from airflow_provider_backpressure.spark.task import outcome
batch = outcome(lambda: SliceResult(slice_id="0", rows=1, bytes=2, checksum="ä"))
assert not {NOT_NEEDED} & set(sys.modules), sorted({NOT_NEEDED} & set(sys.modules))
(row,) = batch.to_pylist()
assert json.loads(row["result"])["checksum"] == "ä"
"""


def test_the_copy_path_imports_no_more_than_it_needs() -> None:
    """Neither pandas, which PyArrow imports to look at a Python object, nor what only the other paths use."""
    subprocess.run([sys.executable, "-c", SCRIPT], check=True, timeout=60)
