"""The transform of a cell. Beside the DAGs: an application imports it by its module's name."""

from typing import Any


def uppercase(frame: Any) -> Any:
    """Return the rows with their comment in capitals."""
    from pyspark.sql import functions

    return frame.withColumn("comment", functions.upper("comment"))


def hold(frame: Any) -> Any:
    """Return the rows as they are, once nobody holds them back; write down that they wait for that."""
    import os
    from pathlib import Path

    held = Path(os.environ["MATRIX_HOLD"])

    def wait(batches: Any) -> Any:
        import time

        for batch in batches:
            while held.exists():
                held.with_suffix(".waits").touch()
                time.sleep(0.1)
            yield batch

    return frame.mapInPandas(wait, frame.schema)
