"""Links from a range on the page to the task that worked on it, and to its Spark job."""

import re
from dataclasses import replace
from datetime import datetime, timedelta
from urllib.parse import quote, urlsplit

import sqlalchemy as sa
from airflow.configuration import conf
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.models.taskinstancehistory import TaskInstanceHistory
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session

from airflow_provider_backpressure.core.snapshot.ranges import Drainer, RangeRecord, drainer
from airflow_provider_backpressure.exceptions import BackpressureError
from airflow_provider_backpressure.hooks.spark_and_yarn import memory_url
from airflow_provider_backpressure.links import RangeLink, address
from airflow_provider_backpressure.plugins import response_models as answers

SESSION = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""Id of a session of Spark Connect."""
CLOCKS = timedelta(seconds=2)
"""How far the clock of a worker may be ahead of the ledger's."""


def task_of(record: RangeRecord) -> answers.TaskTold | None:
    """Return the task instance of a range's latest attempt; ``None`` where its lane does not name one."""
    found = drainer(record.lane)
    if found is None:
        return None
    if found.task_id:
        number = _try_of(found, record.admitted_at) if record.admitted_at else None
    else:
        found = _of_one_range(found, record)
        # Its credit is older than the task, since a sensor has reserved it; nor did a try after the commit submit it.
        number = _try_of(found, record.committed_at) if found.task_id else None
    return _tell(found, number)


def task_by_lane(lane: str, try_number: int | None) -> answers.TaskTold | None:
    """Return the task instance that a lane is named after; ``None`` where it names none."""
    found = drainer(lane)
    if found is None or found.task_id is None:
        return None
    return _tell(found, try_number)


def _tell(found: Drainer, number: int | None) -> answers.TaskTold:
    return answers.TaskTold(
        dag_id=found.dag_id,
        run_id=found.run_id,
        task_id=found.task_id,
        map_index=found.map_index,
        try_number=number,
        href=_page_of(found, number),
    )


def job_of(record: RangeRecord, cluster: str) -> answers.JobTold | None:
    """Return the Spark job of a range's latest attempt; ``None`` before the first."""
    if record.tag is None:
        return None
    session = record.session_id if record.session_id and SESSION.fullmatch(record.session_id) else None
    page = _get_monitoring_url(cluster) if session else None
    href = f"{page}/connect/session/?id={session}" if page else None
    return answers.JobTold(tag=record.tag, cluster=cluster, session_id=session, href=href)


def _page_of(found: Drainer, number: int | None) -> str:
    """Return the path of Airflow's own page: the task instance's log, or the run where no task is known."""
    base = urlsplit(conf.get("api", "base_url", fallback="/")).path.rstrip("/")
    path = f"{base}/dags/{quote(found.dag_id)}/runs/{quote(found.run_id, safe='')}"
    if found.task_id is None:
        return path
    mapped = f"/mapped/{found.map_index}" if found.map_index >= 0 else ""
    return f"{path}/tasks/{quote(found.task_id)}{mapped}" + (f"?try_number={number}" if number else "")


def _of_one_range(found: Drainer, record: RangeRecord) -> Drainer:
    """Return the task that has this range for itself: the one whose link to it Airflow keeps, from its first moment on.

    Only the run is known as long as a sensor holds the credit for it.
    """
    run = sa.select(DagRun.id).where(DagRun.dag_id == found.dag_id, DagRun.run_id == found.run_id)
    query = sa.select(XComModel.task_id, XComModel.map_index, XComModel.value).where(
        XComModel.dag_run_id == run.scalar_subquery(), XComModel.key == RangeLink().xcom_key
    )
    # A worker may know Airflow by another address than this server: what follows it is the same.
    wanted = address(record.hydration_id, seq=record.seq).partition("#")[2]
    with create_session() as session:
        # At most as many as a run has mapped tasks. A text may be kept with the quotes that JSON gives it.
        for task_id, map_index, value in session.execute(query):
            if str(value).strip('"').endswith(f"#{wanted}"):
                return replace(found, task_id=task_id, map_index=map_index)
    return found


def _try_of(found: Drainer, by: datetime | None) -> int | None:
    """Return the latest try that had begun by then, as Airflow has written it down; ``None``: the latest of all."""
    numbers = (
        sa.select(table.try_number).where(
            table.dag_id == found.dag_id,
            table.run_id == found.run_id,
            table.task_id == found.task_id,
            table.map_index == found.map_index,
            table.start_date.is_not(None) if by is None else table.start_date <= by + CLOCKS,
        )
        for table in (TaskInstance, TaskInstanceHistory)
    )
    with create_session() as session:
        every = session.scalars(sa.union_all(*numbers)).all()
    return max(every, default=None)


def _get_monitoring_url(cluster: str) -> str | None:
    """Return where Spark's pages are, as the cluster's connection has it, without a login."""
    try:
        parts = urlsplit(memory_url(cluster) or "")
    except BackpressureError:
        return None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return None
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
