"""The transform of a cell. Beside the DAGs: an application imports it by its module's name."""

from typing import Any


def uppercase(frame: Any) -> Any:
    """Return the rows with their comment in capitals."""
    from pyspark.sql import functions

    return frame.withColumn("comment", functions.upper("comment"))
