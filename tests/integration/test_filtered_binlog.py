"""A MySQL server that logs some databases only: it leaves out statements by the database that their session uses."""

from contextlib import closing
from dataclasses import replace

import pytest

from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.exceptions import SourceRefused
from airflow_provider_backpressure.sources import MySQLSource
from dev.services import Services
from tests.conftest import endpoint_of
from tests.support.mysql import run

pytestmark = pytest.mark.integration
NAME = "mysql:filtered"


def start(services: Services, **settings: str) -> Endpoint:
    """Start the server, again where it ran, with these settings; return a database of it."""
    services.down(NAME)
    server = endpoint_of(services.up(NAME, settings={"mysql": settings})[NAME], "mysql")
    run(server, "CREATE DATABASE IF NOT EXISTS shop", "CREATE DATABASE IF NOT EXISTS scratch")
    return replace(server, database="shop")


@pytest.mark.statement("W7")
def test_a_filtered_binlog_is_refused_as_it_leaves_out_a_truncate_of_a_followed_table(services: Services) -> None:
    """W7: its TRUNCATE has no transaction in the log, so no window could bring it, neither a first nor a later one."""
    shop = start(services)
    run(shop, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    with closing(MySQLSource(conn_id="m", table="t").open(shop)) as source:
        source.snapshot(Consistency.CATCH_UP)
        with closing(source.log("h")) as log:
            began = log.begin()
            run(shop, "INSERT INTO t VALUES (3)")
            assert log.windows(began, bytes=10**12)
    shop = start(services, binlog_ignore_db="scratch")
    executed = "SELECT @@GLOBAL.gtid_executed"
    before = run(shop, executed)
    run(shop, "USE scratch", "TRUNCATE shop.t")
    assert run(shop, "SELECT * FROM t") == []
    assert run(shop, executed) == before
    with closing(MySQLSource(conn_id="m", table="t").open(shop)) as source:
        with pytest.raises(SourceRefused, match="binlog_ignore_db is scratch and has to be empty"):
            source.snapshot(Consistency.CATCH_UP)
        with closing(source.log("h")) as log, pytest.raises(SourceRefused, match=r"left out of the log.*restart"):
            log.windows(began, bytes=10**12)
    services.down(NAME, remove=True)
