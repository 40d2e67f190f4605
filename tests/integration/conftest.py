"""What tests against real services share."""

from collections.abc import Iterator
from typing import Any

import pytest

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.ports import Source
from airflow_provider_backpressure.sources import PostgresSource
from tests.support.reading import Open


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
