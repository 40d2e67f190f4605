"""A file of a lost snapshot that reaches its bucket late, when another snapshot is read."""

import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pyarrow.dataset
import pytest
from moto.server import ThreadedMotoServer
from pyarrow import fs

from airflow_provider_backpressure.connectors.lake.parquet.atomic_writes_and_lock import BucketFolder
from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.verification.completeness_check import Completion
from airflow_provider_backpressure.exceptions import SnapshotLost, VerificationFailed
from tests.support.composed import IN_PROCESS, Composed
from tests.support.local_runner import LocalRunner
from tests.support.postgres import numbered_rows, run

pytestmark = [pytest.mark.integration, pytest.mark.statement("X1")]

WAIT = 60


class Killed(BaseException):
    """The end of a lane's process."""


@pytest.fixture(scope="module")
def bucket() -> Iterator[Endpoint]:
    """A server that speaks S3, with one bucket."""
    import boto3

    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    options = {"region_name": "eu-central-1", "endpoint_url": f"http://{host}:{port}"}
    client = boto3.client("s3", aws_access_key_id="key", aws_secret_access_key="secret", **options)
    # Such servers share their buckets within a process, and another test may have made it.
    with suppress(client.exceptions.BucketAlreadyOwnedByYou):
        client.create_bucket(Bucket="lake", CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    yield Endpoint(conn_id="sink", host="", port=0, database="", user="key", password="secret", options=options)
    server.stop()


def read_codes(bucket: Endpoint, folder: str) -> set[str]:
    """Return every code in a table."""
    address = bucket.options["endpoint_url"].partition("://")[2]
    files = fs.S3FileSystem(
        access_key="key", secret_key="secret", region="eu-central-1", endpoint_override=address, scheme="http"
    )
    table = pyarrow.dataset.dataset(folder, filesystem=files, format="parquet").to_table()
    assert table.num_rows == len(set(table["id"].to_pylist())) == 300
    return set(table["code"].to_pylist())


@pytest.mark.parametrize("noticed", ["lane", "completion"])
def test_ranges_of_two_snapshots_are_not_mixed(
    bucket: Endpoint, database: Endpoint, ledger_url: str, monkeypatch: pytest.MonkeyPatch, noticed: str
) -> None:
    """X1: its name is taken, and the attempt in the new snapshot finds a marker that is not of its moment."""
    run(database, *numbered_rows(300))
    folder = f"lake/{noticed}"
    here = Composed(
        source=database,
        sink=bucket,
        ledger_url=ledger_url,
        remote=IN_PROCESS,
        consistency="snapshot",
        budget=Budget(credits=1, range_rows=100),
        into={"kind": "parquet", "path": f"s3://{folder}", "conn_id": "sink"},
    )
    here.plan()
    looked, may_put, put = threading.Event(), threading.Event(), threading.Event()
    real, names = BucketFolder.publish, list[str]()

    def publish(folder: BucketFolder, name: str, final: str) -> bool:
        if not final.endswith(".parquet"):
            return real(folder, name, final)
        names.append(final)
        if len(names) == 1:
            looked.set()
            assert may_put.wait(WAIT)
            try:
                return real(folder, name, final)
            finally:
                put.set()
        if final == names[0]:
            may_put.set()
            assert put.wait(WAIT)
        return real(folder, name, final)

    monkeypatch.setattr(BucketFolder, "publish", publish)
    logins = {"source": replace(database, conn_id="source"), "sink": bucket}

    def kill(*_: Any) -> None:
        assert looked.wait(WAIT)
        raise Killed

    first, second = LocalRunner(logins=logins, on_submit=kill), LocalRunner(logins=logins)
    with here.open(first) as ports, pytest.raises(Killed):
        ports.hydrator().run()
    run(database, "UPDATE t SET code = 'new'")
    if noticed == "lane":
        with here.open(second) as ports:
            with pytest.raises(SnapshotLost, match=r"The slice 0\.0 of plan \w+ was committed late"):
                ports.hydrator().run()
            hydration = ports.ledger.hydrations()[0]
            ports.planner().close(hydration, ports.plan)
        here.run()
        here.finish()
        assert read_codes(bucket, folder) == {"new"}
    else:
        with here.open(second) as ports:
            hydrator = ports.hydrator()
            monkeypatch.setattr(hydrator._kept, "check_marker", lambda _, marker: marker)
            hydrator.run()
            assert len(read_codes(bucket, folder)) > 1
            with pytest.raises(VerificationFailed, match="its ranges were read in more than one snapshot"):
                Completion(plan=ports.plan, ledger=ports.ledger, sink=ports.sink).check()
    first.close()
    second.close()
