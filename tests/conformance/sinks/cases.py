"""Each kind of sink as the suite meets it: its port, its writer, and a reader that is none of ours."""

import uuid
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from shutil import copy
from typing import Any, ClassVar, Protocol

import pyarrow
import pyarrow.dataset
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog
from pyiceberg.table import StaticTable, Table
from pyspark.sql.pandas.types import from_arrow_schema

from airflow_provider_backpressure.connectors.lake.iceberg.catalog_properties import to_pyiceberg_properties
from airflow_provider_backpressure.connectors.lake.tasks import spark_write, spark_write_topic
from airflow_provider_backpressure.core.endpoints import NOWHERE, Endpoint
from airflow_provider_backpressure.core.ports.sink import Sink
from airflow_provider_backpressure.core.snapshot.spark_messages import (
    ChecksumSpec,
    Column,
    RangeSpec,
    SliceResult,
    WriteSpec,
)
from airflow_provider_backpressure.runners.code_shipping import cargo
from airflow_provider_backpressure.runners.connect_session import Address, active
from airflow_provider_backpressure.sinks import DeltaSink, IcebergSink, ParquetSink, PostgresSink, SparkTableSink
from airflow_provider_backpressure.spark.code_loading import carry_code
from airflow_provider_backpressure.spark.readers_and_writers import writer
from airflow_provider_backpressure.spark.stream_end import complete
from airflow_provider_backpressure.testing import MemorySink
from tests.support.lakes import Cluster
from tests.support.postgres import run

COLUMNS = (Column(name="id", type="bigint", nullable=False), Column(name="name", type="text"))
Row = tuple[int, str | None]


class Case(Protocol):
    """One kind of sink with a target of its own."""

    columns: tuple[Column, ...]
    upserts: bool
    replaces: bool

    def open(self) -> Sink:
        """Open the port again, as another process would."""
        ...

    def write(self, spec: RangeSpec, batches: Iterable[pyarrow.RecordBatch]) -> SliceResult:
        """Do what a task does."""
        ...

    def checksum(self, write: WriteSpec, query: str) -> SliceResult:
        """Count and hash what a query selects, as a task does."""
        ...

    def rows(self) -> list[Row]:
        """Return what a plain reader sees, sorted."""
        ...

    def spoil(self) -> None:
        """Change one row behind everybody's back, its number staying the same."""
        ...

    def add_foreign(self) -> None:
        """Let somebody else add rows that the target has already."""
        ...


@dataclass(kw_only=True)
class MemoryCase:
    """The sink that unit tests are given."""

    columns = COLUMNS[:1]
    upserts: ClassVar[bool] = False
    replaces: ClassVar[bool] = True
    sink: MemorySink

    def open(self) -> Sink:
        return self.sink

    def write(self, spec: RangeSpec, batches: Iterable[pyarrow.RecordBatch]) -> SliceResult:
        keys = [key for batch in complete(batches) for key in batch.column(0).to_pylist()]
        sink = self.sink.beside.get(spec.write.fence, self.sink)
        marker = sink.commit(spec, spec.slices[0], keys)
        return SliceResult(slice_id=marker.slice_id, rows=marker.rows, bytes=marker.bytes, checksum=marker.checksum)

    def checksum(self, write: WriteSpec, query: str) -> SliceResult:
        from airflow_provider_backpressure.testing.sink import checksum_of

        keys = self.sink.read(query)
        return SliceResult(slice_id="", rows=len(keys), bytes=8 * len(keys), checksum=checksum_of(keys))

    def rows(self) -> list[Row]:
        return [(key, None) for key in sorted(self.sink.rows)]

    def spoil(self) -> None:
        self.sink.rows[0] = -7

    def add_foreign(self) -> None:
        self.sink.rows.append(self.sink.rows[0])


@dataclass(kw_only=True)
class RealCase:
    """A sink that is written by its writer."""

    columns = COLUMNS
    upserts: ClassVar[bool] = True
    replaces: ClassVar[bool] = False
    declared: Any
    endpoint: Endpoint = NOWHERE

    def open(self) -> Sink:
        return self.declared.open(self.endpoint)  # type: ignore[no-any-return]

    def write(self, spec: RangeSpec, batches: Iterable[pyarrow.RecordBatch]) -> SliceResult:
        return writer(spec.write.kind).write(self.endpoint, spec, batches)

    def checksum(self, write: WriteSpec, query: str) -> SliceResult:
        spec = ChecksumSpec(kind=write.kind, conn_id=write.conn_id, query=query)
        return writer(write.kind).checksum(self.endpoint, spec)


