"""What a task moved from where to where, in the names that OpenLineage's convention gives to datasets."""

import re
from dataclasses import dataclass

from airflow_provider_backpressure.core.snapshot.messages import Column
from airflow_provider_backpressure.core.snapshot.plan import Plan

LANDED = "landed:"
FILES = ("parquet", "delta")
_PART = re.compile(r"#[0-9a-f]{12}$")
_QUOTED = re.compile(r'"((?:[^"]|"")*)"|`((?:[^`]|``)*)`')


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A dataset's name."""

    namespace: str
    """Where it is: ``postgres://shop:5432``, ``kafka://broker:9092``, ``s3://bucket``, ``file``."""
    name: str
    """Within that: ``shop.public.orders``, a topic, a path."""


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """What a task did."""

    plan: Plan
    rows: int | None = None
    """Committed by this task, or read back by it; ``None`` where it does not know."""
    bytes: int | None = None
    moved: bool = True
    """Whether rows went into the sink; otherwise it was compared."""
    equal: bool | None = None
    """What the comparison found; ``None`` where there was none."""

    @property
    def source(self) -> Dataset:
        """What was read."""
        return dataset(self.plan.source_identity)

    @property
    def sink(self) -> Dataset:
        """What was written."""
        return dataset(self.plan.sink_identity)

    @property
    def straight(self) -> tuple[str, ...]:
        """Columns that are in the sink what they are in the source; none where a transform may have changed them."""
        if self.plan.transform is not None:
            return ()
        read = {column.name for column in self.plan.read.columns}
        return tuple(column.name for column in self.written if column.name in read)

    @property
    def read(self) -> tuple[Column, ...]:
        """The source's columns."""
        return self.plan.read.columns

    @property
    def written(self) -> tuple[Column, ...]:
        """The sink's."""
        return self.plan.write.columns


def dataset(identity: str) -> Dataset:
    """Return the dataset of one of our identities; a part of a table is of the table's."""
    kind, _, rest = _PART.sub("", identity.removeprefix(LANDED)).partition("://")
    if kind in FILES:
        return _files(rest)
    address, _, path = rest.partition("/")
    if kind == "kafka":
        return Dataset(namespace=f"kafka://{address.split(',')[0]}", name=path)
    if kind == "postgres":
        database, _, table = path.partition("/")
        return Dataset(namespace=f"postgres://{address}", name=f"{database}.{_plain(table)}")
    if kind == "iceberg":
        place, _, table = rest.rpartition("/")
        return Dataset(namespace=f"iceberg://{place}", name=table)
    return Dataset(namespace=f"{kind}://{address}", name=_plain(path))


def _files(path: str) -> Dataset:
    if path.startswith("/"):
        return Dataset(namespace="file", name=path)
    bucket, _, key = path.partition("/")
    return Dataset(namespace=f"s3://{bucket}", name=key)


def _plain(name: str) -> str:
    """Return a name without the quotes that SQL needs."""

    def bare(found: re.Match[str]) -> str:
        return found[1].replace('""', '"') if found[1] is not None else found[2].replace("``", "`")

    return _QUOTED.sub(bare, name)
