"""What Airflow loads by the entry point ``airflow.plugins``: the API and its page, under the navigation and at a DAG.

Every Airflow process loads plugins; only the API server needs the application, so it is made when it is asked for.
"""

from functools import cache
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from airflow_provider_backpressure import settings

NAME = "Backpressure"


@cache
def _apps() -> list[dict[str, Any]]:
    from airflow_provider_backpressure.plugins.app import make_app
    from airflow_provider_backpressure.plugins.permissions import OpenedLedger

    return [{"app": make_app(OpenedLedger()), "url_prefix": settings.PAGE, "name": NAME}]


class _Apps:
    """An attribute that is made at its first use."""

    def __get__(self, instance: object, owner: type | None = None) -> list[dict[str, Any]]:
        """Return the applications."""
        return _apps()


def _view(destination: str, query: str, route: str) -> dict[str, Any]:
    picture = f"{settings.page_path()}static/tap.svg"
    view = {"name": NAME, "href": settings.page_path() + query, "destination": destination, "url_route": route}
    return {**view, "icon": picture, "icon_dark_mode": f"{settings.page_path()}static/tap-dark.svg"}


class BackpressurePlugin(AirflowPlugin):
    """The page of hydrations, and the API that it is made from."""

    name = "backpressure"
    fastapi_apps = _Apps()
    external_views = [
        _view("nav", "", settings.VIEW),
        _view("dag", "?dag={DAG_ID}", settings.DAG_VIEW),
    ]
