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
        return address(found) if found else f"{settings.airflow_path()}/dags/{ti_key.dag_id}/plugin/{settings.DAG_VIEW}"


class RangeLink(BaseOperatorLink):
    """Leads from the task of one range to that range."""

    name = "Range"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the address."""
        found = getattr(operator, "hydration_id", "")
        return address(found, seq=operator.seq) if found else ""


def address(hydration_id: str, *, seq: Any = None) -> str:
    """Return where the page shows a hydration, and a range of it, within Airflow's own page."""
    place = "" if seq is None else f"/range/{int(seq)}"
    return f"{settings.airflow_path()}/plugin/{settings.VIEW}#/hydration/{hydration_id}{place}"
