"""Tables of files in a bucket: a server that speaks S3, conditional writes and all."""

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any

import pyarrow
import pytest
from moto.s3.responses import S3Response
from moto.server import ThreadedMotoServer
from pyarrow import fs
from werkzeug.datastructures import Headers

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.exceptions import PlanSuperseded, SinkRefused, SinkUnavailable
from airflow_provider_backpressure.sinks import DeltaSink, IcebergSink, ParquetSink
from tests.conformance.sinks.cases import RealCase, Row, opened
from tests.conformance.sinks.support import batches, begin, expected, ids

pytestmark = pytest.mark.integration

SECRET = "bucket-secret-word"


class BucketCase(RealCase):
    """A table in a bucket; plain readers are those of the formats."""

    def rows(self) -> list[Row]:
        table = self._table()
        return sorted(zip(table["id"].to_pylist(), table["name"].to_pylist(), strict=True))

    def _table(self) -> pyarrow.Table:
        declared, options = self.declared, self.endpoint.options
        address = options["endpoint_url"].partition("://")[2]
        if isinstance(declared, ParquetSink):
            bucket = fs.S3FileSystem(
                access_key="key", secret_key=SECRET, region="eu-central-1", endpoint_override=address, scheme="http"
            )
            return pyarrow.dataset.dataset(declared.path.removeprefix("s3://"), filesystem=bucket).to_table()
        if isinstance(declared, DeltaSink):
            from deltalake import DeltaTable

            login = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "eu-central-1"}
            place = {"AWS_ENDPOINT_URL": options["endpoint_url"], "AWS_ALLOW_HTTP": "true"}
            return DeltaTable(declared.path, storage_options={**login, **place}).to_pyarrow_table()
        from pyiceberg.catalog import load_catalog

        login = {"s3.access-key-id": "key", "s3.secret-access-key": SECRET, "s3.region": "eu-central-1"}
        with closing(load_catalog(**declared.catalog, **login, **{"s3.endpoint": options["endpoint_url"]})) as catalog:
            return catalog.load_table(declared.table).scan().to_arrow()


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    """A server with one bucket, and a login for it."""
    import boto3

    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    found = Endpoint(
        conn_id="bucket",
        host="",
        port=0,
        database="",
        user="key",
        password=SECRET,
        options={"region_name": "eu-central-1", "endpoint_url": f"http://{host}:{port}"},
    )
    client = boto3.client(
        "s3",
        aws_access_key_id=found.user,
        aws_secret_access_key=found.password,
        region_name="eu-central-1",
        endpoint_url=found.options["endpoint_url"],
    )
    client.create_bucket(Bucket="lake", CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    yield found
    server.stop()


@pytest.fixture(params=["delta", "iceberg", "parquet"])
def case(request: pytest.FixtureRequest, endpoint: Endpoint, tmp_path: Any) -> BucketCase:
    """A kind of table with a prefix of its own."""
    prefix = f"s3://lake/{os.urandom(4).hex()}"
    catalog = {"name": "lake", "type": "sql", "uri": f"sqlite:///{tmp_path}/lake.db", "warehouse": prefix}
    declared = {
        "delta": DeltaSink(path=f"{prefix}/t", conn_id="bucket"),
        "iceberg": IcebergSink(table="raw.t", catalog=catalog, conn_id="bucket"),
        "parquet": ParquetSink(path=f"{prefix}/t", conn_id="bucket"),
    }
    return BucketCase(declared=declared[request.param], endpoint=endpoint)


@pytest.mark.statement("X1", "X3")
def test_rows_and_markers_in_a_bucket(case: BucketCase) -> None:
    """X1, X3: once, under the plan that holds the table, and each range reads back as its marker says."""
    begun = begin(case)
    for seq in range(2):
        begun.write(seq)
    begun.write(0, attempt=2, word="double")
    assert case.rows() == expected(case, 0, 1)
    assert {key: marker.attempt for key, marker in begun.markers().items()} == {"0.0": 1, "1.0": 1}
    for seq in range(2):
        assert begun.read_back(seq).checksum == begun.markers(seq)[f"{seq}.0"].checksum
    later = begin(case)
    with pytest.raises(PlanSuperseded):
        begun.write(2)
    later.write(2)
    assert case.rows() == expected(case, 0, 1, 2)
    with opened(case) as sink:
        sink.complete(later.plan)
        assert sink.holds_rows()


@pytest.mark.statement("X5")
@pytest.mark.parametrize("case", ["parquet"], indirect=True)
def test_a_bucket_that_overwrites_is_refused(case: BucketCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """X5: before any row is read; its server ignores If-None-Match, and the trial leaves nothing behind."""
    real = S3Response.put_object

    def ignore(self: Any, *args: Any, **more: Any) -> Any:
        self.headers = Headers([each for each in self.headers.items() if each[0].lower() != "if-none-match"])
        return real(self, *args, **more)

    with monkeypatch.context() as patched:
        patched.setattr(S3Response, "put_object", ignore)
        with pytest.raises(SinkRefused, match="overwrites objects in spite of If-None-Match"):
            begin(case)
    begin(case).write(0)
    assert case.rows() == expected(case, 0)


@pytest.mark.statement("X1")
def test_of_racing_attempts_in_a_bucket_exactly_one_wins(case: BucketCase) -> None:
    """X1: the bucket's conditional write, or the catalog, lets one of them in."""
    begun, racers = begin(case), 3
    at_once = threading.Barrier(racers)

    def race(number: int) -> str:
        def late() -> Iterator[pyarrow.RecordBatch]:
            *rows, end = batches(case, ids(0), word=f"attempt{number}")
            yield from rows
            at_once.wait(60)
            yield end

        return case.write(begun.spec(0), late()).checksum

    with ThreadPoolExecutor(racers) as pool:
        assert set(pool.map(race, range(racers))) == {begun.markers()["0.0"].checksum}
    assert len(case.rows()) == 10


def test_a_bucket_that_does_not_answer_is_named_without_its_secret(case: BucketCase) -> None:
    """One sentence, to be tried again."""
    nowhere = replace(case.endpoint, options={**case.endpoint.options, "endpoint_url": "http://127.0.0.1:9"})
    with pytest.raises(SinkUnavailable) as refused:
        begin(replace(case, endpoint=nowhere))
    assert SECRET not in str(refused.value)
