"""Figures over time, made from pandas frames."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_backpressure.core.progress.samples import Sample
from airflow_provider_backpressure.core.progress.views import FlowAt
from airflow_provider_backpressure.core.stage_metrics import Stage, State

if TYPE_CHECKING:
    import pandas as pd

SMOOTHED = "10s"
"""Over how long the rate of a moment is taken, at least: commits come in steps."""
COLUMNS = (
    "committed",
    "rate",
    "in_flight",
    "credits",
    "pressure",
    "memory_used",
    "memory_limit",
    "upstream_rate",
    "process_rate",
)
WHOLE = ("committed", "in_flight", "credits", "memory_used", "memory_limit")


def course(points: Sequence[Sample], flows: Sequence[FlowAt], *, total: int | None) -> dict[str, Any]:
    """Return columns over time: of the samples, and of what the stages did."""
    import pandas as pd

    frame = pd.DataFrame([vars(point) for point in points], columns=[*Sample.__dataclass_fields__])
    frame["rate"] = _rate(frame)
    columns = {name: _plain(frame[name], whole=name in WHOLE) for name in COLUMNS}
    done = [_percent(point.committed, total) for point in points]
    return {"at": [point.at for point in points], "percent": done, **columns, **_flow(flows)}


def _rate(frame: "pd.DataFrame") -> "pd.Series[float]":
    """Return units a second, each over the time since the latest sample that is :data:`SMOOTHED` or more before it."""
    import pandas as pd

    if frame.empty:
        return pd.Series(dtype=float)
    own = pd.DataFrame({"at": pd.to_datetime(frame["at"], utc=True), "committed": frame["committed"].astype(float)})
    asked = pd.DataFrame({"at": own["at"] - pd.Timedelta(SMOOTHED)})
    before = pd.merge_asof(asked, own.rename(columns={"at": "then"}), left_on="at", right_on="then")
    # Nothing is that old yet: from the first sample on.
    then, committed = before["then"].fillna(own["at"].iloc[0]), before["committed"].fillna(own["committed"].iloc[0])
    seconds = (own["at"] - then).dt.total_seconds()
    return ((own["committed"] - committed).clip(lower=0) / seconds).where(seconds > 0)


def _percent(committed: int, total: int | None) -> float | None:
    if total is None:
        return None
    return 100.0 if total == 0 else min(100.0, round(100.0 * committed / total, 3))


def _plain(column: "pd.Series[Any]", *, whole: bool) -> list[Any]:
    """Return values as JSON has them: ``None`` for what is not known."""
    kept = column.astype(object).where(column.notna(), None)
    return [None if value is None else int(value) if whole else round(float(value), 4) for value in kept]


def _flow(flows: Sequence[FlowAt]) -> dict[str, Any]:
    def shares(stage: Stage, state: State) -> list[float | None]:
        spent = (one.flow.get(stage) for one in flows)
        return [round(time.share(state), 4) if time and time.seconds else None for time in spent]

    by_stage = {stage.value: {state.value: shares(stage, state) for state in State} for stage in Stage}
    return {"flow_at": [one.at for one in flows], "flow": by_stage}
