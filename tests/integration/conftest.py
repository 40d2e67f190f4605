"""What tests against real services share."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.ports import Runner, Source
from airflow_provider_backpressure.runners.connect_runner import ConnectRunner
from airflow_provider_backpressure.sources import PostgresSource
from tests.support.local_runner import LocalRunner
from tests.support.marks import without_spark
from tests.support.reading import Open


@pytest.fixture(scope="module")
def logins() -> dict[str, Endpoint]:
    """The endpoints of the test that runs, which its module's only session looks up."""
    return {}


@pytest.fixture(scope="module")
def runner(request: pytest.FixtureRequest, logins: dict[str, Endpoint]) -> Iterator[Runner]:
    """One session for all tests of a module, as a lane has one for all ranges."""
    if without_spark(request.node):
        with closing(LocalRunner(logins=logins)) as here:
            yield here
        return
    connect = request.getfixturevalue("connect")
    with closing(ConnectRunner(connect.url, logins, ui_url=connect.ui_url)) as runner:
        yield runner


@pytest.fixture
def opened(database: Endpoint) -> Iterator[Open]:
    """Open a source over ``public.t`` unless told otherwise; all are closed in the end."""
    sources: list[Source] = []

    def open_(endpoint: Endpoint = database, **declared: Any) -> Source:
        sources.append(PostgresSource(**{"conn_id": "test", "table": "public.t", **declared}).open(endpoint))
        return sources[-1]

    yield open_
    for source in sources:
        source.close()
