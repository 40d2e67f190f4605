"""The gate's latest decision as the ledger keeps it."""

import json
import math
from typing import Any

from airflow_provider_backpressure.core.gate.signals import Decision


def to_json(decision: Decision) -> str:
    """Return ``{"open": …, "pressure": …, "signals": […]}``; a pressure without bound is null."""
    pressure = round(decision.pressure, 4) if math.isfinite(decision.pressure) else None
    return json.dumps(
        {"open": decision.open, "pressure": pressure, "signals": [signal.to_json() for signal in decision.signals]}
    )


def from_json(text: str | None) -> dict[str, Any] | None:
    """Return the decision's JSON object, if one was kept."""
    return None if text is None else json.loads(text)


def memory_closed(text: str | None) -> bool:
    """Whether live executor memory closed the gate."""
    decision = from_json(text)
    signals = decision["signals"] if decision else ()
    return any(signal["name"] == "executor memory" and signal["closed"] for signal in signals)
