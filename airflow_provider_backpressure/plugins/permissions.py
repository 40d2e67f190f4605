"""What routes ask for before they answer: the ledger, and a hydration that the person may see or steer."""

import re
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Annotated

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.base_auth_manager import ResourceMethod
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import get_user
from airflow.configuration import conf
from airflow.models.dag import DagModel
from airflow.sdk import BaseHook
from fastapi import Depends, Header, HTTPException, Path, Request, status
from sqlalchemy import make_url

from airflow_provider_backpressure.airflow_compat import AirflowNotFoundException
from airflow_provider_backpressure.core.ports.ledger import Ledger
from airflow_provider_backpressure.core.progress.summary import HydrationSummary
from airflow_provider_backpressure.core.push.hub import Push
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord
from airflow_provider_backpressure.exceptions import BackpressureError, LedgerRefused, LedgerUnavailable, Terminal
from airflow_provider_backpressure.hooks.backpressure import DEFAULT_CONN_ID, BackpressureHook, open_ledger
from airflow_provider_backpressure.hooks.push_transport import push_at

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
        # Airflow 3.1 has no teams, and no such argument.
        named = {"team_name": team} if team else {}
        found |= manager.filter_authorized_dag_ids(dag_ids=dag_ids, user=user, method=method, **named)
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


NONE_SUCH = "There is no such hydration."
ID = re.compile("[0-9a-f]{32}")
MOST_NUMBER = 2**53 - 1
"""Highest number of a range, or of a place in a list, that is asked for: as far as JSON's numbers are exact."""

Seq = Annotated[int, Path(ge=0, le=MOST_NUMBER, description="Number of the range.")]


def ledger_of(request: Request) -> Ledger:
    """Return the ledger, opened."""
    opened: Callable[[], tuple[Ledger, Push | None]] = request.app.state.ledger
    return opened()[0]


Opened = Annotated[Ledger, Depends(ledger_of)]


def seen(hydration_id: str, ledger: Opened, user: User) -> HydrationSummary:
    """Return a hydration that the person may see: 404 where there is none, 403 where it is not theirs to see."""
    found = ledger.glances(ids=[hydration_id], limit=1) if ID.fullmatch(hydration_id) else []
    if not found:
        raise HTTPException(status.HTTP_404_NOT_FOUND, NONE_SUCH)
    check_readable(user, found[0].hydration.owner)
    return found[0]


Seen = Annotated[HydrationSummary, Depends(seen)]


def editable_hydration(now: Seen, user: User) -> HydrationSummary:
    """Return a hydration that the person may steer."""
    if not may_steer(user, now.hydration.owner):
        raise HTTPException(status.HTTP_403_FORBIDDEN, f"You may not edit the DAG {now.hydration.owner}.")
    return now


Steered = Annotated[HydrationSummary, Depends(editable_hydration)]


def check_readable(user: User, owner: str) -> None:
    """Answer 403 where the person may not see this DAG."""
    if not may_read(user, owner):
        raise HTTPException(status.HTTP_403_FORBIDDEN, f"You may not see the DAG {owner}.")


def range_of(now: HydrationSummary, seq: int, ledger: Ledger) -> RangeRecord:
    """Return a range of the hydration's plan; 404 where there is none."""
    plan = now.hydration.plan
    try:
        if plan is not None:
            return ledger.range(plan.plan_id, seq)
    except LedgerRefused as error:
        raise HTTPException(status.HTTP_404_NOT_FOUND, str(error)) from error
    raise HTTPException(status.HTTP_404_NOT_FOUND, "There is no plan with ranges yet.")


@contextmanager
def answer_refusals() -> Iterator[None]:
    """Answer 409 with its sentence to an act that is refused for what it is."""
    try:
        yield
    except Terminal as error:
        raise HTTPException(status.HTTP_409_CONFLICT, str(error)) from error


def open_ledger_and_push() -> tuple[Ledger, Push | None]:
    """Open the ledger of the connection ``backpressure_default``, and this process's end of its channel.

    Where there is no such connection, the tables that ``airflow db migrate`` has made are used as Airflow's own are:
    the API server has the metadata database anyway.
    """
    try:
        BaseHook.get_connection(DEFAULT_CONN_ID)
    except AirflowNotFoundException:
        address = make_url(conf.get_mandatory_value("database", "sql_alchemy_conn"))
        push = push_at(address)
        return open_ledger(address, push), push
    return BackpressureHook().open_ledger_and_push()


class OpenedLedger:
    """The process's ledger, opened at the first request; opened again after it has not answered.

    A password that was changed, or a database that has moved, is found by the next request.
    """

    def __init__(self, open: Callable[[], tuple[Ledger, Push | None]] = open_ledger_and_push) -> None:
        self._open = open
        self._lock = threading.Lock()
        self._opened: tuple[Ledger, Push | None] | None = None

    def __call__(self) -> tuple[Ledger, Push | None]:
        """Return it, and this process's end of its channel, if it has one."""
        with self._lock:
            if self._opened is None:
                self._opened = self._open()
            return self._opened

    def record_error(self, error: BackpressureError) -> None:
        """Take note of an error of the ledger."""
        if not isinstance(error, LedgerUnavailable):
            return
        with self._lock:
            old, self._opened = self._opened, None
        if old is not None:
            old[0].close()
