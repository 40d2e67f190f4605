"""One installation for all system tests of a session."""

from collections.abc import Iterator

import pytest

from dev.services import Server, Services
from tests.system.installation import Installation


@pytest.fixture(scope="session")
def installation(services: Services, postgres: Server, kafka: Server) -> Iterator[Installation]:
    """A real Airflow over real services, with every DAG of the tests.

    Many DAGs share its Spark at once, each with Python workers of its own: it has the memory for that.
    """
    mysql = services.up("mysql")["mysql"]
    connect = services.up("connect:system", driver_memory="6g")["connect:system"]
    home = services.guest("installation")
    made = Installation(home=home, postgres=postgres, connect=connect, kafka=kafka, mysql=mysql)
    made.create()
    try:
        made.start()
        made.begin()
        yield made
    finally:
        made.close()
        services.down("connect:system")
