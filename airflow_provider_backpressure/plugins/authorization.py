"""Who may see and steer what: Airflow's auth manager is asked each time. A hydration is its owner's, a DAG's."""

from collections.abc import Collection
from typing import Annotated

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.base_auth_manager import ResourceMethod
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import get_user
from airflow.configuration import conf
from airflow.models.dag import DagModel
from fastapi import Depends, Header, HTTPException, Request, status

User = Annotated[BaseUser, Depends(get_user)]
"""The logged-in user; 401 without one."""


def may_read(user: BaseUser, owner: str) -> bool:
    """Whether a person may see this DAG."""
    return get_auth_manager().is_authorized_dag(method="GET", details=_details(owner), user=user)


def may_steer(user: BaseUser, owner: str) -> bool:
    """Whether a person may edit this DAG."""
    return get_auth_manager().is_authorized_dag(method="PUT", details=_details(owner), user=user)


def may_trigger(user: BaseUser, owner: str) -> bool:
    """Whether a person may trigger runs of this DAG."""
    manager, run = get_auth_manager(), DagAccessEntity.RUN
    return manager.is_authorized_dag(method="POST", access_entity=run, details=_details(owner), user=user)


def readable(user: BaseUser, owners: Collection[str]) -> set[str]:
    """Return the DAGs that a person may see."""
    return _list_permitted(user, owners, "GET")


def steerable(user: BaseUser, owners: Collection[str]) -> set[str]:
    """Return the DAGs that a person may edit."""
    return _list_permitted(user, owners, "PUT")


def _list_permitted(user: BaseUser, owners: Collection[str], method: ResourceMethod) -> set[str]:
    manager, teams = get_auth_manager(), _teams(owners)
    by_team: dict[str | None, set[str]] = {}
    for owner in owners:
        by_team.setdefault(teams.get(owner), set()).add(owner)
    found: set[str] = set()
    for team, dag_ids in by_team.items():
        found |= manager.filter_authorized_dag_ids(dag_ids=dag_ids, user=user, method=method, team_name=team)
    return found


def from_here(
    request: Request,
    sec_fetch_site: Annotated[str | None, Header(include_in_schema=False)] = None,
    content_type: Annotated[str | None, Header(include_in_schema=False)] = None,
) -> None:
    """Refuse what another site makes a browser send.

    Airflow's cookie is ``SameSite=Lax``, so other sites' requests come without it. A page of the same site but another
    origin is kept out by two more things: its requests say so, and a form cannot send JSON.
    """
    if sec_fetch_site not in (None, "same-origin", "none"):
        raise HTTPException(status.HTTP_403_FORBIDDEN, "Steering is only possible from Airflow's own pages.")
    if (content_type or "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(status.HTTP_415_UNSUPPORTED_MEDIA_TYPE, "Send JSON: Content-Type: application/json.")


def _details(owner: str) -> DagDetails:
    return DagDetails(id=owner, team_name=_teams([owner]).get(owner))


def _teams(owners: Collection[str]) -> dict[str, str | None]:
    if not conf.getboolean("core", "multi_team", fallback=False):
        return {}
    return DagModel.get_dag_id_to_team_name_mapping(list(owners))
