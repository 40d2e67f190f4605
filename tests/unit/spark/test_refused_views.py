"""Which commands of a transform make a view of a range's rows: by Spark Connect's own messages, without a server."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.connect import plan

from airflow_provider_backpressure.exceptions import RunnerRefused
from airflow_provider_backpressure.spark.refused_views import CONNECT, refuse_views


class Frame:
    """What of a frame of Spark Connect is looked at."""

    def __init__(self, client: Any) -> None:
        self.sparkSession = SimpleNamespace(client=client)
        self._plan = plan.Range(0, 9, 1, 1)


Frame.__module__ = f"{CONNECT}dataframe"


class Client:
    """Keeps what was sent."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def execute_command(self, command: Any) -> None:
        self.sent.append(command)


def make_view(of: plan.LogicalPlan, *, everywhere: bool = False) -> Any:
    return plan.CreateView(child=of, name="v", is_global=everywhere, replace=True).command(None)  # type: ignore[arg-type]


def select(query: str, of: plan.LogicalPlan) -> Any:
    return plan.SQL(query, [], {}, [plan.SubqueryAlias(of, "x")]).command(None)  # type: ignore[arg-type]


@pytest.fixture
def frame() -> Frame:
    return Frame(Client())


@pytest.mark.parametrize(
    "make",
    [
        make_view,
        lambda of: make_view(of, everywhere=True),
        lambda of: make_view(plan.SubqueryAlias(plan.SubqueryAlias(of, "a"), "b")),
        lambda of: select("  create OR REPLACE temp view v AS SELECT * FROM x", of),
        lambda of: select("CACHE TABLE v AS SELECT * FROM x", of),
    ],
)
def test_a_view_of_the_rows_is_refused_and_not_made(frame: Frame, make: Any) -> None:
    with refuse_views(frame), pytest.raises(RunnerRefused, match="a temporary view of a range's rows"):
        frame.sparkSession.client.execute_command(make(frame._plan))
    assert frame.sparkSession.client.sent == []


def test_everything_else_passes(frame: Frame) -> None:
    """A view of other rows, a SELECT over the frame, and what is done outside of a transform or by another thread."""
    client, other = frame.sparkSession.client, plan.Range(0, 5, 1, 1)
    own = make_view(frame._plan)
    with refuse_views(frame):
        client.execute_command(make_view(other))
        client.execute_command(select("SELECT 'create' FROM x", frame._plan))
        thread = threading.Thread(target=client.execute_command, args=(own,))
        thread.start()
        thread.join()
    client.execute_command(own)
    assert len(client.sent) == 4


def test_a_client_is_watched_once_and_each_frame_for_itself(frame: Frame) -> None:
    client = frame.sparkSession.client
    with refuse_views(frame):
        watched = client.execute_command
    second = Frame(client)
    with refuse_views(second), pytest.raises(RunnerRefused):
        client.execute_command(make_view(second._plan))
    assert client.execute_command == watched


def test_classic_spark_is_left_alone() -> None:
    frame = SimpleNamespace()
    with refuse_views(frame):  # type: ignore[arg-type]
        pass