@dataclass(kw_only=True)
class PostgresCase(RealCase):
    """A table in a database of its own."""

    replaces: ClassVar[bool] = True

    def rows(self) -> list[Row]:
        return run(self.endpoint, "SELECT id, name FROM raw.t ORDER BY id, name")  # type: ignore[return-value]

    def spoil(self) -> None:
        run(self.endpoint, "UPDATE raw.t SET name = 'wrong' WHERE id = (SELECT min(id) FROM raw.t)")

    def add_foreign(self) -> None:
        keyless = "ALTER TABLE raw.t DROP CONSTRAINT IF EXISTS t_pkey", "ALTER TABLE raw.t ALTER id DROP NOT NULL"
        run(self.endpoint, *keyless, "INSERT INTO raw.t (name) VALUES ('foreign')")


@dataclass(kw_only=True)
class ParquetCase(RealCase):
    """A folder, read by Arrow as any reader does."""

    upserts: ClassVar[bool] = False
    folder: Path

    def rows(self) -> list[Row]:
        if not self.folder.exists():
            return []
        return _sorted(pyarrow.dataset.dataset(self.folder, format="parquet").to_table())

    def spoil(self) -> None:
        spoil_file(sorted(self.folder.glob("part-*.parquet"))[0])

    def add_foreign(self) -> None:
        copy(sorted(self.folder.glob("part-*.parquet"))[0], self.folder / "copied-by-hand.parquet")


@dataclass(kw_only=True)
class DeltaCase(RealCase):
    """A table at a path, read by the format's own library."""

    folder: Path

    def rows(self) -> list[Row]:
        return _sorted(DeltaTable(self.folder).to_pyarrow_table())

    def spoil(self) -> None:
        spoil_file(Path(sorted(DeltaTable(self.folder).file_uris())[0]))

    def add_foreign(self) -> None:
        write_deltalake(self.folder, DeltaTable(self.folder).to_pyarrow_table().slice(0, 3), mode="append")


@dataclass(kw_only=True)
class IcebergCase(RealCase):
    """A table in a catalog, read by the format's own library."""

    catalog: dict[str, str]

    def table(self) -> Table:
        """The table, loaded again."""
        with closing(load_catalog(**self.catalog)) as catalog:
            return catalog.load_table("raw.t")

    def writable(self) -> Table:
        """The table, as somebody else writes it."""
        return self.table()

    def rows(self) -> list[Row]:
        return _sorted(self.table().scan().to_arrow())

    def spoil(self) -> None:
        files = sorted(task.file.file_path for task in self.table().scan().plan_files())
        spoil_file(Path(files[0].removeprefix("file://")))

    def add_foreign(self) -> None:
        table = self.writable()
        table.append(table.scan().to_arrow().slice(0, 3))


def spoil_file(path: Path) -> None:
    """Change a value in a file and keep everything else of it, its footer's metadata too."""
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    values = ["wrong", *table["name"].to_pylist()[1:]]
    pq.write_table(table.set_column(1, table.schema.field("name"), pyarrow.array(values, pyarrow.string())), path)


def _sorted(table: pyarrow.Table) -> list[Row]:
    if not table.num_columns:
        return []
    return sorted(zip(table["id"].to_pylist(), table["name"].to_pylist(), strict=True))


def memory(tmp_path: Path, request: Any) -> Iterator[Case]:
    yield MemoryCase(sink=MemorySink())


def postgres(tmp_path: Path, request: Any) -> Iterator[Case]:
    database = replace(request.getfixturevalue("database"), conn_id="sink")
    yield PostgresCase(declared=PostgresSink(conn_id="sink", table="raw.t"), endpoint=database)


def parquet(tmp_path: Path, request: Any) -> Iterator[Case]:
    folder = tmp_path / "lake" / "t"
    yield ParquetCase(declared=ParquetSink(path=str(folder)), folder=folder)


