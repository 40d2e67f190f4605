"""What a plan would be, as people read it: before anything is written."""

import math
from typing import Any

from airflow_provider_backpressure.core.config import Mode
from airflow_provider_backpressure.core.planning.planner import Preview


def foretold(preview: Preview, *, target: str, mode: Mode, credits: int) -> dict[str, Any]:
    """Return the facts of a preview, fit for JSON. ``None`` is what the source does not know."""
    snapshot = preview.snapshot
    return {
        "source": snapshot.source_identity,
        "target": target,
        "mode": mode.value,
        "consistency": snapshot.consistency.value,
        "rows": snapshot.total,
        "exact": snapshot.total_exact,
        "key": ", ".join(snapshot.key),
        "columns": len(snapshot.columns),
        "range_rows": preview.range_rows,
        "ranges": None if snapshot.total is None else math.ceil(snapshot.total / preview.range_rows),
        "path": preview.path,
        "credits": credits,
        "python": preview.executors.python,
    }
