"""Links from a task instance to what it works on, on our page."""

from typing import Any

from airflow.sdk import BaseOperatorLink

from airflow_provider_backpressure import settings


class HydrationLink(BaseOperatorLink):
    """Leads from any task of a hydration to the hydration; before that is known, to those of its DAG."""

    name = "Hydration"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the address."""
        found = getattr(operator, "hydration_id", "")
        return address(found) if found else f"{settings.page_path()}?dag={ti_key.dag_id}"


class RangeLink(BaseOperatorLink):
    """Leads from the task of one range to that range."""

    name = "Range"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the address."""
        found = getattr(operator, "hydration_id", "")
        return address(found, seq=operator.seq) if found else ""


def address(hydration_id: str, *, seq: Any = None) -> str:
    """Return where the page shows a hydration, and a range of it."""
    place = "" if seq is None else f"/range/{int(seq)}"
    return f"{settings.page_path()}#/hydration/{hydration_id}{place}"
