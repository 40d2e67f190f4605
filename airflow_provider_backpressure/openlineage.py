"""Lineage for OpenLineage, where its provider is installed: datasets, columns, rows and bytes of a task.

Nothing here is imported, and nothing asked of the ledger, where it is not.
"""

from functools import cache
from importlib.util import find_spec
from typing import Any

from airflow_provider_backpressure.core.snapshot.lineage import Dataset, Lineage
from airflow_provider_backpressure.core.snapshot.messages import Column

IDENTITY = "DIRECT", "IDENTITY"


@cache
def is_installed() -> bool:
    """Whether anybody could ask for lineage."""
    try:
        return find_spec("airflow.providers.openlineage") is not None
    except ModuleNotFoundError:
        return False


def operator_lineage(lineage: Lineage) -> Any:
    """Return the lineage as Airflow's provider takes it."""
    from airflow.providers.openlineage.extractors import OperatorLineage

    if lineage.moved:
        return OperatorLineage(inputs=[_input(lineage)], outputs=[_output(lineage)])
    return OperatorLineage(inputs=[_describe_sink(lineage)])


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