def delta(tmp_path: Path, request: Any) -> Iterator[Case]:
    folder = tmp_path / "lake" / "t"
    yield DeltaCase(declared=DeltaSink(path=str(folder)), folder=folder)


def iceberg(tmp_path: Path, request: Any) -> Iterator[Case]:
    catalog = {"name": "lake", "type": "sql", "uri": f"sqlite:///{tmp_path}/lake.db", "warehouse": f"file://{tmp_path}"}
    yield IcebergCase(declared=IcebergSink(table="raw.t", catalog=catalog), catalog=catalog)


@dataclass(kw_only=True)
class HadoopCase(IcebergCase):
    """A table in a Hadoop catalog, found by the hint as readers of its folder do."""

    def table(self, name: str = "t") -> Any:
        return StaticTable.from_metadata(f"{self.catalog['warehouse']}/raw/{name}")

    def writable(self) -> Table:
        with closing(load_catalog(**to_pyiceberg_properties(self.catalog))) as catalog:
            return catalog.load_table("raw.t")


def hadoop(tmp_path: Path, request: Any) -> Iterator[Case]:
    catalog = {"name": "lake", "type": "hadoop", "warehouse": f"file://{tmp_path}/warehouse"}
    yield HadoopCase(declared=IcebergSink(table="raw.t", catalog=catalog), catalog=catalog)


CASES = {
    "memory": memory,
    "postgres": postgres,
    "parquet": parquet,
    "delta": delta,
    "iceberg": iceberg,
    "hadoop": hadoop,
}


@dataclass(kw_only=True)
class SparkTableCase(RealCase):
    """A table that Spark's own connector writes, read by the format's own library."""

    cluster: Cluster
    place: dict[str, Any]

    def write(self, spec: RangeSpec, batches: Iterable[pyarrow.RecordBatch], session: Any | None = None) -> SliceResult:
        session = session or spark_session(self.cluster.url)

        def make_frame() -> Any:
            table = pyarrow.Table.from_batches(list(complete(batches)))
            if not table.num_rows:
                return session.createDataFrame([], from_arrow_schema(table.schema))
            return session.createDataFrame(table)

        run_range = (spark_write_topic if spec.write.ordered else spark_write).run_range
        with active(session), carry_code(*cargo(), []):
            return run_range(session, spec, make_frame).slices[0]

    def checksum(self, write: WriteSpec, query: str) -> SliceResult:
        session = spark_session(self.cluster.url)
        with active(session), carry_code(*cargo(), []):
            spec = ChecksumSpec(kind=write.kind, conn_id=write.conn_id, query=query)
            return spark_write.run_checksum(session, spec)

    def rows(self) -> list[Row]:
        return _sorted(self.cluster.read(self.place))

    def spoil(self) -> None:
        raise NotImplementedError

    def add_foreign(self) -> None:
        table = self.place["table"]
        spark_session(self.cluster.url).sql(f"INSERT INTO {table} SELECT * FROM {table} LIMIT 3").collect()


@cache
def spark_session(url: str) -> Any:
    """Return a session of a lane, for all cases of a process: the server ends it with itself."""
    return Address(url).begin(str(uuid.uuid4()))


def spark_table_case(format_: str, request: Any) -> Iterator[Case]:
    cluster: Cluster = request.getfixturevalue("lake_cluster")
    place = cluster.place(format_, f"t_{uuid.uuid4().hex[:8]}")
    fields = {name: value for name, value in place.items() if name != "kind"}
    at = replace(NOWHERE, conn_id="spark", password=cluster.url)
    yield SparkTableCase(declared=SparkTableSink(**fields), endpoint=at, cluster=cluster, place=place)


def spark_delta(tmp_path: Path, request: Any) -> Iterator[Case]:
    yield from spark_table_case("delta", request)


def spark_iceberg(tmp_path: Path, request: Any) -> Iterator[Case]:
    yield from spark_table_case("iceberg", request)


SPARK_CASES = {"spark_delta": spark_delta, "spark_iceberg": spark_iceberg}
"""Kinds that need a Spark server for each step: the tests that run over them are chosen."""


@contextmanager
def opened(case: Case) -> Iterator[Sink]:
    """Open the port and close it in the end."""
    with closing(case.open()) as sink:
        yield sink
