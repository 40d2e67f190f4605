"""Lineage for OpenLineage, where its provider is installed: datasets, columns, rows and bytes of a task.

Nothing here is imported, and nothing asked of the ledger, where it is not.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.spark_messages import Column

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


IDENTITY = "DIRECT", "IDENTITY"


@cache
def is_installed() -> bool:
    """Whether anybody could ask for lineage."""
    try:
        return find_spec("airflow.providers.openlineage") is not None
    except ModuleNotFoundError:
        return False


def operator_lineage(lineages: Sequence[Lineage]) -> Any:
    """Return the lineage of a task's hydrations as Airflow's provider takes it."""
    from airflow.providers.openlineage.extractors import OperatorLineage

    return OperatorLineage(
        inputs=[_input(each) if each.moved else _describe_sink(each) for each in lineages],
        outputs=[_output(each) for each in lineages if each.moved],
    )


def _input(lineage: Lineage) -> Any:
    from openlineage.client.event_v2 import InputDataset

    source = lineage.source
    return InputDataset(namespace=source.namespace, name=source.name, facets=_schema(lineage.read))


def _output(lineage: Lineage) -> Any:
    from openlineage.client.event_v2 import OutputDataset
    from openlineage.client.generated.output_statistics_output_dataset import OutputStatisticsOutputDatasetFacet

    sink, facets = lineage.sink, _schema(lineage.written)
    if lineage.straight:
        facets["columnLineage"] = _columns(lineage.source, lineage.straight)
    statistics = OutputStatisticsOutputDatasetFacet(rowCount=lineage.rows, size=lineage.bytes)
    return OutputDataset(
        namespace=sink.namespace,
        name=sink.name,
        facets=facets,
        outputFacets={} if lineage.rows is None else {"outputStatistics": statistics},
    )


def _describe_sink(lineage: Lineage) -> Any:
    """Return the sink as it was read back, with what was found of it."""
    from openlineage.client.event_v2 import InputDataset
    from openlineage.client.generated.data_quality_assertions_dataset import (
        Assertion,
        DataQualityAssertionsDatasetFacet,
    )
    from openlineage.client.generated.input_statistics_input_dataset import InputStatisticsInputDatasetFacet

    sink = lineage.sink
    found: dict[str, Any] = {}
    if lineage.equal is not None:
        found["inputStatistics"] = InputStatisticsInputDatasetFacet(rowCount=lineage.rows)
        told = Assertion(assertion="count and checksum of each range", success=lineage.equal)
        found["dataQualityAssertions"] = DataQualityAssertionsDatasetFacet(assertions=[told])
    return InputDataset(namespace=sink.namespace, name=sink.name, facets=_schema(lineage.written), inputFacets=found)


def _schema(columns: tuple[Column, ...]) -> dict[str, Any]:
    from openlineage.client.generated.schema_dataset import SchemaDatasetFacet, SchemaDatasetFacetFields

    fields = [SchemaDatasetFacetFields(name=column.name, type=column.type) for column in columns]
    return {"schema": SchemaDatasetFacet(fields=fields)}


def _columns(source: Dataset, names: tuple[str, ...]) -> Any:
    from openlineage.client.generated.column_lineage_dataset import (
        ColumnLineageDatasetFacet,
        Fields,
        InputField,
        Transformation,
    )

    kind, subtype = IDENTITY
    return ColumnLineageDatasetFacet(
        fields={
            name: Fields(
                inputFields=[
                    InputField(
                        namespace=source.namespace,
                        name=source.name,
                        field=name,
                        transformations=[Transformation(type=kind, subtype=subtype)],
                    )
                ]
            )
            for name in names
        }
    )
